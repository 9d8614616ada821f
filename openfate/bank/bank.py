"""FeatureBank: a trained model, its vocabulary and the running state of new features.

The one path of a prediction, which estimators and the command line share:

    rows -> (policies) -> encode -> model (extrapolating from running sums) -> evidence -> mixture

Prediction never changes a bank.  `observe` does: it gives ids to what is new, adds rows to the sums
and learns from labels.  All that it changes is in one `State`, of which nothing is ever written to:
the next one is made beside it and takes its place by one assignment, so that whatever reads a bank
reads one moment of it, and a call that fails anywhere leaves it as it was.

No training, no scikit-learn.  D observed features, D' known ones (observed and new).
"""

from __future__ import annotations

import collections
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.bank.bundle import (
    Bundle,
    Model,
    hash_bundle,
    plain_classes,
    pooling_settings,
    read_bundle,
    unpack,
    write_bundle,
)
from openfate.bank.network import Network
from openfate.bank.notes import Call, Counted, Fork, Note, Numbers, Shown, Told
from openfate.bank.wrapped import Wrapped, dump
from openfate.errors import InputError, OpenWorldWarning, check_choice, check_integer
from openfate.executor import executor, spread
from openfate.growing import PagedArray
from openfate.openworld import (
    Floats,
    JointEvidence,
    Labelled,
    LiveEvidence,
    Mixture,
    Sample,
    Task,
    Voters,
    combine,
    to_logits,
)
from openfate.table import (
    PART_ROWS,
    Encoder,
    Growth,
    Meeting,
    MultiHot,
    Newcomers,
    Policies,
    Schema,
    SchemaReport,
    Table,
    class_numbers,
    compare,
    cut_table,
    enforce,
    hash_keys,
    is_simple,
    label_matrix,
    names_rows,
    new_in_row,
    read_labels,
    read_table,
    target_numbers,
    text_of,
    uncollected,
)

Graph = Literal["auto", "state", "batch"]
Use = Literal["use", "drop"]

_SILENT = Policies("ignore", "ignore", "ignore")
_NO_COLUMNS = Table(1, {})
_SPREAD_ROWS = PART_ROWS  # at a time, where an executor's processes work on the rows of a call
_STEPS = 8  # in which what is known fades to a half
# What trains a model again: is told how many rows of the call count by now, and the encoder that
# knows what is new in them; gives None not to.
Retrain = Callable[[int, Encoder], Model | None]


class Options(TypedDict, total=False):
    """How the rows of one call are read; what is not given or None is the bank's own."""

    exclude: Sequence[str] | None
    overrides: Schema | None
    policies: Policies | None


class State(NamedTuple):
    """All that `observe` changes."""

    encoder: Encoder
    model: Model
    rows: PagedArray  # (D',) of each feature
    n_rows: int  # of all of them: training and observed
    evidence: LiveEvidence | None
    mixture: Mixture | None
    retrained: Model | None
    kept: tuple[Any, ...] = ()  # what those who train again were told to keep, a thing a call
    newcomers: Newcomers | None = None  # values met once, where only so many may be known
    n_evicted: int = 0  # new features that were forgotten so far
    n_counted: int = 0  # rows since fit that are in the sums, where these have a half-life
    # Evidence of the very rows that will be predicted; None but in a copy that looked ahead.
    joint: JointEvidence | None = None
    fork: Fork | None = None  # notes of all that it observed since it was forked


class Prediction(NamedTuple):
    """The outputs of one call, and what they came from."""

    encoder: Encoder  # with ids for what is new
    X: MultiHot  # (N, D')
    model: Model
    P0: Floats  # (N, C) the model's, without new features
    evidence: LiveEvidence | JointEvidence | None
    votes: Floats | None  # (N, C) what evidence leaves out of its pools
    retrained: Floats | None  # (N, C) of the model that was trained again
    outputs: Floats  # (N, C)


@dataclass(frozen=True)
class FeatureNames:
    """What features are, whatever ids they have: new ones by field and value, old ones by their id.

    WHY: the ids of new ones are given in the order of arrival.
    """

    encoder: Encoder
    n_observed: int
    first: int = 0  # the id of the feature that is numbered 0

    def __call__(self, ids: NDArray[np.int32]) -> NDArray[np.uint64]:
        """(n,) numbers that stand for them."""
        names, is_new = ids + np.int32(self.first), ids >= self.n_observed - self.first
        hashes = names.astype(np.uint64)
        hashes[is_new] = self.encoder.hash_features(names[is_new])
        return hashes


