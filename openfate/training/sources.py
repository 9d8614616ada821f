"""What a run is trained and validated on: a table in memory, or a stream of ids.

A source tells `train` what its steps are.  Those of a table are epochs, of one batch (the whole
graph) or of mini-batches in an order that is drawn anew each time; those of a stream are its
mini-batches, of which nobody knows how many there will be.  `validate`, where there is something to
validate on, tells log-loss and ROC-AUC, which is nan for a table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import BatchNorm1d

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE, Backbone, Members, field_means
from openfate.table import PART_ROWS, DiskRows, MultiHot, read_ahead
from openfate.training import checkpoint as saved
from openfate.training.batches import Bag, Batch, Batches, check_pairs, prepare_ahead
from openfate.training.checkpoint import Checkpoint
from openfate.training.engine import Engine, Seeds, make_engine
from openfate.training.lines import Lines
from openfate.training.metrics import StreamingAUC
from openfate.training.prediction import make_predictor
from openfate.training.ranks import Ranks
from openfate.training.rows import Rows, check_fields, check_rows
from openfate.training.settings import Settings

Steps = Generator[tuple[int, Iterable[Any]]]
Validate = Callable[[], tuple[float, float]]
# WHY: 2^24 numbers are 64 MiB, of which a forward holds some five at a time.
_STATES_AT_ONCE = 2**24
# WHY: the graph of a validation must fit into memory, however many rows a table has.
_GRAPH_ROWS = PART_ROWS


class TableSource:
    """Rows in memory, as one batch an epoch or as mini-batches of the features that they touch."""

    step_name = "epoch"

    def __init__(
        self,
        model: FATE,
        settings: Settings,
        seed: int,
        device: torch.device,
        X: MultiHot,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        field_of: NDArray[np.integer] | None,
        validation: Any,
        is_knot: NDArray[np.bool_] | None = None,
        shown: NDArray[np.bool_] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        if settings.engine == "fused":
            raise InputError(
                "engine='fused' is of mini-batches of ids: a table in memory takes 'auto' or "
                "'plain'."
            )
        if ranks is not None and ranks.n_sharded is not None:
            raise InputError(
                "embeddings in shards are of mini-batches of ids: a table takes 'replicated'."
            )
        if y is None:
            raise InputError("y is None: a table needs the targets of its rows.")
        if callable(validation):
            raise InputError("validation is a function: a table takes rows and their targets.")
        rows = check_rows(model, settings.loss, "training", X, y, sample_weight)
        self.model, self.rows, self.settings = model.to(device), rows, settings
        self.seed, self.device, self.ranks = seed, device, ranks or Ranks()
        self.field_of = check_fields(model, field_of)
        if settings.masking == "k_shot" and settings.unit == "field" and self.field_of is None:
            raise InputError("unit='field' needs field_of, the field of each feature.")
        # WHY: BatchNorm has no variance of a single row.
        self.least_rows = 2 if any(isinstance(m, BatchNorm1d) for m in model.modules()) else 1
        if rows.X.n_rows < self.least_rows:
            raise InputError("one training row: BatchNorm needs two or more.")
        if settings.batch_size is not None and settings.batch_size < self.least_rows:
            raise InputError("batch_size=1: BatchNorm needs two rows or more at a time.")
        # WHY two: the orders of earlier releases, of which nothing needs another.
        self.order_rng = np.random.default_rng([seed, 4 if settings.masking == "none" else 2])
        self.order_state = dict(self.order_rng.bit_generator.state)
        self.untrained = np.flatnonzero(rows.X.feature_degree == 0)
        if settings.untrained != "leave":
            with torch.no_grad():
                model.W[self.untrained] = 0  # nothing will ever train their random start
        backbone = model.backbone
        one_sum = backbone.n_fields is None and type(backbone).lift is Backbone.lift
        plain = settings.masking == "none" and model.extrapolator is None
        self.in_bags = one_sum and plain and settings.batch_size is not None
        self.n_steps = settings.epochs * len(self._rounds())
        self.average_every = self._average_every()
        self.whole = None
        if settings.batch_size is None:
            self.whole = self.batch(self.ranks.own_rows(rows, self.least_rows))
        self.lines = Lines.of(rows.X, field_of, is_knot) if self.in_bags else None
        self.by_rows = self.in_bags and settings.adam == "lazy"
        self.engine = Engine(
            model,
            settings,
            device,
            seed,
            self.field_of,
            by_rows=self.by_rows,
            lines=self.lines.to(device) if self.by_rows and self.lines is not None else None,
            n_steps=settings.epochs * len(self._cuts()),
            shown=self._check_shown(shown),
            ranks=self.ranks,
        )
        self.validate: Validate | None = None
        if validation is not None:
            later = check_rows(model, settings.loss, "validation", *validation)
            self.validate = _TableValidation(self, later).measure

    def _check_shown(self, shown: NDArray[np.bool_] | None) -> Tensor | None:
        """(D, M, 1) which features each network may see."""
        if shown is None:
            return None
        net, n_features = self.model.backbone, len(self.model.W)
        if not isinstance(net, Members) or not self.in_bags:
            raise InputError(
                "shown is of `Members` in mini-batches, without an extrapolator; leave it out."
            )
        if shown.shape != (n_features, net.n_members):
            raise InputError(
                f"shown has the shape {shown.shape}: give {n_features} features x "
                f"{net.n_members} networks."
            )
        return torch.from_numpy(shown)[:, :, None].to(self.device, self.model.W.dtype)

    def steps(self, epoch: int, n_done: int) -> Steps:
        """Epochs, or rounds of them."""
        for number in range(epoch, self.settings.epochs + 1):
            self.order_state = dict(self.order_rng.bit_generator.state)
            if self.whole is not None:
                rounds: Iterable[Iterable[Batch | Bag]] = [[self.whole]]
            else:
                order = self.order_rng.permutation(self.rows.X.n_rows)
                rounds = (self._batches(order, cuts) for cuts in self._rounds())
            for batches in itertools.islice(rounds, n_done if number == epoch else 0, None):
                yield number, batches

    def _batches(
        self, order: NDArray[np.intp], cuts: Sequence[tuple[int, int]]
    ) -> Iterator[Batch | Bag]:
        """The mini-batches of a round of an epoch."""
        # WHY: reading from disk is worth a thread, cutting up what is in memory is not.
        is_read = isinstance(self.rows.X, DiskRows)
        parts = self._cut_up(order, _groups(cuts) if is_read else [cuts])
        # A mean over no weight is not a number.
        made = (self._mini_batch(p) for p in parts if p.weight is None or p.weight.any())
        return read_ahead(made, self.settings.n_ahead) if is_read else made

    def _cut_up(
        self, order: NDArray[np.intp], groups: Iterable[Sequence[tuple[int, int]]]
    ) -> Iterator[Rows]:
        """The rows of each mini-batch."""
        for cuts in groups:
            # WHY: rows are put in order, or read, together; to cut them up costs next to nothing.
            first, last = cuts[0][0], cuts[-1][1]
            rows = self.rows.select(order[first:last])
            for start, end in cuts:
                yield rows.cut(start - first, end - first)

    def _rounds(self) -> list[list[tuple[int, int]]]:
        """The mini-batches of each round of an epoch; the last may be longer, by less than one."""
        cuts = self._cuts()
        size = self.settings.round_size or len(cuts)
        starts = list(range(0, max(1, len(cuts) - size + 1), size))
        return [cuts[a:b] for a, b in itertools.pairwise([*starts, len(cuts)])]

    def _cuts(self) -> list[tuple[int, int]]:
        """Where each mini-batch of an epoch begins and ends."""
        n_rows = self.rows.X.n_rows
        starts = list(range(0, n_rows, self.settings.batch_size or n_rows))
        if n_rows - starts[-1] < self.least_rows:
            starts.pop()  # the last is too short: the one before it takes it in
        return list(itertools.pairwise([*starts, n_rows]))

    def _average_every(self) -> int:
        """After how many mini-batches weights go into their mean: eight times a round, or less."""
        # WHY less: it moves all features, a mini-batch those of its cells.
        X, size = self.rows.X, min(map(len, self._rounds()))
        n_cells = max(1, X.nnz * (self.settings.batch_size or X.n_rows) // X.n_rows)
        return min(size, max(1, size // 8, X.n_features // n_cells))

    def _mini_batch(self, rows: Rows) -> Batch | Bag:
        """Its own part of the rows, over the features that all of them touch."""
        own = self.ranks.own_rows(rows, self.least_rows)
        if self.in_bags:
            bag = self.bag(own).with_lines(own.X, self.lines)
            first = np.empty(0, np.int64) if self.lines is None else self.lines.ids
            if self.by_rows and own is not rows:
                others = np.setdiff1d(rows.X.ids, first).astype(np.int64)
                first = np.concatenate([first, others])
            return bag.over_touched(rows.X.n_features, first) if self.by_rows else bag
        local, ids = rows.X.touched_features()
        touched = torch.from_numpy(ids.astype(np.int64))
        graph = self._graph(local if own is rows else own.X.select_features(ids), touched)
        return Batch(graph, touched.to(self.device), *self._target(own))

    def batch(self, rows: Rows) -> Batch:
        """Rows over all features."""
        everything = torch.arange(rows.X.n_features, device=self.device)
        return Batch(self._graph(rows.X), everything, *self._target(rows), whole=True)

    def bag(self, rows: Rows) -> Bag:
        """Rows for a plain network whose backbone reads one sum a row."""
        return Bag.of(rows.X, *self._target(rows), self.model.W)

    def _graph(self, X: MultiHot, ids: Tensor | None = None) -> Bipartite:
        """The graph of rows over all features, or over those of `ids`; it knows their fields."""
        graph = Bipartite.from_multihot(X, self.device)
        if self.field_of is None:
            return graph
        fields = self.field_of if ids is None else self.field_of[ids]
        return graph.with_fields(fields.to(self.device))

    def _target(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Targets and weights on the device, floating ones in the model's precision."""
        y, dtype = rows.y, self.model.W.dtype
        target = torch.from_numpy(y).to(self.device, torch.int64 if y.dtype.kind == "i" else dtype)
        if rows.weight is None:
            return target, None
        return target, torch.from_numpy(rows.weight).to(self.device, dtype)

    def seeds(self, number: int) -> None:
        """None: the random numbers of a table run through."""

    def finish(self) -> None:
        """Give features without training rows the mean embedding of their field, or zero."""
        fields, model = self.field_of, self.model
        if self.settings.untrained != "field_mean" or fields is None or not len(self.untrained):
            return
        fields = fields.to(self.device)
        trained = torch.from_numpy(self.rows.X.feature_degree > 0).to(self.device)
        with torch.no_grad():
            # field_means takes the first rows of W as the known ones: put the trained ones there.
            order, n = torch.argsort(~trained, stable=True), int(trained.sum())
            H = model.backbone.width  # own columns stay zero
            model.W[order[n:], :H] = field_means(model.W[order[:n], :H], fields[order])[n:]

    def state(self) -> dict[str, Tensor]:
        """Where the order of rows was before this epoch."""
        return {"order": saved.to_text(self.order_state)}

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Go on in the same order."""
        self.order_rng.bit_generator.state = saved.from_text(checkpoint["source.order"])


class _TableValidation:
    """The loss of rows over masks that are drawn once; built once for a run.

    The extrapolator sees training and validation rows, of each at most 65,536, evenly spread.  A
    plain network is validated as it will be used: with all of its features, on all rows.
    """

    def __init__(self, source: TableSource, rows: Rows) -> None:
        self.engine, self.settings, self.source = source.engine, source.settings, source
        self.in_bags, self.later = source.in_bags, rows
        # WHY: many rows are read, or cut, anew each time: their bags would fill the memory.
        few = rows.X.n_rows <= PART_ROWS
        self.bag = source.bag(rows) if self.in_bags and few else None
        if self.in_bags:
            return
        rows = _spread(rows)
        self.rows = source.batch(rows)
        seen = MultiHot.stack([_spread(source.rows).X, rows.X])
        self.graph = Bipartite.from_multihot(seen, source.device)
        engine, plain = self.engine, source.model.extrapolator is None
        state = engine.mask_rng.get_state()
        masks = torch.ones(1, rows.X.n_features).bool() if plain else engine.draw_masks()
        engine.mask_rng.set_state(state)  # WHY: validation must not change the run
        self.masks = masks.to(source.device)
        self.redraw = self.settings.redraw_validation and not plain

    @torch.no_grad()
    def measure(self) -> tuple[float, float]:
        """The loss over all masks, many at once where they share the graph; nan for an AUC."""
        engine, model = self.engine, self.engine.model
        model.eval()
        if self.in_bags:
            return self._bag_loss(), math.nan
        if self.redraw or self.settings.columns_only:
            masks = engine.draw_masks().to(self.masks.device) if self.redraw else self.masks
            return float(torch.stack([self._loss(kept) for kept in masks]).mean()), math.nan
        n_states = (self.graph.n_rows + self.graph.n_features) * model.W.size(1)
        parts = torch.split(self.masks, max(1, _STATES_AT_ONCE // n_states))
        edges, shares = Edges.of(self.graph), [len(part) / len(self.masks) for part in parts]
        means = [engine.loss(self.rows.X, part.T, edges, model.W, self.rows) for part in parts]
        return float(sum(m * share for m, share in zip(means, shares, strict=True))), math.nan

    def _bag_loss(self) -> float:
        """Of all rows, some at a time where they are many."""
        if self.bag is not None:
            return float(self.engine.bag_loss(self.bag))
        total = weight = 0.0
        for start in range(0, self.later.X.n_rows, PART_ROWS):
            part = self.later.cut(start, min(start + PART_ROWS, self.later.X.n_rows))
            own = float(len(part.y) if part.weight is None else part.weight.sum())
            if own:  # a mean over no weight is not a number
                total += own * float(self.engine.bag_loss(self.source.bag(part)))
                weight += own
        return total / weight

    def _loss(self, kept: Tensor) -> Tensor:
        """Of one mask, whose graph is its own."""
        X, seen, s = self.rows.X, self.graph, self.settings
        if s.columns_only:
            X, seen = X.keep_features(kept), seen.keep_features(kept)
        # REFERENCE: DropEdge in validation too.
        edges = self.engine.draw_edges(seen, s.drop_edge if self.redraw else 0.0)
        return self.engine.loss(X, kept, edges, self.engine.model.W, self.rows)


def _groups(cuts: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Mini-batches whose rows are read from disk together: the more, the nearer they lie."""
    n_rows = max(end - start for start, end in cuts)
    size = max(1, PART_ROWS // n_rows)
    for at in range(0, len(cuts), size):
        yield cuts[at : at + size]


def _spread(rows: Rows) -> Rows:
    """All rows, or as many of them as a graph holds."""
    n_rows = rows.X.n_rows
    if n_rows <= _GRAPH_ROWS:
        return rows
    return rows.select(np.linspace(0, n_rows - 1, _GRAPH_ROWS).astype(np.intp))


class StreamSource:
    """Mini-batches of ids, a function of the epoch."""

    step_name = "mini-batch"
    n_steps = None  # nobody knows
    average_every = 0

    def __init__(
        self,
        model: FATE,
        settings: Settings,
        seed: int,
        device: torch.device,
        batches: Callable[[int], Batches],
        validation: Any,
        ranks: Ranks | None = None,
    ) -> None:
        for name, given in (("batches", batches), ("validation", validation)):
            if given is not None and not callable(given):
                raise InputError(
                    f"{name} is a {type(given).__name__}: give a function that returns it."
                )
        settings.check_stream()
        if model.backbone.n_outputs != 1:
            raise InputError(
                f"clicks need one output, the model has {model.backbone.n_outputs}; make one "
                "with n_outputs=1."
            )
        self.model, self.batches, self.settings = model.to(device), batches, settings
        self.seed, self.later = seed, validation
        self.untrained: NDArray[np.intp] = np.empty(0, np.intp)  # nobody counts them
        self.ranks = ranks or Ranks()
        self.engine = make_engine(model, settings, device, self.ranks)
        self.predictor = make_predictor(model, device, settings.engine, ranks=self.ranks)
        self.validate: Validate | None = None if validation is None else self._measure

    def steps(self, epoch: int, n_done: int) -> Steps:
        """Mini-batches of two rows or more, prepared in advance."""
        for number in range(epoch, self.settings.epochs + 1):
            usable = (batch for batch in check_pairs(self.batches(number)) if len(batch[1]) > 1)
            rest = itertools.islice(usable, n_done if number == epoch else 0, None)
            for batch in prepare_ahead(rest, self.engine.prepare, self.settings.n_ahead):
                yield number, (batch,)

    def _measure(self) -> tuple[float, float]:
        """Log-loss and ROC-AUC of batches, each a graph of its own, with new features in it."""
        score, n_clicks = StreamingAUC(), 0
        for logits, y in self.predictor.logits(self.later(), self.settings.n_ahead):
            score.add(logits, y)
            n_clicks += int((y == 1).sum())
        n_rows = score.n_rows
        if n_clicks in (0, n_rows):
            held = f"{n_rows} rows of class {int(n_clicks > 0)}" if n_rows else "no rows"
            raise InputError(
                f"validation holds {held}: a ROC-AUC needs rows of both classes; give more rows, "
                "or validation=None."
            )
        return score.log_loss, score.value()

    def seeds(self, number: int) -> Seeds:
        """Of the mini-batch of a step."""
        return Seeds.of(self.seed, number)

    def finish(self) -> None:
        """Free what training and predicting needed."""
        self.engine.close()
        self.predictor.close()

    def state(self) -> dict[str, Tensor]:
        """Nothing: each mini-batch has its own seeds."""
        return {}

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Nothing to load."""
