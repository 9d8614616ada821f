"""FeatureBank: a trained model, its vocabulary and the running state of new features.

The one path of a prediction, which estimators and the command line share:

    rows -> (policies) -> encode -> model (extrapolating from running sums) -> evidence -> outputs

Prediction never changes a bank.  `observe` does: it gives ids to what is new and adds rows to the
sums.  No training, no scikit-learn.  D observed features, D' known ones (observed and new).
"""

from __future__ import annotations

import collections
import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from openfate.bank.bundle import (
    Bundle,
    Model,
    plain_classes,
    pooling_settings,
    read_bundle,
    unpack,
    write_bundle,
)
from openfate.bank.network import Network
from openfate.bank.wrapped import Wrapped, dump
from openfate.errors import InputError
from openfate.openworld import Floats, JointEvidence, LiveEvidence, Task
from openfate.table import (
    Encoder,
    MultiHot,
    Policies,
    Schema,
    SchemaReport,
    Table,
    compare,
    enforce,
    read_table,
)

Graph = Literal["auto", "state", "batch"]
Use = Literal["use", "drop"]

_SILENT = Policies("ignore", "ignore", "ignore")


class Options(TypedDict, total=False):
    """How the rows of one call are read; what is not given or None is the bank's own."""

    exclude: Sequence[str] | None
    overrides: Schema | None
    policies: Policies | None


class Prediction(NamedTuple):
    """The outputs of one call, and what they came from."""

    encoder: Encoder  # with ids for what is new
    X: MultiHot  # (N, D')
    model: Model
    P0: Floats  # (N, C) the model's, without new features
    evidence: LiveEvidence | JointEvidence | None
    votes: Floats  # (N, C) what evidence leaves out of its pools
    outputs: Floats  # (N, C)


