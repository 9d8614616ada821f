"""FeatureBank: a trained model, its vocabulary and the running state of new features.

The one path of a prediction, which estimators and the command line share:

    frame -> (policies) -> encode -> base (extrapolating from running sums) -> evidence -> outputs

Prediction never changes a bank.  `observe` does: it gives ids to what is new and adds rows to the
sums.  No training, no scikit-learn.  D observed features, D' known ones (observed and new).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openfate.bank.bases import Base, Floats, Network, Task, Wrapped
from openfate.bank.bundling import EVIDENCE_KIND, plain_classes, unpacked
from openfate.bank.foreign import dump
from openfate.bank.persistence import Bundle, read_bundle, write_bundle
from openfate.errors import InputError
from openfate.openworld import LiveEvidence, combine
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

__all__ = ["EVIDENCE_KIND", "FeatureBank", "Graph", "Use"]

Graph = Literal["auto", "state", "batch"]
Use = Literal["use", "drop"]


class FeatureBank:
    """A trained model that can meet new columns and values, and remembers what it met.

    Made by an estimator's `fit` (``estimator.bank_``) or by `FeatureBank.load`.  Threads may share
    one: what reads or changes its state takes turns (hold `lock` to do several things as one).

    Parameters
    ----------
    encoder, base
        The vocabulary, and the model with its running sums; ids agree.
    classes
        Whose probabilities the outputs are; empty for numbers.
    embeddings
        Whether predictions use the base's embeddings of new features.
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

    Examples
    --------
    >>> import polars as pl
    >>> from openfate import FATEClassifier
    >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
    >>> bank = FATEClassifier(epochs=5).fit(rows, rows["job"] == "nurse").bank_
    >>> later = pl.DataFrame({"job": ["cook", "judge"], "city": ["Rome", "Oslo"]})
    >>> bank.outputs(later).shape  # "judge" and the column are new; nothing is remembered
    (2, 2)
    >>> bank.observe(later)  # now they are known, without training
    >>> bank.n_observed, bank.encoder.n_features, bank.n_rows
    (2, 5, 62)
    """

    def __init__(
        self,
        encoder: Encoder,
        base: Base,
        classes: Sequence[Any] = (),
        *,
        embeddings: bool = True,
        evidence: LiveEvidence | None = None,
        policies: Policies | None = None,
        exclude: Sequence[str] = (),
        overrides: Schema | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.encoder, self.base = encoder, base
        self.classes = list(classes)
        self.embeddings, self.evidence = embeddings, evidence
        self.policies = policies or Policies()
        self.exclude = tuple(exclude)
        self.overrides = overrides or Schema([])
        self.meta = dict(meta or {})
        self.rows = np.zeros(base.n_observed)  # (D',) rows of each feature so far
        self.n_rows = 0  # of all of them: training and observed
        # (D',) features whose sums hold the very rows that will be predicted: their own votes are
        # to be left out.  None but in a copy that has looked ahead.
        self._own: NDArray[np.bool_] | None = None
        self.lock = _Lock()  # one thread observes, predicts or reads at a time

    @property
    def task(self) -> Task:
        """What the outputs are."""
        return self.base.task

    @property
    def target_scale(self) -> tuple[float, float]:
        """Of regression by a network: the mean and the deviation of the training target."""
        return getattr(self.base, "target_scale", (0.0, 1.0))

    @property
    def n_observed(self) -> int:
        """D: features with an id below it were there in training."""
        return self.base.n_observed

    # ---- predicting ----------------------------------------------------------------------------

    def outputs(self, frame: Any, graph: Graph = "auto", new_features: Use = "use") -> Floats:
        """Predict rows; never changes the bank.

        Parameters
        ----------
        frame
            Rows as a pandas, polars or pyarrow frame; columns may be new, missing or in any order.
        graph
            What is known of a new feature comes from: "state": the rows seen by training and
            `observe` alone, so that a row's prediction is the same alone and in any batch.
            "batch": those and the rows of `frame` (the paper's way; transductive: a row's
            prediction depends on the other rows of the call, though not on their order).  "auto":
            "batch" for features that the state has never seen, "state" for the rest.
        new_features
            "drop" leaves new features out, as a closed-world model would.

        Returns
        -------
        (N, C) probabilities, two columns for a binary target; (N, K) for K labels; (N, 1) numbers
        """
        if new_features not in ("use", "drop"):
            raise InputError(f"new_features={new_features!r} is unknown: choose 'use' or 'drop'.")
        with self.lock:
            table = self.table(frame)
            if new_features == "drop":
                X, field_of = self.encoder.encode(table), self.encoder.field_of
                return self.base.outputs(table, X, field_of, drop_new=True)
            bank = self.prepared(table, graph)
            return bank.predicted(table, bank.encoder.encode(table))

    def predicted(self, table: Table, X: MultiHot, votes: Floats | None = None) -> Floats:
        """Outputs of encoded rows, by the state.

        Parameters
        ----------
        votes
            (N, C) what the rows were counted with in the sums, where that is not what their
            observed features predict.
        """
        field_of = self.encoder.field_of
        P0 = P = self.base.outputs(table, X, field_of, drop_new=True)
        if self.embeddings:
            P = self.base.outputs(table, X, field_of, drop_new=False)
        return self.combined(P0, P, X, votes)

    def combined(self, P0: Floats, P: Floats, X: MultiHot, votes: Floats | None = None) -> Floats:
        """Predictions P (N, C), moved by the evidence of the rows' new features."""
        if self.evidence is None:
            return P
        new = _new_part(X, self.n_observed)
        own = np.zeros(new.n_features, dtype=bool)
        if self._own is not None:
            own[: len(self._own) - self.n_observed] = self._own[self.n_observed :]
        e = self.evidence.evidence(_only(new, ~own))
        if own.any():
            e = e + self.evidence.evidence(_only(new, own), P0 if votes is None else votes)
        return combine(P, e, self.evidence.state.kind)

    def prepared(self, table: Table, graph: Graph) -> FeatureBank:
        """The bank that predicts these rows: itself, or a copy that has looked at them."""
        if graph not in ("auto", "state", "batch"):
            raise InputError(f"graph={graph!r} is unknown: choose 'auto', 'state' or 'batch'.")
        if graph == "state":
            enforce(self.encoder, table, self.policies, self.overrides)
            return self
        return self.lookahead([table], graph)

    def lookahead(
        self, frames: Iterable[Any], graph: Literal["auto", "batch"] = "auto"
    ) -> FeatureBank:
        """Copy the bank and let the copy see the rows of the frames, as `outputs` does with its.

        Predicting each part of a large file on it with ``graph="state"`` gives what one call with
        the whole file would.

        Parameters
        ----------
        graph
            "auto": only features that the state has never seen learn from the rows.
        """
        with self.lock:
            bank = self
            for frame in frames:
                table = self.table(frame)
                grown = bank.grown(table)
                X = grown.encode(table)
                only = np.ones(X.n_features, dtype=bool)
                if graph == "auto":
                    only[: self.n_observed] = False
                    only[: len(self.rows)] &= self.rows == 0
                if grown is self.encoder and not only[X.ids].any():
                    continue
                bank = self._copied() if bank is self else bank
                bank.encoder = grown
                bank._add(table, X, grown.field_of, only)
                bank._own = only
            return bank

    def _copied(self) -> FeatureBank:
        bank = copy.copy(self)
        bank.lock = _Lock()
        bank.base = self.base.copied()
        bank.evidence = None if self.evidence is None else self.evidence.copied()
        bank.meta = dict(self.meta)
        return bank

    # ---- learning without training -------------------------------------------------------------

    def observe(self, frame: Any, y: NDArray[Any] | None = None, *, seen: bool = False) -> None:
        """Add rows to the state: new columns and values get ids, and all their rows count.

        The model is not trained.  A frame that raises an error leaves the bank as it was.

        Parameters
        ----------
        y
            Labels, where they have come: (N,) class numbers, (N, K) labels, (N,) numbers.
        seen
            Whether these rows were observed before, without labels.
        """
        with self.lock:
            table = self.table(frame)
            grown = self.grown(table)
            X = grown.encode(table)
            self._add(table, X, grown.field_of, y=y, seen=seen)
            self.encoder = grown

    def _add(
        self,
        table: Table,
        X: MultiHot,
        field_of: NDArray[np.integer],
        only: NDArray[np.bool_] | None = None,
        y: NDArray[Any] | None = None,
        seen: bool = False,
    ) -> None:
        # WHY: predicted and checked first; after it nothing can fail but for want of memory.
        P0 = None
        if self.evidence is not None:
            P0 = self.base.outputs(table, X, field_of, drop_new=True)
            self.evidence.state.check(P0, X.n_rows, y)
        counted = X if only is None else _only(X, only)
        if not seen:
            self.base.observe(X, only)
            rows = np.pad(self.rows, (0, max(0, X.n_features - len(self.rows))))
            rows += np.bincount(counted.ids, minlength=len(rows))
            self.rows = rows
            self.n_rows += X.n_rows
        if self.evidence is not None and P0 is not None:
            self.evidence.observe(_new_part(counted, self.n_observed), P0, y, seen=seen)

    def grown(self, table: Table) -> Encoder:
        """The encoder with ids for what the policies let in; the bank is not changed."""
        allowed = enforce(self.encoder, table, self.policies, self.overrides)
        wanted = Schema.from_frame(
            table.select(allowed.columns),
            overrides=self.overrides,
            numeric=self.meta.get("numeric", "buckets"),
        )
        return self.encoder.grow_copy(table, wanted, columns=allowed.columns, values=allowed.values)

    def schema_report(self, frame: Any) -> SchemaReport:
        """Tell which columns and values of a frame are new, missing or known, and what follows."""
        with self.lock:
            table = self.table(frame)
            return compare(self.encoder, table, self.policies, self.overrides, note=self.how())

    def how(self) -> str:
        """How new features are used, and what a probe said to that, in a sentence or two."""
        if self.embeddings:
            used = "New features are used through embeddings computed from their rows."
            if isinstance(self.base, Network) and self.base.n_fields is not None:
                used += (
                    " New columns are not: a network with pool='field_linear' has no weights for "
                    "them before a refit."
                )
            return used
        if self.evidence is None:
            return "New features are ignored: that is the model's strategy."
        decision = self.meta.get("decision")
        if not decision:
            return "New features are used through evidence, with fixed settings."
        if decision["chosen"] == "none":
            used = "Without labels new features are not used"
        else:
            used = f"New features are used through {decision['chosen']}"
        return f"{used} (probe on validation rows: {decision['reason']})."

    def replaced(self, encoder: Encoder, base: Base, evidence: LiveEvidence | None) -> FeatureBank:
        """The same bank around another vocabulary and model, which have seen no rows yet."""
        bank = copy.copy(self)
        bank.lock = _Lock()
        bank.encoder, bank.base, bank.evidence = encoder, base, evidence
        bank.rows, bank.n_rows, bank.meta = np.zeros(base.n_observed), 0, dict(self.meta)
        return bank

    def table(self, frame: Any) -> Table:
        """Read a frame, without the columns that are never used."""
        table = read_table(frame)
        if not self.exclude:
            return table
        return table.select(name for name in table.columns if name not in self.exclude)

    # ---- bundles -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a bundle, whole or not at all: see `openfate.bank.persistence`."""
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
            **self.base.about(),
            "classes": plain_classes(self.classes),
            "embeddings": self.embeddings,
            "policies": self.policies.to_dict(),
            "exclude": list(self.exclude),
            "overrides": self.overrides.to_json(),
        }
        if self.evidence is not None:
            meta["pooling"] = asdict(self.evidence.pooling)
        weights, estimator = self.base.weights(), None
        if isinstance(self.base, Wrapped):
            meta["estimator_format"], estimator = dump(self.base.estimator)
        return Bundle(header, vocabulary, weights, state, meta, estimator)

    def state(self) -> dict[str, NDArray[Any]]:
        """All running sums, by name: what `observe` changes besides the vocabulary."""
        with self.lock:
            n_rows = np.array([self.n_rows], dtype=np.int64)
            state = {"rows": self.rows, "n_rows": n_rows, **self.base.state()}
            if self.evidence is not None:
                state |= {f"evidence.{n}": array for n, array in self.evidence.to_arrays().items()}
            return state

    @classmethod
    def from_bundle(cls, bundle: Bundle, source: str = "bundle") -> FeatureBank:
        """The bank that `to_bundle` took apart; refuses parts that do not fit together."""
        arguments, rows, n_rows = unpacked(bundle, source)
        bank = cls(**arguments)
        bank.rows, bank.n_rows = rows, n_rows
        return bank


class _Lock:
    """A lock of one object: a copy or a pickle of it has one of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> Any:
        return _Lock, ()


def _new_part(X: MultiHot, n_observed: int) -> MultiHot:
    """(N, D' - D) the new features of rows, numbered from 0."""
    part = _only(X, np.arange(X.n_features) >= n_observed)
    return MultiHot(part.row_ptr, part.ids - np.int32(n_observed), X.n_features - n_observed)


def _only(X: MultiHot, features: NDArray[np.bool_]) -> MultiHot:
    """The cells of some features, in the same feature space; their values are left aside."""
    kept = features[X.ids]
    row_ptr = np.concatenate([[0], np.cumsum(kept)])[X.row_ptr].astype(np.int64)
    return MultiHot(row_ptr, X.ids[kept], X.n_features)
