"""FATEClassifier and FATERegressor: FATE in scikit-learn manners, on data frames.

    fit -> training.train -> FATE.forward -> GraphSAGE.forward

    columns -> kinds -> ids -> train -> running sums -> FeatureBank

Strategies, which say what is trained and how new features are used:

    "fate"      the paper: one FATE with a 2-layer GraphSAGE, trained by hiding features in turn
    "auto"      a few plain networks trained with feature dropout; a probe on the validation rows
                decides whether evidence or embeddings of new features help, and how strong
    "evidence"  the same networks; evidence is used without a probe
    "none"      the same networks; new features are ignored

N rows, D features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from types import SimpleNamespace
from typing import Any, Literal, Self, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import Progress
from sklearn.utils import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight

from openfate import __version__
from openfate.bank import FeatureBank, Network, Retrain
from openfate.errors import InputError
from openfate.estimators.checkpoints import Checkpoints
from openfate.estimators.data import TrainingData, no_column, read_rows
from openfate.estimators.estimator import (
    BankClassifier,
    BankEstimator,
    BankRegressor,
    is_due,
    kept_rows,
    unchanged_on_error,
)
from openfate.estimators.jumps import find_jumps
from openfate.estimators.networks import (
    count_members,
    few_threads,
    fold_linear,
    grow_members,
    how_far,
    join_members,
    make_model,
    make_settings,
    narrow,
    plain_value,
    read_parameters,
    split_members,
    start_linear,
    start_sums,
    usual_numeric,
)
from openfate.estimators.scores import task_scores
from openfate.estimators.target import (
    LabelledRows,
    Target,
    find_rows,
    hash_rows,
    known_target,
    read_known,
    split_rows,
)
from openfate.estimators.usage import (
    EmbeddingNetwork,
    Usage,
    candidates,
    choose_usage,
    shares_to_hide,
)
from openfate.files import hold_folder
from openfate.models import FATE, Linear, Pool, RunningFATE
from openfate.openworld import (
    NONE,
    Decision,
    Novelty,
    Pooling,
    View,
    draw_hidden,
    judge,
)
from openfate.table import (
    DiskRows,
    Encoded,
    Encoder,
    Field,
    MultiHot,
    Numeric,
    Policy,
    RowCache,
    Schema,
    Table,
    encode_table,
    open_rows,
    time_numbers,
)
from openfate.training import History, Lines, Step, check_device, train

Strategy = Literal["auto", "fate", "evidence", "none"]
Fields = NDArray[np.integer]  # (D,) the field of each feature
Choice = tuple[Usage | None, Decision | None]

_SILENT = Pooling(strength=0.0)  # until labels come
_CAUTIOUS = Pooling(strength=0.5, alpha=10.0, relative=True)
# Of strategies that ask no probe.
_USAGE = {
    "fate": Usage(_SILENT, _SILENT, scale=1.0),
    "evidence": Usage(_CAUTIOUS, _CAUTIOUS),
    "none": None,
}
_VALIDATION = 10_000  # rows that tell when to stop; more would tell no more
# WHY: a probe fits several times, and only asks which way helps: fewer rows and steps tell it.
_PROBE_ROWS, _PROBE_STEPS, _PROBE_VALIDATION = 4_000, 96, 5_000
_KEPT_VALIDATION = 100_000  # validation rows that stay with an estimator, at most
_MEMORY = 1 << 30  # bytes
# What a fit holds at its peak for a cell of a frame, and for a byte of encoded rows (measured: 73
# and 4): ids, values, the training rows of both, and the order of a round.
_CELL_BYTES, _COPIES = 64, 4


class FATEEstimator(BankEstimator):
    """What the classifier and the regressor share; their signatures hold the parameters."""

    history_: History
    _training: LabelledRows | None

    @property
    def _numeric(self) -> Numeric:
        return usual_numeric(self.strategy) if self.numeric is None else self.numeric

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    # ---- fitting -------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, unlabelled: Any = None
    ) -> Self:
        """Learn from labelled rows, of any number.

        Parameters
        ----------
        X
            A pandas, polars or pyarrow frame, or an array (N, d).  Or rows that are read in
            batches, as often as needed: a polars LazyFrame, a pyarrow dataset, the path of a file
            (CSV, TSV, the same with .gz, Parquet), of a folder of them, or a list of paths.  They
            are encoded once, to disk, and stay there where they are larger than `memory_limit`; the
            model is that of the same rows in a frame.
        y
            (N,) classes of any type or numbers; of `FATEClassifier` also (N, K) labels of 0 and 1.
            Or the name of a column of `X`, as it must be where `X` is read in batches; there a list
            of names gives several labels.
        sample_weight
            (N,) how much each row counts.
        unlabelled
            Rows such as those to predict, with the columns and values that are new in them.  They
            tell the probe how much is new (the parameter `hidden_share`, where that is None), and
            are used for nothing else: nothing is trained on them.
        """
        with unchanged_on_error(self), ExitStack() as stack:
            data, later = self._read_data(X, y, unlabelled)
            data, weight = _drop_weightless(data, self._weigh(data.target, sample_weight))
            head, target = data.head(), data.target
            schema = Schema.from_frame(
                head.select(name for name in head.columns if name not in self._excluded),
                overrides=self._overrides,
                numeric=self._numeric,
            )
            seed = self._draw_seed()
            parts = split_rows(target, self.validation_share, seed, times=data.times)
            if self.strategy != "fate":  # PAPER: knows numbers as buckets
                schema = find_jumps(schema, head, target, parts[0], seed)
            encoded, keep = self._encode(data, schema, parts[1], seed, stack)
            encoder, X = encoded.encoder, encoded.X
            rows = LabelledRows(X.below(encoder.n_features), target, weight)
            share = self._expect_share(encoder, later)
            network, usage, decision = self._learn(rows, parts, encoder, seed, share, keep=keep)
            # WHY: what only validation rows have is new to the networks: extrapolated.
            self._set_bank(X, target, encoded.grown, network, usage)
            self._remember(rows, parts[1], decision)
            self._note_leans(pl.DataFrame(dict(head.columns)))
            return self

    def _read_data(self, X: Any, y: Any, unlabelled: Any) -> tuple[TrainingData, Table | None]:
        """What `fit` is given, whatever its form, and rows such as those to predict."""
        rows = open_rows(X)
        if rows is None:
            table, target, later = self._read_training(X, y, unlabelled)
            times = None if self.time is None else _times(table, self.time)
            data = TrainingData([table], tuple(table.columns), target, times, None, table)
            n_cells = table.n_rows * len(table.columns)
            is_large = _CELL_BYTES * n_cells > self.memory_limit
            return data.cut() if is_large else data, later
        _ = self._policies  # WHY: a wrong word is told before any work
        frames, columns, labels, times = read_rows(rows, y, self.time)
        target = self._join_target(labels)
        names = [y] if isinstance(y, str) else list(y)
        self.feature_names_in_ = np.array(columns, dtype=object)
        self.n_features_in_ = len(columns)
        self._target_name = tuple(name for name in names if name not in self._excluded)
        later = None if unlabelled is None else self._read(unlabelled)
        # WHY: of a query it takes a pass over its rows, and only a folder that stays asks for it.
        identity = None if self.cache is None else rows.identity
        return TrainingData(frames, columns, target, times, identity), later

    def _encode(
        self,
        data: TrainingData,
        schema: Schema,
        validation: NDArray[np.intp],
        seed: int,
        stack: ExitStack,
    ) -> tuple[Encoded, Checkpoints | None]:
        """Rows of ids, in memory or on disk, and what keeps the training in a folder that stays."""
        spared = np.zeros(data.n_rows, dtype=bool)
        spared[validation] = True
        if data.table is not None:
            return encode_table(schema, data.table, spared, self.min_count), None
        if self.cache is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="openfate-")))
        else:
            folder = Path(self.cache)
            stack.enter_context(hold_folder(folder))
        plan = {
            "table": data.identity,
            "target": hashlib.sha256(np.ascontiguousarray(data.target.y).tobytes()).hexdigest(),
            "rows": data.n_rows,
            "spared": hashlib.sha256(spared.tobytes()).hexdigest(),
            "schema": schema.to_json(),
            "min_count": self.min_count,
            "openfate": __version__,
        }
        cache = RowCache(folder, plan)
        encoded = cache.encode(schema, data.frames, spared, self.min_count)
        assert isinstance(encoded.X, DiskRows)
        if _COPIES * encoded.X.n_bytes <= self.memory_limit:
            encoded = replace(encoded, X=encoded.X.load())
        if self.cache is None or data.identity is None:
            return encoded, None
        skipped = ("cache", "memory_limit", "callback", "progress", "tensorboard")
        params = {k: v for k, v in self.get_params(deep=False).items() if k not in skipped}
        return encoded, Checkpoints(folder, {**params, "seed": seed})

    def _weigh(self, target: Target, sample_weight: ArrayLike | None) -> Any:
        """(N,) how much each row counts, or None."""
        if sample_weight is None:
            return None
        # WHY: scikit-learn's own check, whose messages users and its tests know.
        return _check_sample_weight(
            sample_weight,
            np.empty((len(target.y), 1)),
            dtype=np.float64,
            ensure_non_negative=True,
            allow_all_zero_weights=False,
        )

    def _learn(
        self,
        rows: LabelledRows,
        parts: tuple[NDArray[np.intp], NDArray[np.intp]],
        encoder: Encoder,
        seed: int,
        hidden_share: float | None,
        start: Sequence[FATE] | None = None,
        keep: Checkpoints | None = None,
    ) -> tuple[Network, Usage | None, Decision | None]:
        """Train the networks, and choose how they will use new features."""
        if not rows.X.n_features:
            raise InputError(
                "the table has no column with a value to learn from: give one, or exclude fewer."
            )
        p, field_of = self._parameters(rows.target.task), encoder.field_of
        training, spared = rows.select(parts[0]), rows.select(parts[1])
        validation = spared if spared.X.n_rows else None
        if validation is not None:
            validation = validation.sample(_VALIDATION, np.random.default_rng([seed, 6]))
        probe = _Probe(partial(_choose, p, training, validation, field_of, seed, hidden_share))
        n_threads, work = torch.get_num_threads(), training.X.nnz * (p.width or 32)
        with self._on_step() as on_step, few_threads(work), probe:
            where = _device(self.device)
            options: dict[str, Any] = {"start": start, "device": where, "on_step": on_step}
            options |= {"is_knot": encoder.is_knot, "keep": keep}
            is_spare = torch.get_num_threads() < n_threads and keep is None
            if is_spare and p.strategy == "auto" and p.backbone == "mlp" and p.pool == "sum":
                options["on_drawn"] = probe.start
            models, histories = _train(p, training, validation, field_of, seed, **options)
            best = [history.best for history in histories]
            plain = Network([RunningFATE(m) for m in models], rows.target.task, rows.target.scale)
            n_batches = best[0] * (make_settings(p, *_size(training, field_of)).round_size or 1)
            usage, decision = probe.finish(n_batches, plain)
        steps = [step for history in histories for step in history.steps]
        self.history_ = History(steps, best[0], sum(history.seconds for history in histories))
        if p.strategy == "auto" and usage is not None and usage.scale is not None:
            contexts = EmbeddingNetwork(models, training.X, rows.target, field_of)
            return contexts.with_embeddings(usage.scale), usage, decision
        return plain, usage, decision

    def _retrain_with(
        self,
        bank: FeatureBank,
        table: Table,
        labels: NDArray[Any],
        weight: NDArray[np.float64] | None,
    ) -> Retrain | None:
        training, mixture = self._training, bank.mixture
        if training is None or mixture is None:
            return None
        p, seed = self._parameters(training.target.task), self._draw_seed()

        def retrain(n_rows: int, encoder: Encoder) -> Network | None:
            shown = None if weight is None else weight[:n_rows]
            first = table.select_rows(slice(0, n_rows)), labels[:n_rows], shown
            parts = [*bank.kept, first]
            if not is_due(mixture.n_labels + n_rows, slow=True):
                return None
            more = [
                # WHY: what is computed of rows that are kept would be kept with them.
                LabelledRows(encoder.encode(kept_rows(rows)), known_target(y, bank), w)
                for rows, y, w in parts
            ]
            every = LabelledRows.stack([training, *more], encoder.n_features)
            split = split_rows(every.target, self.validation_share, seed)
            kept, spared = (every.select(rows) for rows in split)
            validation = spared if spared.X.n_rows else None
            field_of = encoder.field_of
            with few_threads(kept.X.nnz * (p.width or 32)):
                models, _ = _train(p, kept, validation, field_of, seed, device=_device(self.device))
            return Network([RunningFATE(m) for m in models], bank.task, bank.target_scale)

        return retrain

    def _training_fault(self) -> str | None:
        return None

    def _fitted_columns(self, table: Table) -> list[str]:
        names = getattr(self, "feature_names_in_", table.columns)
        return [str(name) for name in names if name not in self._excluded]

    def _remember_rows(
        self, table: Table, labels: NDArray[Any], sample_weight: ArrayLike | None
    ) -> tuple[LabelledRows, LabelledRows]:
        if self.random_state is None:
            # WHY: the same labels train the same model, in every process and replay.
            self.set_params(random_state=0)
        target = known_target(labels, self.bank_)
        weight = self._weigh(target, sample_weight)
        X = self.bank_.encoder.encode(table).below(self.bank_.n_observed)
        rows = LabelledRows(X, target, weight)
        if weight is not None and not np.all(weight > 0):
            rows = rows.select(np.flatnonzero(weight > 0))
        n_bytes = sum(a.nbytes for a in (X.row_ptr, X.ids, X.values) if a is not None)
        if _COPIES * n_bytes > self.memory_limit:
            raise InputError(
                f"{X.n_rows:,} rows are too many to be trained on in {self.memory_limit:,} bytes "
                "(memory_limit): allow more, or fit anew."
            )
        return rows, rows

    def _parameters(self, task: str) -> SimpleNamespace:
        """The parameters, with the loss that the task asks for."""
        p = read_parameters(self)
        if task != "regression":
            p.loss = "multilabel" if task == "multilabel" else "log_loss"
        return p

    @contextmanager
    def _on_step(self) -> Iterator[Callable[[Step], None]]:
        """What is to be done after each epoch: a bar, TensorBoard, the caller's own."""
        writer = _tensorboard(self.tensorboard) if self.tensorboard is not None else None
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not self.progress) as bar:
            task = bar.add_task("training", total=None)

            def on_step(epoch: Step) -> None:
                loss = f"epoch {epoch.number}: loss {epoch.train_loss:.4f}"
                bar.update(task, advance=1, description=loss)
                if writer is not None:
                    writer.add_scalar("loss/train", epoch.train_loss, epoch.number)
                    writer.add_scalar("loss/validation", epoch.validation_loss, epoch.number)
                if self.callback is not None:
                    self.callback(epoch)

            try:
                yield on_step
            finally:
                if writer is not None:
                    writer.close()

    def _remember(
        self, rows: LabelledRows, validation: NDArray[np.intp], decision: Decision | None
    ) -> None:
        """Keep rows in memory for training again, validation rows, and what a bundle tells."""
        is_on_disk = isinstance(rows.X, DiskRows)  # where they may not stay
        self._training = None if is_on_disk else rows
        kept = rows.select(validation).sample(_KEPT_VALIDATION, np.random.default_rng(0))
        metrics, self._validation = self._measure(kept), kept
        self._describe(
            decision,
            params=self._plain_params(),
            numeric=self._numeric,
            n_rows=rows.X.n_rows,
            n_validation=len(validation),
            data_hash=hash_rows(rows),
            training={"epochs": len(self.history_.steps), "best_epoch": self.history_.best},
            metrics=metrics,
        )

    def _measure(self, rows: LabelledRows) -> dict[str, float]:
        """Loss and score of encoded rows, new features ignored; empty for no rows."""
        if not rows.X.n_rows:
            return {}
        assert isinstance(self.bank_.model, Network)
        outputs = self.bank_.model.predict(rows.X, self.bank_.encoder.field_of)
        scores = task_scores(outputs, rows.target.outcomes, rows.target.task)
        return {name: score for name, score in scores.items() if np.isfinite(score)}

    # ---- absorbing -----------------------------------------------------------------------------

    def refit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, warm: bool = True
    ) -> Self:
        """Absorb new features: train on labelled rows that have them.

        Old ids and embeddings are the start, new features start at their extrapolated embeddings,
        and become observed ones.  The state is rebuilt from `X`: give old rows too, where they
        should go on to count.  ``refit_report_`` tells what was forgotten on the validation rows of
        the previous fit (which a bundle does not hold); where `X` has them too, they are spared
        again, not trained on.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        warm
            False fits from nothing, as `fit` does.
        """
        if not warm:
            return self.fit(X, y, sample_weight)
        with unchanged_on_error(self):
            table = self._open(X)
            target = read_known(y, table.n_rows, self.bank_)
            times = None if self.time is None else _times(table, self.time)
            data = TrainingData([table], tuple(table.columns), target, times, None, table)
            self._refit(*_drop_weightless(data, self._weigh(target, sample_weight)))
            return self

    def _refit(self, data: TrainingData, weight: Any) -> None:
        table, target = data.table, data.target
        assert table is not None
        old, before = self.bank_, self._measure(self._validation)
        assert isinstance(old.model, Network)
        seed = self._draw_seed()
        encoder = old.grow_encoder(table, policies=self._policies)
        rows = LabelledRows(encoder.encode(table), target, weight)
        # WHY: rows that the last fit was judged by are not trained on now, or nothing would be
        # known of what was forgotten.
        again = find_rows(rows, self._validation, old.n_observed)
        parts = split_rows(target, self.validation_share, seed, again, data.times)
        start = grow_members(old.model, encoder.field_of)
        share = self._expect_share(encoder, None)
        network, usage, decision = self._learn(rows, parts, encoder, seed, share, start)
        self._set_bank(rows.X, target, encoder, network, usage)
        self.bank_.meta.update(old.meta)
        spared = self._validation
        self._remember(rows, parts[1], decision)
        wider = replace(spared, X=spared.X.widen(encoder.n_features))
        after = self._measure(wider) if before else {}
        self.refit_report_ = {
            "rows": table.n_rows,
            "absorbed_features": encoder.n_features - old.n_observed,
            "old_validation_rows": spared.X.n_rows,
            "before": before,
            "after": after,
            "forgotten": {name: after[name] - before[name] for name in before if name in after},
        }
        self.bank_.meta["refit"] = self.refit_report_

    # ---- bundles -------------------------------------------------------------------------------

    def _plain_params(self) -> dict[str, Any]:
        """Parameters for JSON; what is no plain value (a callback) is left out."""
        params = dict(vars(read_parameters(self)))
        for name in ("callback", "tensorboard", "progress", "device", "cache", "memory_limit"):
            params.pop(name)
        if not isinstance(self.random_state, int | np.integer):
            params["random_state"] = None
        params["schema"] = self._overrides.to_json()
        params["exclude"] = list(self._excluded)
        params["hidden"] = None if params["hidden"] is None else list(params["hidden"])
        for name in ("new_columns", "new_values", "missing_columns"):
            word = params[name]
            params[name] = word if isinstance(word, str) else dict(word)
        if isinstance(self.max_new_features, Mapping):
            params["max_new_features"] = dict(self.max_new_features)
        by_class = params.get("class_weight")
        if isinstance(by_class, Mapping):  # as pairs: classes need not be text, as JSON's names are
            known = [c for c in self.bank_.classes if c in by_class]
            params["class_weight"] = [[plain_value(c), plain_value(by_class[c])] for c in known]
        return params

    @classmethod
    def _from_bank(cls, bank: FeatureBank) -> Self:
        params = dict(bank.meta["params"])
        params["schema"] = Schema.from_json(params["schema"])
        if params["hidden"] is not None:
            params["hidden"] = tuple(params["hidden"])
        if isinstance(params.get("class_weight"), list):
            params["class_weight"] = dict(params["class_weight"])
        estimator = cls(**params)._restore(bank)
        empty = MultiHot.from_rows([], bank.n_observed)
        estimator._validation = LabelledRows(empty, Target(bank.task, np.empty(0)))
        return estimator