class FeatureBank:
    """A trained model that can meet new columns and values, and remembers what it met.

    Made by an estimator's `fit` (``estimator.bank_``) or by `FeatureBank.load`.  Threads may share
    one: those that `observe` take turns, and whatever else they do with it waits for nobody and
    sees the state after some whole number of these calls.

    Parameters
    ----------
    encoder, model
        The vocabulary, and the model with its running sums; ids agree.
    classes
        Whose probabilities the outputs are; empty for numbers.
    embeddings
        How strongly predictions use the model's embeddings of new features; 0 for not at all.
    evidence
        What new features have shown, where predictions use that.
    mixture
        What labels have taught; None where they teach nothing.
    retrained
        The model trained again on labels that came later, an expert of the mixture.
    policies
        What to do with new columns, new values and missing columns.
    exclude
        Columns that are never used, also when they appear later: the target, for one.
    overrides
        Fields of columns that may appear later, where inference would guess wrong.
    max_new_features
        How many new features are known at most after a call of `observe`; None: all.  A number for
        all fields together, or a mapping from fields to numbers, in which "*" stands for all
        together.  See Notes.
    source
        A column that names who sent a row; it is no feature.  One source counts for a new feature
        as three rows at most, with the mean of its rows' votes, whatever it sends.
    half_life
        After so many more rows a row that was observed counts half for what is new; None: rows
        count for ever.  See Notes.
    meta
        Settings, metrics and whatever else a bundle should tell.

    Notes
    -----
    `policies`, `exclude` and `overrides` can be given to each call in place of the bank's own.

    With `max_new_features` a text gets an id when an unlabelled row has it for the second time (of
    the first one nothing is kept, if that was in an earlier call), and where too many are known a
    tenth of the bound is forgotten, with a warning: those without labels first, of these those
    with the fewest rows, of these the oldest.  What is known then follows time and the cut into
    calls.  Columns, buckets and knots are never forgotten.

    With `half_life` what is known of new features is multiplied by 2^(-1/8) whenever an eighth of
    it, in rows since `fit`, has passed: at fixed numbers of rows, so that any cut into calls gives
    the same state, while the order of rows, which is time, matters.  Labels are not forgotten so:
    the weights of experts follow them.

    Examples
    --------
    >>> import polars as pl
    >>> from openfate import FATEClassifier
    >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
    >>> bank = FATEClassifier(epochs=5).fit(rows, rows["job"] == "nurse").bank_
    >>> later = pl.DataFrame({"job": ["cook", "judge"], "city": ["Rome", "Oslo"]})
    >>> bank.predict(later).shape  # "judge" and the column are new; nothing is remembered
    (2, 2)
    >>> bank.observe(later)  # now they are known, without training
    >>> bank.n_observed, bank.encoder.n_features, bank.n_rows
    (2, 5, 62)
    """

    def __init__(
        self,
        encoder: Encoder,
        model: Model,
        classes: Sequence[Any] = (),
        *,
        embeddings: float = 1.0,
        evidence: LiveEvidence | None = None,
        mixture: Mixture | None = None,
        retrained: Model | None = None,
        policies: Policies | None = None,
        exclude: Sequence[str] = (),
        overrides: Schema | None = None,
        max_new_features: int | Mapping[str, int] | None = None,
        source: str | None = None,
        half_life: int | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        rows, newcomers = PagedArray(np.zeros(model.n_observed)), None
        self._bounds = _read_bounds(max_new_features)
        is_mapping = isinstance(max_new_features, Mapping)
        self.max_new_features = (self._bounds or None) if is_mapping else max_new_features
        if self._bounds:
            newcomers = Newcomers.of(sum(self._bounds.values()))
        self._state = State(
            encoder, model, rows, 0, evidence, mixture, retrained, newcomers=newcomers
        )
        if source is not None and not isinstance(source, str):
            raise InputError(f"source={source!r}: give the name of a column.")
        self.source = source
        if half_life is not None:
            check_integer("half_life", half_life, 1)
        self.half_life = half_life
        self.classes, self.embeddings = list(classes), float(embeddings)
        self.policies = policies or Policies()
        self.exclude = tuple(dict.fromkeys((*exclude, *([] if source is None else [source]))))
        self.overrides = overrides or Schema([])
        self.meta = dict(meta or {})
        self.lock = threading.RLock()  # one thread observes at a time

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy or a pickle has a lock of its own.
        vars(self).update(state, lock=threading.RLock())

    @property
    def encoder(self) -> Encoder:
        """The vocabulary."""
        return self._state.encoder

    @property
    def model(self) -> Model:
        """The model and its running sums."""
        return self._state.model

    @property
    def rows(self) -> Floats:
        """(D',) rows of each feature so far."""
        return self._state.rows.to_array()

    def count_rows(self, feature: int) -> int:
        """The rows of one feature so far, labelled ones that wait to be learned from among them."""
        waiting = [] if self.mixture is None else self.mixture.uncounted()
        n_waiting = sum(int(np.count_nonzero(rows.X.ids == feature)) for rows in waiting)
        return int(self._state.rows.take(np.array([feature]))[0]) + n_waiting

    @property
    def n_rows(self) -> int:
        """Rows so far: those of training and observed ones."""
        return self._state.n_rows

    @property
    def evidence(self) -> LiveEvidence | None:
        """What new features have shown; None where predictions do not use that."""
        return self._state.evidence

    @property
    def mixture(self) -> Mixture | None:
        """What labels have taught; None where they teach nothing."""
        return self._state.mixture

    @property
    def retrained(self) -> Model | None:
        """The model trained again on labels that came later."""
        return self._state.retrained

    @property
    def kept(self) -> tuple[Any, ...]:
        """What calls of `observe` said to keep; no part of a bundle."""
        return self._state.kept

    @property
    def n_evicted(self) -> int:
        """New features that were forgotten so far: see `max_new_features`."""
        return self._state.n_evicted

    @property
    def joint(self) -> JointEvidence | None:
        """Evidence of the very rows that will be predicted, in a copy that looked ahead."""
        return self._state.joint

    @property
    def task(self) -> Task:
        """What the outputs are."""
        return self.model.task

    @property
    def target_scale(self) -> tuple[float, float]:
        """Of regression by a network: the mean and the deviation of the training target."""
        return getattr(self.model, "target_scale", (0.0, 1.0))

    @property
    def n_observed(self) -> int:
        """D: features with an id below it were there in training."""
        return self.model.n_observed

    # ---- predicting ----------------------------------------------------------------------------

    def predict(
        self,
        rows: Any,
        *,
        graph: Graph = "auto",
        new_features: Use = "use",
        single: bool = False,
        **options: Unpack[Options],
    ) -> Floats:
        """Predict rows; never changes the bank.

        Parameters
        ----------
        rows
            A pandas, polars or pyarrow frame; columns may be new, missing or in any order.  Or one
            row, a dict of its cells by column: plain texts, numbers, booleans and None take no
            frame library's time.  (A wrapped model gets a frame of that row.)
        graph
            What is known of a new feature comes from: "state": the rows seen by training and
            `observe` alone, so that a row's prediction is the same alone and in any batch.
            "batch": those and the rows of the call (the paper's way; transductive: a row's
            prediction depends on the other rows of the call, though not on their order).  "auto":
            "batch" for features that the state has never seen, and for evidence of those that more
            rows of the call have than the state has seen; "state" for the rest.
        new_features
            "drop" leaves new features out, as a closed-world model would.
        single
            Whether a network computes in float32: many rows take half the time, and a probability
            may differ by some 1e-6 from that of the row alone.
        options
            exclude, overrides, policies of this call; None: the bank's own.

        Returns
        -------
        (N, C) probabilities, two columns for a binary target; (N, K) for K labels; (N, 1) numbers
        """
        check_choice("new_features", new_features, ("use", "drop"))
        bank = self.copy() if single else self
        model = bank.model
        if single and isinstance(model, Network):
            bank._state = bank._state._replace(model=model.single())
        if bank._is_spread(rows):
            return bank._predict_spread(rows, graph, new_features, **options)
        with uncollected(rows):
            return bank.answer(rows, graph, use=new_features == "use", **options).outputs

    def _is_spread(self, rows: Any) -> bool:
        """Whether the rows of a call are so many that an executor's processes take parts of them.

        A wrapped model is given frames of the library that the caller uses, as a whole.
        """
        if executor() is None or isinstance(rows, Mapping) or not isinstance(self.model, Network):
            return False
        return read_table(rows).n_rows > _SPREAD_ROWS

    def _predict_spread(
        self, rows: Any, graph: Graph, new_features: Use, **options: Unpack[Options]
    ) -> Floats:
        """As `predict`, part by part; the same but for the last bits."""
        check_choice("graph", graph, ("auto", "state", "batch"))
        use, bank = new_features == "use", self.copy()
        table, _, _ = bank._open(rows, **options)
        if use and graph != "state":
            # Columns are what they are in all rows, as in one call.
            encoder = bank.grow_encoder(table, **options)
            bank._state = bank._state._replace(encoder=encoder)
            options["policies"] = _SILENT
            bank = bank.lookahead(list(cut_table(table, _SPREAD_ROWS)), graph, **options)
        work = partial(_predict_part, bank, new_features, options)
        return np.concatenate(list(spread(work, cut_table(table, _SPREAD_ROWS))))

    def answer(
        self, rows: Any, graph: Graph, *, use: bool = True, **options: Unpack[Options]
    ) -> Prediction:
        """As `run`; one row, a dict of its cells, takes no frame where look-ups do."""
        if isinstance(rows, Mapping):
            call = self._run_row(rows, graph, use, **options)
            if call is not None:
                return call
        return self.run(rows, graph, use=use, **options)

    def run(
        self, rows: Any, graph: Graph, *, use: bool = True, **options: Unpack[Options]
    ) -> Prediction:
        """Predict rows as `predict` does, and tell from what; new features are used or dropped."""
        check_choice("graph", graph, ("auto", "state", "batch"))
        if not use:
            graph, options["policies"] = "state", _SILENT
        bank = self.copy()
        table, encoder, X = bank._encode(rows, graph != "state", lasting=False, **options)
        return bank._run(table, encoder, X, graph, use)

    def _run(
        self, table: Table, encoder: Encoder, X: MultiHot, graph: Graph, use: bool
    ) -> Prediction:
        """Predict rows that are encoded."""
        joined, model = self._joined(X, graph), self.model
        if len(joined) and self.embeddings:
            model = model.ahead(X, joined)
        use_new = use and self.embeddings > 0
        P0, embedded = model.predict_both(table, X, encoder.field_at, use_new)
        if not use or self._is_deaf:
            return Prediction(encoder, X, model, P0, None, None, None, P0)
        new, votes, evidence = self.new_part(X), None, self.joint or self.evidence
        if evidence is not None:
            if graph != "state" and self.evidence is not None and new.nnz:
                names = FeatureNames(encoder, self.n_observed, self.n_observed)
                evidence = self.evidence.join(new, P0, every=graph == "batch", names=names)
            votes = evidence.votes(new, P0)
        again = _predict_again(self.retrained, table, X, encoder)
        call = Prediction(encoder, X, model, P0, evidence, votes, again, P0)
        return call._replace(outputs=self.weigh(call, X, P0, embedded, new=new))

    def _run_row(
        self, cells: Mapping[str, Any], graph: Graph, use: bool, **options: Unpack[Options]
    ) -> Prediction | None:
        """As `run`, of one row, by look-ups alone; None where something in it needs a frame.

        What is left to a frame: what a policy warns of or refuses, columns that are declared to
        come, and cells that `Encoder.look_up` does not take.
        """
        check_choice("graph", graph, ("auto", "state", "batch"))
        policies = _SILENT if not use else options.get("policies") or self.policies
        overrides, unused = options.get("overrides"), options.get("exclude")
        overrides = self.overrides if overrides is None else overrides
        unused = self._unused(unused)
        bank = self.copy()
        encoder = bank.encoder
        if unused:
            if not all(is_simple(cells[name]) for name in unused if name in cells):
                return None
            cells = {name: cell for name, cell in cells.items() if name not in unused}
        row = encoder.look_up(cells)
        unseen = None if row is None else new_in_row(encoder, cells, row, policies, overrides)
        if row is None or unseen is None:
            return None
        ids, values, model = row.ids, row.values, bank.model
        if graph == "state" or not use:
            unseen = []
        elif unseen and self.embeddings and isinstance(model, Network) and model.computes_new:
            # Values that only this row has get ids beyond the known ones, for this call.
            if any(field is None for field in unseen):
                return None
            encoder = encoder.with_unnamed([field for field in unseen if field is not None])
            ids = [*ids, *range(bank.encoder.n_features, encoder.n_features)]
            values = [*values, *([1.0] * len(unseen))]
        table = _NO_COLUMNS
        if isinstance(model, Wrapped) or isinstance(bank.retrained, Wrapped):
            if not cells:  # a frame of no columns would have no row either
                return None
            table = read_table(cells)
        X = MultiHot.unchecked(
            np.array([0, len(ids)]),
            np.array(ids, dtype=np.int32),
            encoder.n_features,
            np.array(values, dtype=np.float32) if encoder.has_values else None,
        )
        return bank._run(table, encoder, X, graph if use else "state", use)

    @property
    def _is_deaf(self) -> bool:
        """Whether outputs are P0: a probe refused what is new, and no label has said otherwise."""
        mixture = self.mixture
        return mixture is not None and not mixture.trusts_evidence and not mixture.n_labels

    def weigh(
        self,
        call: Prediction,
        X: MultiHot,
        P0: Floats,
        embedded: Floats,
        at: NDArray[np.intp] | None = None,
        new: MultiHot | None = None,
    ) -> Floats:
        """Outputs (N, C) of rows of a call: what is known without labels, then what labels say.

        Parameters
        ----------
        X, P0, embedded
            The rows, and the model's predictions without and with embeddings of new features.
        at
            (N,) their places in the call; None: they are its rows.
        new
            Their `new_part`, where it is known.
        """
        votes, again = call.votes, call.retrained
        if at is not None:
            votes = None if votes is None else votes[at]
            again = None if again is None else again[at]
        new = self.new_part(X) if new is None else new
        moved = self._move(call.evidence, new, P0, embedded, votes)
        if self.mixture is None:
            return moved
        return self.mixture.predict(X, P0, moved, again)

    def _move(
        self,
        evidence: LiveEvidence | JointEvidence | None,
        new: MultiHot,
        P0: Floats,
        embedded: Floats,
        votes: Floats | None,
    ) -> Floats:
        """(N, C) predictions that use what is known of new features without labels."""
        P = embedded
        if 0 < self.embeddings != 1:
            e = self.embeddings * (_logarithms(embedded, self.task) - _logarithms(P0, self.task))
            P = combine(P0, e, self.task)
        if evidence is None:
            return P
        mixture, live = self.mixture, self.evidence
        if live is None or mixture is None or mixture.trusts_evidence:
            return evidence.move(P, new, votes)
        # WHY: however many labels there are: what a row teaches must not depend on how the rows
        # before it were cut into calls.
        return live.move(P, new, votes if evidence is live else None, live.cautious)

    def lookahead(
        self,
        frames: Iterable[Any],
        graph: Graph = "auto",
        **options: Unpack[Options],
    ) -> FeatureBank:
        """Copy the bank and let the copy see the rows of the frames, as `predict` does with its.

        Predicting each part of a large file on it with ``graph="state"`` gives what one call with
        the whole file would.

        Parameters
        ----------
        frames
            Rows; a list or whatever else can be gone through again, for evidence of two sweeps
            (`Pooling.n_sweeps`) reads them twice.
        graph
            "auto": only features of which the state has seen less learn from the rows.
        options
            exclude, overrides, policies: see `predict`.
        """
        check_choice("graph", graph, ("auto", "state", "batch"))
        ahead = self.copy()
        if ahead.evidence is not None and graph != "state":
            joint = JointEvidence(ahead.evidence, graph == "batch")
            ahead._state = ahead._state._replace(joint=joint)
        n_sweeps = 1 if ahead.joint is None else ahead.joint.pooling.n_sweeps
        if n_sweeps > 1 and iter(frames) is frames:
            raise InputError(
                "the frames can be gone through once, and evidence of this bank takes "
                f"{n_sweeps} sweeps: give a list, or an object that can be iterated again."
            )
        for sweep in range(n_sweeps):
            if sweep:
                graph, options["policies"] = "state", _SILENT  # they are known by now
            parts = ahead._see(frames, graph, **options)
            if ahead.joint is None:
                collections.deque(parts, maxlen=0)
            else:
                ahead.joint.sweep(parts)
        return ahead

    def _see(
        self, frames: Iterable[Any], graph: Graph, **options: Unpack[Options]
    ) -> Iterator[tuple[MultiHot, Floats]]:
        """New features and P0 of the rows of frames; the bank learns from them unless "state"."""
        for encoder, X, P0 in self._look(frames, graph, **options):
            joined, model = self._joined(X, graph), self.model
            if len(joined):
                model = model.copy()
                model.observe(X, joined)
            self._state = self._state._replace(encoder=encoder, model=model)
            if self.joint is not None:
                self.joint.names = FeatureNames(encoder, self.n_observed, self.n_observed)
            yield self.new_part(X), P0

    def _look(
        self, frames: Iterable[Any], graph: Graph, **options: Unpack[Options]
    ) -> Iterator[tuple[Encoder, MultiHot, Floats]]:
        """Rows as features of an encoder that knows them, and P0; the encoder grows with frames."""
        if executor() is None or self._apart_fault():
            for frame in frames:
                table, encoder, X = self._encode(frame, graph != "state", **options)
                yield encoder, X, self.model.predict_both(table, X, encoder.field_at)[0]
            return
        work = partial(_look_at_part, self.copy(), graph != "state", options)
        for first, grown, X, P0 in spread(work, frames):
            encoder, numbers = self._take(first, grown)
            yield encoder, numbers.rename(X), P0

    def _joined(self, X: MultiHot, graph: Graph) -> NDArray[np.int32]:
        """Ids of the features for which the rows that are predicted count."""
        if graph == "state":
            return X.ids[:0]
        if graph == "batch":
            return np.unique(X.ids)
        new = X.ids[X.ids >= self.n_observed]
        new = new[self._state.rows.take(new) == 0] if len(new) else new
        return np.unique(new) if len(new) else new  # WHY: of nothing it takes as long as of much

    # ---- reading rows --------------------------------------------------------------------------

    def _open(
        self,
        rows: Any,
        *,
        exclude: Sequence[str] | None = None,
        overrides: Schema | None = None,
        policies: Policies | None = None,
    ) -> tuple[Table, Schema, Policies]:
        """Read rows, without the columns that are not used; the options, or the bank's own."""
        table, unused = read_table(rows), self._unused(exclude)
        if unused:
            table = table.select(name for name in table.columns if name not in unused)
        return table, self.overrides if overrides is None else overrides, policies or self.policies

    def _unused(self, exclude: Sequence[str] | None) -> Sequence[str]:
        """Columns that are no features."""
        unused = self.exclude if exclude is None else exclude
        return unused if self.source is None else (*unused, self.source)

    def _read_voters(self, table: Table) -> Voters | None:
        """(N,) a hash of each row's source; rows without one are one source together."""
        if self.source is None:
            return None
        if self.source not in table.columns:
            warnings.warn(
                f"the rows have no column {self.source!r}, which names their source: they count as "
                "one source together.",
                OpenWorldWarning,
                stacklevel=4,
            )
            return np.repeat(hash_keys(pl.Series([""])), table.n_rows)
        try:  # WHY not a cast: 7 and 7.0 are one source, as they are one value
            names = text_of(table.columns[self.source], self.source)
        except InputError:
            dtype = table.columns[self.source].dtype
            raise InputError(
                f"the column {self.source!r}, which names the source of rows, holds {dtype}: give "
                "texts or numbers."
            ) from None
        return hash_keys(names.fill_null(""))

    def _encode(
        self,
        rows: Any,
        grow: bool,
        *,
        lasting: bool = True,
        meeting: Meeting | None = None,
        **options: Unpack[Options],
    ) -> tuple[Table, Encoder, MultiHot]:
        """Rows, an encoder (grown by what the policies let in), and X; changes nothing."""
        (table, overrides, policies), encoder = self._open(rows, **options), self.encoder
        allowed = enforce(encoder, table, policies, overrides)
        self._warn_of_missing(table, policies)
        if grow:
            numeric = self.meta.get("numeric", "buckets")
            encoder = allowed.grow(
                encoder, table, overrides, numeric, lasting=lasting, meeting=meeting
            )
        return table, encoder, encoder.encode(table)

    def _warn_of_missing(self, table: Table, policies: Policies) -> None:
        """Tell of known columns that are missing and on which the model leans."""
        leans: Mapping[str, float] = {} if policies is _SILENT else self.meta.get("leans") or {}
        missing = {name: moved for name, moved in leans.items() if name not in table.columns}
        if not missing or not table.n_rows:
            return
        told = (f"{name!r} (predictions move by {moved:.2f})" for name, moved in missing.items())
        warnings.warn(
            f"the model leans on columns that are missing: {', '.join(told)}; give them, or choose "
            "missing_columns='error' to be stopped.",
            OpenWorldWarning,
            stacklevel=5,
        )

    def new_part(self, X: MultiHot) -> MultiHot:
        """(N, D' - D) the new features of rows, numbered from 0; values are parts of a row."""
        is_new = X.ids >= self.n_observed
        n_features = X.n_features - self.n_observed
        if not is_new.any():
            nothing = None if X.values is None else X.values[:0]
            return MultiHot.unchecked(np.zeros_like(X.row_ptr), X.ids[:0], n_features, nothing)
        places = is_new.nonzero()[0]
        # The new ones before each row.  WHY two ways: of one row, which a request waits for, it is
        # known.
        row_ptr = np.array([0, len(places)]) if X.n_rows == 1 else places.searchsorted(X.row_ptr)
        ids = X.ids[places] - np.int32(self.n_observed)
        if X.values is None:
            return MultiHot.unchecked(row_ptr, ids, n_features)
        # WHY: a part of a row counts as such; a number that an edge carries tells no part of one.
        values = X.values[places]
        part = (values >= 0) & (values <= 1)
        values = np.where(part, values, np.float32(1))
        return MultiHot.unchecked(row_ptr, ids, n_features, values)

    # ---- learning without training -------------------------------------------------------------

    def observe(
        self,
        rows: Any,
        y: NDArray[Any] | None = None,
        *,
        seen: bool = False,
        weight: NDArray[np.float64] | None = None,
        retrain: Retrain | None = None,
        keep: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Add rows to the state: new columns and values get ids, and all their rows count.

        The model is not trained.  Labels are learned from at once (`openfate.openworld.Mixture`).
        A call that fails, by an error in the rows, for want of memory or because it is interrupted,
        leaves the bank as it was.

        Parameters
        ----------
        y
            Labels, where they have come, as `read_labels` gives them: (N,) class numbers, (N, K)
            labels, (N,) numbers.
        seen
            Whether these rows were observed before, without labels.
        weight
            (N,) how much each label counts, above 0; the largest counts as one row.
        retrain
            Trains the model again, as one more way to predict; called whenever labels have grown
            by a quarter.
        keep
            Gives what is `kept` where the call succeeds, of what was: rows, for `retrain` of later
            calls.
        options
            exclude, overrides, policies of this call; None: the bank's own.
        """
        with self.lock:
            if self._state.fork is not None:
                if retrain is not None or keep is not None:
                    raise InputError("a bank that was forked cannot train again: merge it first.")
                self.add(self.note(rows, y, seen=seen, weight=weight, **options))
                return
            if retrain is None and keep is None and self._is_spread(rows):
                if not self._apart_fault():
                    self._observe_spread(rows, y, seen, weight, **options)
                    return
            later, newcomers = self.copy(), self._state.newcomers
            meeting = None
            if newcomers is not None and y is None:
                meeting = newcomers.meet(None if "*" in self._bounds else self._bounds)
            rows = read_table(rows)
            voter = self._read_voters(rows)
            with uncollected(rows):
                table, encoder, X = later._encode(rows, True, meeting=meeting, **options)
            if y is None or later.mixture is None:
                P0 = None
                if later.evidence is not None:
                    P0, _ = later.model.predict_both(table, X, encoder.field_at)
                if not seen:
                    later._count(X, P0, encoder, voter)
            else:
                told = later._tell(table, encoder, X, y, seen, weight, voter)
                later._learn(told, encoder, table, retrain)
            n_rows = later.n_rows + (0 if seen else X.n_rows)
            kept = later.kept if keep is None else keep(later.kept)
            later._state = later._state._replace(
                encoder=encoder,
                n_rows=n_rows,
                kept=kept,
                newcomers=newcomers if meeting is None else meeting.later(),
            )
            later._evict()
            self._state = later._state

    def _observe_spread(
        self,
        rows: Any,
        y: NDArray[Any] | None,
        seen: bool,
        weight: NDArray[np.float64] | None,
        **options: Unpack[Options],
    ) -> None:
        """As `observe`, by notes of parts: the same but for the last bits."""
        bank = self.copy()
        table, _, _ = bank._open(rows, **options)
        # Columns are what they are in all rows, as in one call.
        encoder = bank.grow_encoder(table, **options)
        bank._state = bank._state._replace(encoder=encoder)
        labels = None
        if y is not None and bank.mixture is not None:
            labels = bank.mixture.check(y, table.n_rows)
        scaled = None if weight is None else _scale_weights(weight, table.n_rows)
        parts = (
            (part, *(None if a is None else a[at] for a in (labels, scaled)))
            for number, part in enumerate(cut_table(table, _SPREAD_ROWS))
            for at in [slice(number * _SPREAD_ROWS, (number + 1) * _SPREAD_ROWS)]
        )
        options["policies"] = _SILENT
        bank.add(*spread(partial(_note_part, bank.copy(), seen, options), parts))
        self._state = bank._state

    def _evict(self) -> None:
        """Forget new features where they are too many."""
        now, n_known = self._state, self._state.encoder.n_features
        gone = self._find_too_many() if self._bounds else np.empty(0, np.int64)
        if not len(gone):
            return
        kept = np.setdiff1d(np.arange(n_known), gone)
        n_evicted = now.n_evicted + len(gone)
        warnings.warn(
            f"max_new_features={self.max_new_features}: {len(gone)} new features, those with the "
            f"fewest rows, were forgotten ({n_evicted} so far); allow more, or exclude columns "
            "that name each row.",
            OpenWorldWarning,
            stacklevel=4,
        )
        retrained = now.retrained
        if retrained is not None:
            # A wrapped model tells texts by their places among ids: it goes with the first of them.
            known = np.arange(retrained.n_observed)
            if isinstance(retrained, Network):
                retrained = retrained.select(kept)
            elif not np.array_equal(kept[: len(known)], known):
                retrained = None
        new = kept[self.n_observed :] - self.n_observed
        n_new, evidence, mixture = n_known - self.n_observed, now.evidence, now.mixture
        self._state = now._replace(
            encoder=now.encoder.select(kept),
            model=now.model.select(kept),
            rows=PagedArray(now.rows.take(kept)),
            evidence=None if evidence is None else evidence.select(new, n_new),
            mixture=None if mixture is None else mixture.select(kept, n_known),
            retrained=retrained,
            n_evicted=n_evicted,
        )

    def _find_too_many(self) -> NDArray[np.int64]:
        """Ids of the new features that are to be forgotten."""
        now, D = self._state, self.n_observed
        may_go = now.encoder.is_open
        may_go[:D] = False
        ids = np.flatnonzero(may_go)  # the oldest first
        labelled = np.isin(ids, [] if now.mixture is None else now.mixture.features)
        ids = ids[np.lexsort((now.rows.take(ids), labelled))]  # stable: the oldest stay first
        field_of, names = now.encoder.field_at[:], now.encoder.schema.names
        gone = np.zeros(len(ids), dtype=bool)
        # Those of single fields first: what they leave out may be enough for all together.
        for name, most in sorted(self._bounds.items(), key=lambda bound: bound[0] == "*"):
            if name == "*":
                own, n_known = ~gone, len(field_of) - D - np.count_nonzero(gone)
            elif name in names:
                field = names.index(name)
                own, n_known = field_of[ids] == field, np.count_nonzero(field_of[D:] == field)
            else:
                continue
            if n_known > most:
                # WHY a tenth more: what is left is numbered anew, which takes as long as it is.
                gone[np.flatnonzero(own)[: n_known - most + most // 10]] = True
        return ids[gone]

    def count(self, X: MultiHot) -> None:
        """Add rows that are encoded already, as those of training are, to the sums."""
        with self.lock:
            later = self.copy()
            for part in X.parts():
                later._add(part, None, later.encoder)
            self._state = later._state._replace(n_rows=later.n_rows + X.n_rows)

    def _count(
        self, X: MultiHot, P0: Floats | None, encoder: Encoder, voter: Voters | None = None
    ) -> None:
        """Add unlabelled rows to the sums, which fade at fixed numbers of rows."""
        if self.half_life is None:
            self._add(X, P0, encoder, voter)
            return
        start, life = 0, self.half_life
        while start < X.n_rows:
            n_counted = self._state.n_counted
            step = _STEPS * n_counted // life
            until = -(-(step + 1) * life // _STEPS) - n_counted  # rows to the next one
            at = np.arange(start, min(X.n_rows, start + until))
            votes, who = None if P0 is None else P0[at], None if voter is None else voter[at]
            self._add(X.select_rows(at), votes, encoder, who)
            start, n_counted = start + len(at), n_counted + len(at)
            self._state = self._state._replace(n_counted=n_counted)
            later = _STEPS * n_counted // life
            if later > step:
                self._decay(2.0 ** ((step - later) / _STEPS), later)

    def _decay(self, factor: float, step: int) -> None:
        """Let all that is known of new features without labels count less."""
        model, evidence = self.model.copy(), self.evidence
        model.decay(factor)
        if evidence is not None:
            evidence = evidence.copy()
            evidence.decay(factor, step)
        self._state = self._state._replace(model=model, evidence=evidence)

    def _add(
        self, X: MultiHot, P0: Floats | None, encoder: Encoder, voter: Voters | None = None
    ) -> None:
        """Add unlabelled rows to the sums; P0 (N, C), and who votes, are for evidence."""
        model, evidence = self.model.copy(), self.evidence
        model.observe(X)
        counts, rows, places = self._state.rows.open(X.ids, X.n_features)
        np.add.at(rows, places, 1.0)
        if P0 is not None and evidence is not None:
            evidence = evidence.copy()
            names = FeatureNames(encoder, self.n_observed, self.n_observed)
            evidence.observe(self.new_part(X), P0, names, voter)
        self._state = self._state._replace(model=model, rows=counts, evidence=evidence)

    def _tell(
        self,
        table: Table,
        encoder: Encoder,
        X: MultiHot,
        y: NDArray[Any],
        seen: bool,
        weight: NDArray[np.float64] | None,
        voter: Voters | None = None,
    ) -> Told:
        """Labelled rows, with what is predicted for them whatever came before."""
        assert self.mixture is not None
        labels = self.mixture.check(y, X.n_rows)
        P0, _ = self.model.predict_both(table, X, encoder.field_at)
        again = _predict_again(self.retrained, table, X, encoder)
        return Told(X, P0, labels, _scale_weights(weight, X.n_rows), seen, again, voter)

    def _learn(
        self,
        told: Told,
        encoder: Encoder,
        table: Table = _NO_COLUMNS,
        retrain: Retrain | None = None,
    ) -> None:
        """Learn from labels; `table` is of the same rows, for a model that is trained again."""
        assert self.mixture is not None
        mixture, retrained, X, P0 = self.mixture.copy(), self.retrained, told.X, told.P0
        counted = np.full(X.n_rows, told.seen)
        again, predicted_by = told.again, retrained
        for part in mixture.blocks(X.n_rows):
            at = np.arange(X.n_rows)[part]
            block = X.select_rows(at)
            embedded = self._embed(block, P0[at], encoder)  # by sums as of this block
            votes = P0[at] if told.seen else None
            moved = self._move(self.evidence, self.new_part(block), P0[at], embedded, votes)
            if retrained is not predicted_by:
                again, predicted_by = _predict_again(retrained, table, X, encoder), retrained
            who = None if told.voter is None else told.voter[at]
            rows = Labelled(block, P0[at], moved, told.y[at], told.weight[at], counted[at], who)
            waiting = [*mixture.uncounted(), *([] if told.seen else [rows])]
            if mixture.learn(rows, None if again is None else again[at]):
                for more in waiting:
                    self._count(more.X.widen(X.n_features), more.P0, encoder, more.voter)
                names = FeatureNames(encoder, self.n_observed)
                mixture.solve(partial(self._move_again, encoder), names)
                model = None if retrain is None else retrain(part.stop, encoder)
                retrained = retrained if model is None else model
        self._state = self._state._replace(mixture=mixture, retrained=retrained)

    def _embed(self, X: MultiHot, P0: Floats, encoder: Encoder) -> Floats:
        """(N, C) predictions that use the model's embeddings of new features, where it has them."""
        if not self.embeddings or not isinstance(self.model, Network):
            return P0
        return self.model.predict_both(_NO_COLUMNS, X, encoder.field_at, True)[1]

    def _move_again(self, encoder: Encoder, rows: Labelled) -> Floats:
        """(N, C) counted rows, moved by what is known by now; their own votes left out."""
        embedded = self._embed(rows.X, rows.P0, encoder)
        return self._move(self.evidence, self.new_part(rows.X), rows.P0, embedded, rows.P0)

    # ---- observing apart -----------------------------------------------------------------------

    def note(
        self,
        rows: Any,
        y: NDArray[Any] | None = None,
        *,
        seen: bool = False,
        weight: NDArray[np.float64] | None = None,
        **options: Unpack[Options],
    ) -> Note:
        """What `observe` would learn from rows, for a bank elsewhere to `add`; changes nothing.

        Parameters
        ----------
        y, seen, weight, options
            As in `observe`.

        Examples
        --------
        >>> import polars as pl
        >>> from openfate import FATEClassifier
        >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
        >>> bank = FATEClassifier(epochs=5).fit(rows, rows["job"] == "nurse").bank_
        >>> notes = [bank.note(pl.DataFrame({"job": [job]})) for job in ("judge", "clown")]
        >>> bank.add(*notes)
        >>> bank.n_rows, bank.encoder.decode(3)
        (62, ('job', 'clown'))
        """
        bank = self.copy()
        bank._check_apart()
        table, encoder, X = bank._encode(rows, True, **options)
        calls: tuple[Call, ...] = ()
        if y is not None and bank.mixture is not None:
            calls = (bank._tell(table, encoder, X, y, seen, weight),)
        elif not seen:
            P0 = None
            if bank.evidence is not None:
                P0, _ = bank.model.predict_both(table, X, encoder.field_at)
            calls = (bank._counted(X, P0, encoder),)
        first = bank.encoder.n_features
        return Note(first, tuple(encoder.growth(first)), calls)

    def _check_apart(self) -> None:
        """Refuse a bank of which what rows teach is no sum."""
        if fault := self._apart_fault():
            raise InputError(f"{fault}; observe in one process.")

    def _apart_fault(self) -> str | None:
        """Why rows cannot be looked at apart from one another; None if they can."""
        if self.max_new_features is not None:
            return (
                f"max_new_features={self.max_new_features}: what is known then follows time, and "
                "cannot be learned apart"
            )
        if self.half_life is not None:
            return (
                f"half_life={self.half_life}: what is known then follows time, and cannot be "
                "learned apart"
            )
        if self.source is not None:
            return (
                f"source={self.source!r}: how much a row counts depends on the rows of its source "
                "before it, and cannot be learned apart"
            )
        members = self.model.members if isinstance(self.model, Network) else []
        if any(member.recompose == "all" for member in members):
            return (
                "recompose='all': the model's predictions change with every row that it observes, "
                "so that evidence cannot be learned apart"
            )
        return None

    def _counted(self, X: MultiHot, P0: Floats | None, encoder: Encoder) -> Counted:
        """What unlabelled rows add to the sums; P0 (N, C) is for evidence."""
        local, ids = X.touched_features()
        rows = local.feature_degree.astype(np.float64)
        found = Counted(X.n_rows, ids, rows, self.model.hear(X))
        if P0 is None or self.evidence is None:
            return found
        state, D = self.evidence.state, self.n_observed
        new, names = ids[ids >= D] - np.int32(D), FeatureNames(encoder, D, D)
        part = self.new_part(X).select_features(new)
        votes = state.bound(P0)
        sample = Sample.of(part, votes, state.task, lambda local: names(new[local]))
        return replace(found, shown=Shown(state.blank().add(part, votes), sample))

    def add(self, *notes: Note) -> None:
        """Learn what `note` found, here or in another process, in this order.

        Parameters
        ----------
        notes
            Of a bank of which this one is a copy, whatever each has observed since.

        Notes
        -----
        What is known afterwards is what `observe` would have learned from the rows in the order of
        the notes: sums of unlabelled rows are equal up to rounding, and labelled rows are learned
        from here, one note after the other.  Fails whole or not at all.
        """
        with self.lock:
            later = self.copy()
            later._check_apart()
            for note in notes:
                calls = later._add_note(note)
                fork = later._state.fork
                if fork is not None:
                    later._state = later._state._replace(fork=fork.plus(calls))
            self._state = later._state

    def _add_note(self, note: Note) -> list[Call]:
        """Learn from a note; its calls, with the ids that features have here."""
        encoder, numbers = self._take(note.first, note.grown)
        calls = [call.renumber(numbers) for call in note.calls]
        self._state = self._state._replace(encoder=encoder)
        for call in calls:
            if isinstance(call, Counted):
                self._add_counted(call)
                n_rows = call.n_rows
            else:
                self._learn(call, encoder)
                n_rows = 0 if call.seen else call.X.n_rows
            self._state = self._state._replace(n_rows=self.n_rows + n_rows)
        return calls

    def _take(self, first: int, grown: Sequence[Growth]) -> tuple[Encoder, Numbers]:
        """The encoder with what another one has `grown` by since it knew `first` features."""
        if first > self.encoder.n_features:
            raise InputError(
                f"the notes are of a bank that knew {first} features, this one knows "
                f"{self.encoder.n_features}: add them to a copy of the same bank, or a later one."
            )
        encoder, number = self.encoder.grow_by(grown)
        later = np.array([number[first + at] for at in range(len(number))], dtype=np.int32)
        return encoder, Numbers(first, later, encoder.n_features)

    def _add_counted(self, more: Counted) -> None:
        model, evidence = self.model.copy(), self.evidence
        n_features = self.encoder.n_features
        model.merge(more.sums, n_features)
        counts, rows, places = self._state.rows.open(more.ids, n_features)
        rows[places] += more.rows
        if evidence is not None and more.shown is not None:
            evidence = evidence.copy()
            new = more.ids[more.ids >= self.n_observed] - self.n_observed
            evidence.merge(*more.shown, new)
        self._state = self._state._replace(model=model, rows=counts, evidence=evidence)

    @property
    def is_forked(self) -> bool:
        """Whether it keeps notes of what it observes: see `fork`."""
        return self._state.fork is not None

    def fork(self) -> FeatureBank:
        """Copy the bank; the copy keeps notes of all that it observes, for `merge`.

        Copies may be saved, and go on on other machines.

        Examples
        --------
        >>> import polars as pl
        >>> from openfate import FATEClassifier
        >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
        >>> bank = FATEClassifier(epochs=5).fit(rows, rows["job"] == "nurse").bank_
        >>> one, other = bank.fork(), bank.fork()
        >>> one.observe(pl.DataFrame({"job": ["judge"]}))
        >>> other.observe(pl.DataFrame({"job": ["clown", "judge"]}))
        >>> merged = FeatureBank.merge([one, other])
        >>> merged.n_rows, merged.encoder.n_features, merged.count_rows(2)
        (63, 4, 2)
        """
        bank = self.copy()
        bank._check_apart()
        bundle = bank._without_notes().to_bundle()
        fork = Fork(hash_bundle(bundle), bank.encoder.n_features)
        bank._state = bank._state._replace(fork=fork)
        return bank

    def _without_notes(self) -> FeatureBank:
        bank = self.copy()
        bank._state = bank._state._replace(fork=None)
        return bank

    @classmethod
    def merge(cls, forks: Sequence[FeatureBank]) -> FeatureBank:
        """One bank that has observed what all of these have, each since `fork`.

        Parameters
        ----------
        forks
            Forks of one bank, in the order in which their labels count.

        Returns
        -------
            What one bank would be that had observed their rows one fork after the other: see `add`.
            It keeps no notes.
        """
        if not forks or any(bank._state.fork is None for bank in forks):
            raise InputError(
                "merge takes banks that were forked: make them by FeatureBank.fork, or by "
                "`openfate observe --part`."
            )
        first, *others = (bank.copy() for bank in forks)
        own = first._state.fork
        for number, bank in enumerate(others, 2):
            fork = bank._state.fork
            assert fork is not None
            assert own is not None
            if fork.base != own.base:
                raise InputError(
                    f"bank {number} was forked from another bank than the first: merge forks of "
                    "one bank."
                )
            first._add_note(Note(fork.first, tuple(bank.encoder.growth(fork.first)), fork.calls))
        return first._without_notes()

    def read_labels(self, y: Any, n_rows: int) -> NDArray[Any]:
        """Labels as `observe` takes them, of those that `fit` took; an unknown class is refused.

        Parameters
        ----------
        y
            (N,) classes by their names, (N, K) labels of 0 and 1, or (N,) numbers.
        """
        labels = read_labels(y, n_rows)
        if self.task == "regression":
            return target_numbers(labels)
        if self.task == "multilabel":
            return label_matrix(labels, len(self.classes))
        return class_numbers(labels, self.classes)

    def hold(self, kept: tuple[Any, ...]) -> None:
        """Keep what the bank that this one was saved from had `kept`."""
        with self.lock:
            self._state = self._state._replace(kept=kept)

    def grow_encoder(self, rows: Any, **options: Unpack[Options]) -> Encoder:
        """The encoder with ids for what is new in rows and let in; the bank is not changed."""
        return self._encode(rows, True, **options)[1]

    def find_row_names(self) -> list[str]:
        """Columns of training in whose texts nearly every row has one of its own."""
        D = self.n_observed
        text = self.encoder.is_open[:D]
        field_of = self.encoder.field_at[:D][text]
        fields = self.encoder.schema.fields
        n_values = np.bincount(field_of, minlength=len(fields))
        n_cells = np.bincount(field_of, self.rows[:D][text], len(fields))
        told = zip(fields, n_values, n_cells, strict=True)
        return [f.name for f, n, m in told if f.kind == "categorical" and names_rows(n, m)]

    def schema_report(self, rows: Any, **options: Unpack[Options]) -> SchemaReport:
        """Which columns and values of rows are new, missing or known, and what is done with them.

        Parameters
        ----------
        options
            exclude, overrides, policies of this call; None: the bank's own.
        """
        bank = self.copy()
        table, overrides, policies = bank._open(rows, **options)
        return compare(bank.encoder, table, policies, overrides, note=bank.describe_usage())

    def describe_usage(self) -> str:
        """How new features are used, what a probe said to that, and what labels have changed."""
        said, mixture = self._describe_unlabelled(), self.mixture
        if self.n_evicted:
            said += (
                f" {self.n_evicted} new features were forgotten: no more than "
                f"{self.max_new_features} are kept (max_new_features)."
            )
        if mixture is None or not mixture.n_labels:
            return said
        weights = mixture.describe()
        first = max(weights, key=lambda name: weights[name])
        return (
            f"{said} {mixture.n_labels} labels have taught it since: of the ways to predict "
            f"{first!r} weighs most ({weights[first]:.0%})."
        )

    def _describe_unlabelled(self) -> str:
        """How new features are used before any label, in a sentence or two."""
        decision = self.meta.get("decision")
        if self.embeddings and not decision:
            used = "New features are used through embeddings computed from their rows."
            if isinstance(self.model, Network) and self.model.n_fields is not None:
                used += (
                    " New columns are not: a network with pool='field_linear' has no weights for "
                    "them before a refit."
                )
            return used
        if self.evidence is None:
            return "New features are ignored: that is the model's strategy."
        if not decision:
            return "New features are used through evidence, with fixed settings."
        if decision["chosen"] == "none":
            used = "Without labels new features are not used"
        else:
            used = f"New features are used through {decision['chosen']}"
        return f"{used} (probe on validation rows: {decision['reason']})."

    # ---- copies and bundles --------------------------------------------------------------------

    def copy(self) -> FeatureBank:
        """An independent copy: the bank of this moment, at once and however much it knows.

        Examples
        --------
        >>> import polars as pl
        >>> from openfate import FATEClassifier
        >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
        >>> bank = FATEClassifier(epochs=5).fit(rows, rows["job"] == "nurse").bank_
        >>> before = bank.copy()
        >>> bank.observe(pl.DataFrame({"job": ["judge"]}))
        >>> bank.restore(before)
        >>> bank.n_rows
        60
        """
        bank = object.__new__(type(self))
        vars(bank).update(vars(self), meta=dict(self.meta), lock=threading.RLock())
        return bank

    def restore(self, earlier: FeatureBank) -> None:
        """Go back to the state of a copy that was made earlier."""
        own, other = ((b.task, b.classes, b.n_observed) for b in (self, earlier))
        if own != other:
            raise InputError(
                "this is no copy of the bank: it has other classes or features; give a copy of it."
            )
        with self.lock:
            self._state = earlier._state

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a bundle, whole or not at all: see `openfate.bank.bundle`."""
        write_bundle(self.to_bundle(), path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, trusted: bool = False) -> FeatureBank:
        """Read a bundle that `save` or an estimator wrote; needs no training data.

        Parameters
        ----------
        trusted
            Read a wrapped model that cannot be checked, too.  It may run code: only for bundles of
            people whom you would let work with your account.  See docs/security.md.
        """
        return cls.from_bundle(read_bundle(path), str(path), trusted=trusted)

    def to_bundle(self) -> Bundle:
        """Everything as plain values, of one moment."""
        bank = self.copy()
        (header, vocabulary), state = bank.encoder.to_parts(), bank.state()
        meta = {
            **bank.meta,
            **bank.model.settings(),
            "classes": plain_classes(bank.classes),
            "embeddings": bank.embeddings,
            "policies": bank.policies.to_dict(),
            "exclude": list(bank.exclude),
            "overrides": bank.overrides.to_json(),
            "max_new_features": bank.max_new_features,
            "source": bank.source,
            "half_life": bank.half_life,
        }
        if bank.evidence is not None:
            meta |= pooling_settings(bank.evidence)
        if bank.mixture is not None:
            meta["mixture"] = bank.mixture.settings()
        weights, estimator, retrained = bank.model.weights(), None, None
        if isinstance(bank.model, Wrapped):
            meta["estimator_format"], estimator = dump(bank.model.estimator)
        if bank.retrained is not None:
            meta["retrained"] = bank.retrained.settings()
            weights |= {f"retrained.{n}": array for n, array in bank.retrained.weights().items()}
            state |= {f"retrained.{n}": array for n, array in bank.retrained.state().items()}
        if isinstance(bank.retrained, Wrapped):
            meta["retrained"]["format"], retrained = dump(bank.retrained.estimator)
        return Bundle(header, vocabulary, weights, state, meta, estimator, retrained)

    def state(self) -> dict[str, NDArray[Any]]:
        """All running sums, by name: what `observe` changes besides the vocabulary."""
        now = self._state
        n_rows = np.array([now.n_rows], dtype=np.int64)
        state = {"rows": now.rows.to_array(), "n_rows": n_rows, **now.model.state()}
        if now.newcomers is not None:
            state |= {"newcomers": now.newcomers.bits, "n_evicted": np.array([now.n_evicted])}
        if self.half_life is not None:
            state["n_counted"] = np.array([now.n_counted])
        if now.evidence is not None:
            state |= {f"evidence.{n}": array for n, array in now.evidence.to_arrays().items()}
        if now.mixture is not None:
            state |= {f"mixture.{n}": array for n, array in now.mixture.to_arrays().items()}
        if now.fork is not None:
            state |= {f"fork.{n}": array for n, array in now.fork.to_arrays().items()}
        return state

    @classmethod
    def from_bundle(
        cls, bundle: Bundle, source: str = "bundle", *, trusted: bool = False
    ) -> FeatureBank:
        """The bank that `to_bundle` took apart; refuses parts that do not fit together."""
        arguments, rows, n_rows, fork = unpack(bundle, source, trusted)
        bank = cls(**arguments)
        bank._state = bank._state._replace(rows=PagedArray(rows), n_rows=n_rows, fork=fork)
        if bank.max_new_features is not None:
            bits, n_evicted = (bundle.state[name] for name in ("newcomers", "n_evicted"))
            bank._state = bank._state._replace(
                newcomers=Newcomers(bits), n_evicted=int(n_evicted[0])
            )
        if bank.half_life is not None:
            n_counted = int(bundle.state["n_counted"][0])
            bank._state = bank._state._replace(n_counted=n_counted)
        return bank


def _predict_part(bank: FeatureBank, new_features: Use, options: Options, part: Table) -> Floats:
    return bank.predict(part, graph="state", new_features=new_features, **options)


def _look_at_part(
    bank: FeatureBank, grow: bool, options: Options, rows: Any
) -> tuple[int, list[Growth], MultiHot, Floats]:
    table, encoder, X = bank._encode(rows, grow, **options)
    P0, _ = bank.model.predict_both(table, X, encoder.field_at)
    first = bank.encoder.n_features
    return first, encoder.growth(first), X, P0


def _note_part(
    bank: FeatureBank, seen: bool, options: Options, part: tuple[Table, Any, Any]
) -> Note:
    rows, y, weight = part
    return bank.note(rows, y, seen=seen, weight=weight, **options)


def _read_bounds(most: int | Mapping[str, int] | None) -> dict[str, int]:
    """How many new features each field may have; "*" is all fields together."""
    if not isinstance(most, Mapping):
        return {} if most is None else {"*": check_integer("max_new_features", most, 0)}
    for name in most:
        if not isinstance(name, str):
            raise InputError(
                f"max_new_features: the key {name!r} is not a field's name; give text."
            )
    return {n: check_integer(f"max_new_features[{n!r}]", m, 0) for n, m in most.items()}


def _predict_again(
    retrained: Model | None, table: Table, X: MultiHot, encoder: Encoder
) -> Floats | None:
    """(N, C) of the model that was trained again; None where there is none."""
    return None if retrained is None else retrained.predict_both(table, X, encoder.field_at)[0]


def _logarithms(P: Floats, task: Task) -> Floats:
    """(N, C) of which `combine` takes differences."""
    if task in ("multilabel", "regression"):
        return to_logits(P, task)
    return np.asarray(np.log(np.maximum(P, 1e-12)))


def _scale_weights(weight: NDArray[np.float64] | None, n_rows: int) -> Floats:
    """(N,) above 0 and at most 1: what the bound of a mixture needs."""
    if weight is None:
        return np.ones(n_rows)
    given = np.asarray(weight, np.float64)
    good = given.shape == (n_rows,) and np.isfinite(given).all() and bool((given > 0).all())
    if not good:
        what = f"has the shape {given.shape}"
        if given.shape == (n_rows,):
            what = f"holds {given[~(np.isfinite(given) & (given > 0))][0]:g}"
        raise InputError(f"sample_weight {what}: give {n_rows} finite numbers above 0.")
    return given / max(1.0, float(given.max(initial=0.0)))