class FeatureBank:
    """A trained model that can meet new columns and values, and remembers what it met.

    Made by an estimator's `fit` (``estimator.bank_``) or by `FeatureBank.load`.  Threads may share
    one: what reads or changes its state takes turns (hold `lock` to do several things as one).

    Parameters
    ----------
    encoder, model
        The vocabulary, and the model with its running sums; ids agree.
    classes
        Whose probabilities the outputs are; empty for numbers.
    embeddings
        Whether predictions use the model's embeddings of new features.
    evidence
        What new features have shown, where predictions use that.
    policies
        What to do with new columns, new values and missing columns.
    exclude
        Columns that are never used, also when they appear later: the target, for one.
    overrides
        Fields of columns that may appear later, where inference would guess wrong.
    meta
        Settings, metrics and whatever else a bundle should tell.

    Notes
    -----
    `policies`, `exclude` and `overrides` can be given to each call in place of the bank's own.

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
        embeddings: bool = True,
        evidence: LiveEvidence | None = None,
        policies: Policies | None = None,
        exclude: Sequence[str] = (),
        overrides: Schema | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.encoder, self.model = encoder, model
        self.classes = list(classes)
        self.embeddings, self.evidence = embeddings, evidence
        self.policies = policies or Policies()
        self.exclude = tuple(exclude)
        self.overrides = overrides or Schema([])
        self.meta = dict(meta or {})
        self.rows = np.zeros(model.n_observed)  # (D',) rows of each feature so far
        self.n_rows = 0  # of all of them: training and observed
        # Evidence of the very rows that will be predicted; None but in a copy that looked ahead.
        self.joint: JointEvidence | None = None
        self.lock = threading.RLock()  # one thread observes, predicts or reads at a time

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy or a pickle has a lock of its own.
        vars(self).update(state, lock=threading.RLock())

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
        exclude: Sequence[str] | None = None,
        overrides: Schema | None = None,
        policies: Policies | None = None,
    ) -> Floats:
        """Predict rows; never changes the bank.

        Parameters
        ----------
        rows
            A pandas, polars or pyarrow frame; columns may be new, missing or in any order.
        graph
            What is known of a new feature comes from: "state": the rows seen by training and
            `observe` alone, so that a row's prediction is the same alone and in any batch.
            "batch": those and the rows of the call (the paper's way; transductive: a row's
            prediction depends on the other rows of the call, though not on their order).  "auto":
            "batch" for features that the state has never seen, "state" for the rest.
        new_features
            "drop" leaves new features out, as a closed-world model would.
        exclude, overrides, policies
            Of this call; None: the bank's own.

        Returns
        -------
        (N, C) probabilities, two columns for a binary target; (N, K) for K labels; (N, 1) numbers
        """
        _check_choice("new_features", new_features, ("use", "drop"))
        options = Options(exclude=exclude, overrides=overrides, policies=policies)
        return self.run(rows, graph, use=new_features == "use", **options).outputs

    def run(
        self, rows: Any, graph: Graph, *, use: bool = True, **options: Unpack[Options]
    ) -> Prediction:
        """Predict rows as `predict` does, and tell from what; new features are used or dropped."""
        _check_choice("graph", graph, ("auto", "state", "batch"))
        if not use:
            graph, options["policies"] = "state", _SILENT
        with self.lock:
            table, encoder, X = self._encode(rows, graph != "state", **options)
            joined = self._joined(X, graph)
            model, evidence, new = self.model, self.joint or self.evidence, self.new_part(X)
            if joined is not None and self.embeddings:
                model = model.copy()
                model.observe(X, joined)
            use_new = use and self.embeddings
            P0, outputs = model.predict_both(table, X, encoder.field_of, use_new)
            if evidence is None or not use:
                return Prediction(encoder, X, model, P0, None, P0, outputs)
            if joined is not None and self.evidence is not None:
                evidence = JointEvidence(self.evidence, every=graph == "batch")
                for _ in range(evidence.pooling.n_sweeps):
                    evidence.sweep([(new, P0)])
            votes = evidence.votes(new, P0)
            outputs = evidence.move(outputs, new, votes)
            return Prediction(encoder, X, model, P0, evidence, votes, outputs)

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
            "auto": only features that the state has never seen learn from the rows.
        options
            exclude, overrides, policies: see `predict`.
        """
        _check_choice("graph", graph, ("auto", "state", "batch"))
        with self.lock:
            ahead = self.copy()
            if ahead.evidence is not None and graph != "state":
                ahead.joint = JointEvidence(ahead.evidence, every=graph == "batch")
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
        for frame in frames:
            table, self.encoder, X = self._encode(frame, graph != "state", **options)
            P0, _ = self.model.predict_both(table, X, self.encoder.field_of)
            joined = self._joined(X, graph)
            if joined is not None:
                self.model.observe(X, joined)
            yield self.new_part(X), P0

    def _joined(self, X: MultiHot, graph: Graph) -> NDArray[np.bool_] | None:
        """(D',) features for which the rows that are predicted count; None where there are none."""
        joined = np.full(X.n_features, graph != "state")
        if graph == "auto":
            joined[: len(self.rows)] = self.rows == 0
            joined[: self.n_observed] = False
        return joined if joined[X.ids].any() else None

    # ---- reading rows --------------------------------------------------------------------------

    def _open(self, rows: Any, exclude: Sequence[str] | None = None) -> Table:
        """Read rows, without the columns that are not used."""
        table, unused = read_table(rows), self.exclude if exclude is None else exclude
        if not unused:
            return table
        return table.select(name for name in table.columns if name not in unused)

    def _encode(
        self,
        rows: Any,
        grow: bool,
        *,
        exclude: Sequence[str] | None = None,
        overrides: Schema | None = None,
        policies: Policies | None = None,
    ) -> tuple[Table, Encoder, MultiHot]:
        """Rows, an encoder (grown by what the policies let in), and X; changes nothing."""
        table, encoder = self._open(rows, exclude), self.encoder
        overrides = self.overrides if overrides is None else overrides
        allowed = enforce(encoder, table, policies or self.policies, overrides)
        if grow:
            wanted = Schema.from_frame(
                table.select(allowed.columns),
                overrides=overrides,
                numeric=self.meta.get("numeric", "buckets"),
            )
            encoder = encoder.grow_copy(
                table, wanted, columns=allowed.columns, values=allowed.values
            )
        return table, encoder, encoder.encode(table)

    def new_part(self, X: MultiHot) -> MultiHot:
        """(N, D' - D) the new features of rows, numbered from 0; without values."""
        new = X.select_features(np.arange(self.n_observed, X.n_features))
        return MultiHot(new.row_ptr, new.ids, new.n_features)

    # ---- learning without training -------------------------------------------------------------

    def observe(
        self,
        rows: Any,
        y: NDArray[Any] | None = None,
        *,
        seen: bool = False,
        exclude: Sequence[str] | None = None,
        overrides: Schema | None = None,
        policies: Policies | None = None,
    ) -> None:
        """Add rows to the state: new columns and values get ids, and all their rows count.

        The model is not trained.  Rows that raise an error leave the bank as it was.

        Parameters
        ----------
        y
            Labels, where they have come: (N,) class numbers, (N, K) labels, (N,) numbers.
        seen
            Whether these rows were observed before, without labels.
        exclude, overrides, policies
            Of this call; None: the bank's own.
        """
        options = Options(exclude=exclude, overrides=overrides, policies=policies)
        with self.lock:
            table, encoder, X = self._encode(rows, True, **options)
            # WHY: predicted and checked first; after it nothing can fail but for want of memory.
            P0 = None
            if self.evidence is not None:
                P0, _ = self.model.predict_both(table, X, encoder.field_of)
                self.evidence.state.check(P0, X.n_rows, y)
            if not seen:
                self.model.observe(X)
                known = np.pad(self.rows, (0, X.n_features - len(self.rows)))
                self.rows = known + np.bincount(X.ids, minlength=X.n_features)
                self.n_rows += X.n_rows
            if self.evidence is not None and P0 is not None:
                self.evidence.observe(self.new_part(X), P0, y, seen=seen)
            self.encoder = encoder

    def grow_encoder(self, rows: Any, **options: Unpack[Options]) -> Encoder:
        """The encoder with ids for what is new in rows and let in; the bank is not changed."""
        return self._encode(rows, True, **options)[1]

    def schema_report(
        self,
        rows: Any,
        *,
        exclude: Sequence[str] | None = None,
        overrides: Schema | None = None,
        policies: Policies | None = None,
    ) -> SchemaReport:
        """Which columns and values of rows are new, missing or known, and what is done with them.

        Parameters
        ----------
        exclude, overrides, policies
            Of this call; None: the bank's own.
        """
        overrides = self.overrides if overrides is None else overrides
        with self.lock:
            table, note = self._open(rows, exclude), self.describe_usage()
            return compare(self.encoder, table, policies or self.policies, overrides, note=note)

    def describe_usage(self) -> str:
        """How new features are used, and what a probe said to that, in a sentence or two."""
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
        """An independent copy, with a state of its own."""
        with self.lock:
            evidence = None if self.evidence is None else self.evidence.copy()
            bank = self.with_model(self.encoder, self.model.copy(), evidence)
            bank.rows, bank.n_rows, bank.joint = self.rows, self.n_rows, self.joint
            return bank

    def with_model(
        self, encoder: Encoder, model: Model, evidence: LiveEvidence | None
    ) -> FeatureBank:
        """The same bank around another vocabulary and model, which have seen no rows yet."""
        bank = copy.copy(self)
        bank.encoder, bank.model, bank.evidence = encoder, model, evidence
        bank.rows, bank.n_rows, bank.joint = np.zeros(model.n_observed), 0, None
        bank.meta = dict(self.meta)
        return bank

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a bundle, whole or not at all: see `openfate.bank.bundle`."""
        write_bundle(self.to_bundle(), path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> FeatureBank:
        """Read a bundle that `save` or an estimator wrote; needs no training data."""
        return cls.from_bundle(read_bundle(path), str(path))

    def to_bundle(self) -> Bundle:
        """Everything as plain values, of one moment."""
        with self.lock:
            (header, vocabulary), state = self.encoder.to_parts(), self.state()
        meta = {
            **self.meta,
            **self.model.settings(),
            "classes": plain_classes(self.classes),
            "embeddings": self.embeddings,
            "policies": self.policies.to_dict(),
            "exclude": list(self.exclude),
            "overrides": self.overrides.to_json(),
        }
        if self.evidence is not None:
            meta |= pooling_settings(self.evidence)
        weights, estimator = self.model.weights(), None
        if isinstance(self.model, Wrapped):
            meta["estimator_format"], estimator = dump(self.model.estimator)
        return Bundle(header, vocabulary, weights, state, meta, estimator)

    def state(self) -> dict[str, NDArray[Any]]:
        """All running sums, by name: what `observe` changes besides the vocabulary."""
        with self.lock:
            n_rows = np.array([self.n_rows], dtype=np.int64)
            state = {"rows": self.rows, "n_rows": n_rows, **self.model.state()}
            if self.evidence is not None:
                state |= {f"evidence.{n}": array for n, array in self.evidence.to_arrays().items()}
            return state

    @classmethod
    def from_bundle(cls, bundle: Bundle, source: str = "bundle") -> FeatureBank:
        """The bank that `to_bundle` took apart; refuses parts that do not fit together."""
        arguments, rows, n_rows = unpack(bundle, source)
        bank = cls(**arguments)
        bank.rows, bank.n_rows = rows, n_rows
        return bank


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        words = ", ".join(map(repr, choices[:-1]))
        raise InputError(f"{name}={value!r} is unknown: choose {words} or {choices[-1]!r}.")