class FATEClassifier(BankClassifier, FATEEstimator):
    """A classifier that uses columns and values it first meets after `fit`.

    A table is a graph between rows and features (a feature is a value of a column).  A small
    network classifies the sum of a row's feature embeddings.  What is known of a feature that was
    not there in training comes from the rows in which it appears: from what they were predicted as
    (``strategy="auto"``), or as an embedding that a 2-layer GraphSAGE computes
    (``strategy="fate"``).

    Parameters
    ----------
    strategy
        "auto": networks trained with feature dropout; new features move a prediction by what the
        rows that have them were predicted as (evidence), by embeddings, or by both, as strongly as
        a probe on validation rows found to pay, or not at all.  "fate": the paper's model,
        the embeddings of new features less what they have in common.  "evidence": without a probe.
        "none": new features are ignored.
    schema
        Kinds of columns where the guess would be wrong; see `openfate.Schema`.
    numeric
        Numbers as "linear" between knots at quantiles and on either side of thresholds at which the
        target jumps (`openfate.Field`), as "buckets" of equal width (the paper's way), as one
        feature with a "value", or in "log" intervals, as counts of click logs are.  None:
        "linear", of the strategy "fate" "buckets".
    exclude
        Columns that are not used, now or later.
    backbone
        The network over the embeddings: "mlp", feed-forward; "deepfm", with products of all pairs
        of features and linear weights; "widedeep", with linear weights; "dcn", with cross layers.
    pool
        Of "mlp" and "dcn".  "sum": a row is the sum of its embeddings; "field_linear": its columns
        stand side by side, each with weights of its own.  There are none for a column that appears
        later: its embeddings add nothing to predictions before a `refit` (evidence does).
    linear
        Of "deepfm" and "widedeep" with the strategy "fate": the linear weight of a new feature,
        "zero", or "extrapolated" with its embedding.
    width
        Of an embedding.  None, here and below: what suits the strategy.
    hidden
        Widths of the hidden layers, such as 64,32; () for none.
    epochs
        Passes over the rows, at most.
    lr
        Learning rate.
    batch_size
        Rows in a mini-batch.
    patience
        Epochs without a better validation loss that are waited for.
    validation_share
        Rows spared to stop early and to probe; none are below 40 rows.
    dropout
        Probability that a cell is dropped in training (all strategies but "fate").  None: up to
        0.3 for many columns of text, 0.1 of numbers, 0 for few.
    n_members
        Networks whose predictions are averaged (all but "fate"); those of an "mlp" are trained at
        once.  None: 4, of more than 10,000 rows 2.
    weight_decay
        AdamW's (all but "fate").
    n_folds
        Parts of the features that are hidden in turn ("fate").
    drop_edge
        Probability that an edge is removed ("fate").
    lr_extrapolator
        The extrapolator's learning rate ("fate").
    novelty
        What the probe expects to appear: new "values", whole "columns" or "both".
    n_draws
        How many times the probe hides some and fits again.
    hidden_share
        The share of cells that will be new, as far as it is known: the probe hides as much, and
        half of it.  None: what `unlabelled` rows of `fit` tell; without them 0.4, 0.5 and 0.6.
    min_count
        Texts that fewer training rows hold get no id: they are unknown, until they are observed.
    time
        A column that orders the rows: validation rows are the last in time, not drawn at random.
        It is a feature as well, unless it is excluded.
    memory_limit
        Bytes that rows may take while they are learned from, some 64 for a cell of a frame.  Where
        they would take more they lie on disk, and a fit holds little more than a batch of them.
    cache
        A folder for rows that are read in batches.  What is finished there survives a kill: the
        same fit goes on from it, exactly, and one with other settings takes the encoded rows.
        Files are known by size and time, a query by a hash of its rows.  None: a temporary one.
    class_weight
        "balanced", or a weight for each class.
    mixed_precision
        Train the paper's model in bfloat16 where it is safe.
    device
        "auto" takes a GPU where there is one; else "cpu", "cuda", ...  Prediction is on the CPU.
    random_state
        A seed; the same seed gives the same model.
    new_columns
        "extrapolate", "ignore", "warn" (and extrapolate) or "error", for all or by column.
    new_values
        Of known columns: the same words.
    missing_columns
        "ignore", "warn" or "error", for all or by column.
    max_new_features
        How many new features `observe` keeps at most: those with labels, then those with the most
        rows.  None: all.  A number for all fields together, or by field ("*" is all together).  See
        `FeatureBank`.
    source
        A column that names who sent a row, as a customer or a device: never a feature.  One source
        counts for a new feature as three rows at most, whatever it sends; rows to observe should
        have it, those without are one source together.
    half_life
        Rows after which a row that was observed counts half for what is new.  None: for ever.
    callback
        Called with a `Step` after each epoch.
    tensorboard
        A folder for TensorBoard's event files.
    progress
        Show a bar on stderr.

    Attributes
    ----------
    classes_
        The classes; for a 0-1 matrix of labels their numbers.
    feature_names_in_, n_features_in_
        Columns of the training frame.
    bank_
        The fitted `FeatureBank`.
    history_
        Losses of the epochs.
    refit_report_
        After `refit`: what was absorbed, and what was forgotten.

    Notes
    -----
    Prediction never changes the model.  It may be transductive: with ``graph="batch"``, and with
    the default "auto" for features that no earlier row had, the embedding of a new feature is
    computed from the rows of the call, so a row's prediction depends on the company it is in (never
    on the order).  With ``graph="state"`` it depends on training and observed rows alone.

    Examples
    --------
    >>> import polars as pl
    >>> people = pl.DataFrame({"age": [23, 61, 35, 52] * 30, "job": ["cook", "nurse"] * 60})
    >>> clf = FATEClassifier(epochs=20).fit(people, people["job"] == "nurse")
    >>> later = people.with_columns(city=pl.Series(["Rome", "Oslo"] * 60))  # a new column
    >>> clf.predict_proba(later).shape
    (120, 2)
    >>> clf.observe(later).schema_report(later).new
    ()
    """

    def __init__(
        self,
        schema: Schema | Sequence[Field] | None = None,
        *,
        strategy: Strategy = "auto",
        numeric: Numeric | None = None,
        exclude: Sequence[str] = (),
        backbone: str = "mlp",
        pool: Pool = "sum",
        linear: Linear = "zero",
        width: int | None = None,
        hidden: Sequence[int] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        patience: int | None = None,
        validation_share: float = 0.15,
        dropout: float | None = None,
        n_members: int | None = None,
        weight_decay: float = 0.1,
        n_folds: int = 5,
        drop_edge: float = 0.5,
        lr_extrapolator: float = 1e-3,
        novelty: Novelty = "both",
        n_draws: int = 3,
        hidden_share: float | None = None,
        min_count: int = 1,
        time: str | None = None,
        memory_limit: int = _MEMORY,
        cache: str | Path | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        mixed_precision: bool = False,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        new_columns: Policy = "extrapolate",
        new_values: Policy = "extrapolate",
        missing_columns: Policy = "ignore",
        max_new_features: int | Mapping[str, int] | None = None,
        source: str | None = None,
        half_life: int | None = None,
        callback: Callable[[Step], None] | None = None,
        tensorboard: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        self._store(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _weigh(self, target: Target, sample_weight: ArrayLike | None) -> Any:
        weight = super()._weigh(target, sample_weight)
        if self.class_weight is None:
            return weight
        if target.task == "multilabel":
            raise InputError("class_weight is for classes, not for several labels: leave it out.")
        by_class = compute_sample_weight(self.class_weight, target.original)
        if not np.all(np.isfinite(by_class) & (by_class >= 0)):
            raise InputError(
                f"class_weight={self.class_weight!r}: weights must be finite and not negative."
            )
        if not by_class.any():
            raise InputError(
                f"class_weight={self.class_weight!r}: every row weighs nothing; give a class of "
                "these rows a weight above 0."
            )
        return by_class if weight is None else weight * by_class


class FATERegressor(BankRegressor, FATEEstimator):
    """A regressor that uses columns and values it first meets after `fit`.

    As `FATEClassifier`, whose parameters it shares.

    Parameters
    ----------
    schema, strategy, numeric, exclude, backbone, pool, linear, width, hidden, epochs, lr, \
batch_size, patience, validation_share, dropout, n_members, weight_decay, n_folds, drop_edge, \
lr_extrapolator, novelty, n_draws, hidden_share, min_count, time, memory_limit, cache, \
mixed_precision, device, random_state, new_columns, new_values, missing_columns, \
max_new_features, source, half_life, callback, tensorboard, progress
        See `FATEClassifier`.
    loss
        "squared_error" (predicts means) or "absolute_error" (medians).

    Examples
    --------
    >>> import polars as pl
    >>> flats = pl.DataFrame({"rooms": ["1", "2", "3"] * 40})
    >>> rent = flats["rooms"].cast(float) * 300
    >>> reg = FATERegressor(epochs=50).fit(flats, rent)
    >>> reg.predict(flats.with_columns(lift=pl.lit("yes"))).shape  # a new column
    (120,)
    """

    def __init__(
        self,
        schema: Schema | Sequence[Field] | None = None,
        *,
        strategy: Strategy = "auto",
        numeric: Numeric | None = None,
        exclude: Sequence[str] = (),
        backbone: str = "mlp",
        pool: Pool = "sum",
        linear: Linear = "zero",
        width: int | None = None,
        hidden: Sequence[int] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        patience: int | None = None,
        validation_share: float = 0.15,
        dropout: float | None = None,
        n_members: int | None = None,
        weight_decay: float = 0.1,
        n_folds: int = 5,
        drop_edge: float = 0.5,
        lr_extrapolator: float = 1e-3,
        novelty: Novelty = "both",
        n_draws: int = 3,
        hidden_share: float | None = None,
        min_count: int = 1,
        time: str | None = None,
        memory_limit: int = _MEMORY,
        cache: str | Path | None = None,
        loss: Literal["squared_error", "absolute_error"] = "squared_error",
        mixed_precision: bool = False,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        new_columns: Policy = "extrapolate",
        new_values: Policy = "extrapolate",
        missing_columns: Policy = "ignore",
        max_new_features: int | Mapping[str, int] | None = None,
        source: str | None = None,
        half_life: int | None = None,
        callback: Callable[[Step], None] | None = None,
        tensorboard: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        self._store(locals())


# ---- training and choosing ---------------------------------------------------------------------


def _train(
    p: SimpleNamespace,
    rows: LabelledRows,
    validation: LabelledRows | None,
    field_of: Fields,
    seed: int,
    *,
    epochs: Sequence[int] | None = None,
    start: Sequence[FATE] | None = None,
    is_knot: NDArray[np.bool_] | None = None,
    keep: Checkpoints | None = None,
    on_drawn: Callable[[], None] | None = None,
    **options: Any,
) -> tuple[list[FATE], list[History]]:
    """Train the networks that the parameters describe.

    Parameters
    ----------
    validation, epochs
        Rows for early stopping, or instead of them the epochs of each network.
    start
        Networks over the same features to go on from.
    is_knot
        (D,) which features are knots; None: as `train` finds them.
    keep
        Where checkpoints go, and where they come from.
    on_drawn
        Called before the training, when no more random numbers are drawn by torch.
    options
        Of `train`.

    Returns
    -------
    models, histories
        On the CPU, with the weights of their best epochs.
    """
    models, histories, target = [], [], rows.target
    spared = None if validation is None else (validation.X, validation.target.y, validation.weight)
    lines = Lines.of(rows.X, field_of, is_knot)
    settings = make_settings(p, *_size(rows, field_of, lines))
    for number in range(count_members(p, rows.X.n_rows) if start is None else len(start)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1000 * number)
            model = make_model(p, rows.X.n_features, target.n_outputs, field_of)
            start_sums(model, rows.X, lines)
        if start is None:
            start_linear(p, model, how_far(settings, rows.X.n_rows))
        else:
            model.load_state_dict(start[number].state_dict())
        models.append(model)
    if start is not None:
        settings = replace(settings, untrained="leave")
    options |= {"sample_weight": rows.weight, "validation": spared, "field_of": field_of}
    options["is_knot"] = is_knot
    joined = join_members(models)
    if on_drawn is not None:
        on_drawn()
    trained = models if joined is None else [joined]
    for number, model in enumerate(trained):
        own = settings if epochs is None else replace(settings, epochs=epochs[number])
        own_seed = seed + 1000 * number
        if keep is not None:
            own, options = replace(own, checkpoint_every=1), options | keep.options(number)
        histories.append(train(model, rows.X, target.y, own, seed=own_seed, **options))
        fold_linear(model.cpu())
    return models if joined is None else split_members(joined), histories


def _choose(
    p: SimpleNamespace,
    training: LabelledRows,
    validation: LabelledRows | None,
    field_of: Fields,
    seed: int,
    hidden_share: float | None,
    n_batches: int,
    network: Callable[[], Network],
    on_drawn: Callable[[], None] | None = None,
) -> Choice:
    """How new features will be used (None: not at all), and a probe's decision where one is asked.

    `n_batches` are the mini-batches after which the `network` was best, `hidden_share` the share of
    cells that will be new; `on_drawn` as `_train`'s.
    """
    if p.strategy != "auto":
        return _USAGE[p.strategy], None
    if validation is None:
        decision = Decision(NONE, "there are too few rows for a probe", {}, [])
        return choose_usage(decision), decision
    rng = np.random.default_rng([seed, 5])
    training = training.sample(_PROBE_ROWS, rng)
    validation = validation.sample(_PROBE_VALIDATION, rng)
    with few_threads(training.X.nnz * (p.width or 32)):
        draws = draw_hidden(
            # WHY: a network loses more than trees when features are hidden, so that evidence looked
            # worth more in the draws than it was; it must pay at half the share too.
            shares_to_hide(hidden_share, p.n_draws, also_half=True),
            field_of=field_of,
            novelty=p.novelty,
            seed=seed,
        )
        hidden = [draw.new for draw in draws]
        fits = _train_without(p, training, hidden, field_of, seed, n_batches, on_drawn)
        decision = judge(
            (
                (draw.view(model, validation.X, training.target.task), draw.share)
                for draw, model in zip(draws, fits, strict=True)
            ),
            validation.target.outcomes,
            # WHY: where fields are summed apart there are no weights for a new one's embeddings.
            candidates(embeddings=p.pool == "sum"),
            plain=lambda: View(
                lambda X: network().predict(X, field_of),
                *(validation.X, validation.X.select_features(np.empty(0, np.int64))),
                training.target.task,
            ),
        )
    return choose_usage(decision), decision


class _Probe:
    """A probe that a thread of its own asks while the networks are trained, or that waits for them.

    WHY: the mini-batches of a small table are too small to be shared out among processors; a probe
    is a third of the work, and only its last line needs the networks.

    Parameters
    ----------
    choose
        `_choose`, but for its last arguments.
    """

    def __init__(self, choose: Callable[..., Choice]) -> None:
        self.choose, self.network = choose, Future[Network]()
        self.pool = ThreadPoolExecutor(1, "openfate-probe")
        self.found: Future[Choice] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.network.cancel()  # WHY: where the training failed, a thread would wait for ever
        self.pool.shutdown()

    def start(self) -> None:
        """Begin; once this returns no more random numbers are drawn by torch."""
        drawn = Event()
        # Nearly always the networks take that many mini-batches or more.
        self.found = self.pool.submit(self.choose, _PROBE_STEPS, self.network.result, drawn.set)
        self.found.add_done_callback(lambda _: drawn.set())
        drawn.wait()

    def finish(self, n_batches: int, network: Network) -> Choice:
        """What it found for a network that was best after so many mini-batches."""
        self.network.set_result(network)
        if self.found is None or n_batches < _PROBE_STEPS:
            return self.choose(n_batches, lambda: network)
        return self.found.result()


def _train_without(
    p: SimpleNamespace,
    rows: LabelledRows,
    hidden: Sequence[NDArray[np.int64]],
    field_of: Fields,
    seed: int,
    n_batches: int,
    on_drawn: Callable[[], None] | None,
) -> Iterator[EmbeddingNetwork]:
    """For each draw a network that was trained without the features that it hides.

    WHY one: that a mean of several predicts better does not change which way of using new features
    helps.  Their rows are the same, so that networks that can be are trained at once.
    """
    p = SimpleNamespace(**{**vars(p), "n_members": 1})
    n_features, every = rows.X.n_features, np.arange(rows.X.n_features)
    lines = Lines.of(rows.X, field_of)
    settings = make_settings(p, *_size(rows, field_of, lines))
    per_epoch = -(-rows.X.n_rows // cast("int", settings.batch_size))
    # WHY: as many steps as the networks took, so that no training looks at the validation rows.
    epochs = -(-min(n_batches, _PROBE_STEPS) // per_epoch)
    kept = [np.setdiff1d(every, new) for new in hidden]
    shown = [rows.X.select_features(old) for old in kept]
    models = []
    for number, X in enumerate(shown):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1000 * number)
            models.append(make_model(p, n_features, rows.target.n_outputs, field_of))
            start_sums(models[-1], X, lines)
    joined = join_members(models)
    if on_drawn is not None:
        on_drawn()
    if joined is not None:
        mask = np.ones((n_features, len(hidden)), dtype=bool)
        for at, new in enumerate(hidden):
            mask[new, at] = False
        own = replace(settings, epochs=epochs)
        options: dict[str, Any] = {"sample_weight": rows.weight, "field_of": field_of}
        train(joined, rows.X, rows.target.y, own, seed=seed, shown=mask, **options)
        models = [narrow(m, old) for m, old in zip(split_members(joined), kept, strict=True)]
    for number, (old, X) in enumerate(zip(kept, shown, strict=True)):
        fields = field_of[old]
        if joined is None:
            part = replace(rows, X=X)
            (models[number],), _ = _train(p, part, None, fields, seed, epochs=[epochs])
        yield EmbeddingNetwork([models[number]], X, rows.target, fields)


# ---- small things ------------------------------------------------------------------------------


def _size(rows: LabelledRows, field_of: Fields, lines: Lines | None = None) -> tuple[int, int, int]:
    """Rows, columns, and those of them that are lines."""
    return rows.X.n_rows, len(np.unique(field_of)), 0 if lines is None else len(lines.place)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(check_device(name))


def _drop_weightless(
    data: TrainingData, weight: NDArray[np.float64] | None
) -> tuple[TrainingData, NDArray[np.float64] | None]:
    """The rows that count: a weight of 0 means that a row is not there."""
    if weight is None or np.all(weight > 0):
        return data, weight
    return data.keep(weight > 0), weight[weight > 0]


def _times(table: Table, name: str) -> NDArray[Any]:
    if name not in table.columns:
        raise no_column("time", name, table.columns)
    return time_numbers(table.columns[name], name)


def _tensorboard(folder: str | Path) -> Any:
    if Path(folder).exists() and not Path(folder).is_dir():
        raise InputError(f"tensorboard={str(folder)!r} is a file: name a folder.")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "tensorboard is not installed: pip install 'openfate[track]', or leave it out."
        ) from None
    return SummaryWriter(str(folder))
