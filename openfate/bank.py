"""FeatureBank: a trained model, its vocabulary and the running state of new features.

The one path of a prediction, which estimators, command line and service share:

    frame -> (policies) -> encode -> extrapolate from running sums -> backbone -> outputs

Prediction never changes a bank.  `observe` does: it gives ids to what is new and adds rows to the
sums.  No training, no scikit-learn.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.data.changes import SchemaReport, compare, enforce
from openfate.data.encode import Encoder
from openfate.data.frame import Table, read_table
from openfate.data.multihot import MultiHot
from openfate.data.policies import Policies
from openfate.data.schema import Schema
from openfate.errors import DataFileError, InputError
from openfate.models.backbone import MLP
from openfate.models.extrapolator import GraphSAGE
from openfate.models.fate import FATE
from openfate.models.running import RunningFATE, Sums
from openfate.persistence import Bundle, read_bundle, write_bundle

__all__ = ["FeatureBank", "Graph", "Task"]

Task = Literal["binary", "multiclass", "multilabel", "regression"]
Graph = Literal["auto", "state", "batch"]
Use = Literal["use", "drop"]


class FeatureBank:
    """A trained model that can meet new columns and values, and remembers what it met.

    Made by an estimator's `fit` (``estimator.bank_``) or by `FeatureBank.load`.

    Parameters
    ----------
    encoder, running
        The vocabulary, and the network with its running sums; ids agree.
    task, classes
        What the outputs are: probabilities of `classes`, or numbers.
    target_scale
        Of regression: the mean and the deviation that standardised the target.
    policies
        What to do with new columns, new values and missing columns.
    exclude
        Columns that are never used, also when they appear later: the target, for one.
    overrides
        Fields of columns that may appear later, where inference would guess wrong.
    meta
        Settings, metrics and whatever else a bundle should tell.
    """

    def __init__(
        self,
        encoder: Encoder,
        running: RunningFATE,
        task: Task,
        classes: Sequence[Any] = (),
        *,
        target_scale: tuple[float, float] = (0.0, 1.0),
        policies: Policies | None = None,
        exclude: Sequence[str] = (),
        overrides: Schema | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.encoder, self.running = encoder, running
        self.task: Task = task
        self.classes = list(classes)
        self.target_scale = target_scale
        self.policies = policies or Policies()
        self.exclude = tuple(exclude)
        self.overrides = overrides or Schema([])
        self.meta = dict(meta or {})

    # ---- predicting ----------------------------------------------------------------------------

    def outputs(
        self, frame: Any, graph: Graph = "auto", new_features: Use = "use"
    ) -> NDArray[np.float64]:
        """Predict rows; never changes the bank.

        Parameters
        ----------
        frame
            Rows as a pandas, polars or pyarrow frame; columns may be new, missing or in any order.
        graph
            What a new feature's embedding is computed from.  "state": the rows seen by training and
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
        table = self._table(frame)
        bank = self._prepared(table, graph) if new_features == "use" else self
        return bank.predicted(bank.encoder.encode(table), drop_new=new_features == "drop")

    def predicted(self, X: MultiHot, drop_new: bool = False) -> NDArray[np.float64]:
        """Outputs of encoded rows, by the state."""
        return self.finish(self.running.logits(X, self.encoder.field_of, drop_new))

    def _prepared(self, table: Table, graph: Graph) -> FeatureBank:
        if graph not in ("auto", "state", "batch"):
            raise InputError(f"graph={graph!r} is unknown: choose 'auto', 'state' or 'batch'.")
        if graph == "state":
            enforce(self.encoder, table, self.policies, self.overrides)
            return self
        return self.lookahead([table], graph)

    def lookahead(
        self,
        frames: Iterable[Any],
        graph: Literal["auto", "batch"] = "auto",
        schema: Schema | None = None,
    ) -> FeatureBank:
        """Copy the bank and let the copy see the rows of the frames, as `outputs` does with its.

        Predicting each part of a large file on it with ``graph="state"`` gives what one call with
        the whole file would.

        Parameters
        ----------
        graph
            "auto": only features that the state has never seen learn from the rows.
        schema
            The kinds and bounds of new columns, where one frame does not tell them for all.
        """
        seen = self.running.sums.counts > 0
        bank = self
        for frame in frames:
            table = self._table(frame)
            grown = bank.grown(table, schema)
            X = grown.encode(table)
            only = None
            if graph == "auto":
                only = np.ones(X.n_features, dtype=bool)
                only[: len(seen)] = ~seen
                X = X.select_rows(_rows_with(X, only))
            if grown is self.encoder and not X.n_rows:
                continue
            if bank is self:
                bank = copy.copy(self)
                bank.running = self.running.copied()
            bank.encoder = grown
            bank.running.observe(X, only)
        return bank

    def finish(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logits (N, C) -> what the task predicts: probabilities, or numbers."""
        if self.task == "regression":
            mean, deviation = self.target_scale
            return logits * deviation + mean
        if self.task == "multiclass":
            powers = np.exp(logits - logits.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True))
        p = torch.from_numpy(logits).sigmoid().numpy()
        return p if self.task == "multilabel" else np.concatenate([1 - p, p], axis=1)

    # ---- learning without training -------------------------------------------------------------

    def observe(self, frame: Any, schema: Schema | None = None) -> None:
        """Add rows to the state: new columns and values get ids, and all their rows count.

        The network is not trained.  A frame that raises an error leaves the bank as it was.

        Parameters
        ----------
        schema
            The kinds and bounds of new columns; by inference where not given.
        """
        table = self._table(frame)
        grown = self.grown(table, schema)
        self.running.observe(grown.encode(table))
        self.encoder = grown

    def grown(self, table: Table, schema: Schema | None = None) -> Encoder:
        """The encoder with ids for what the policies let in; the bank is not changed."""
        allowed = enforce(self.encoder, table, self.policies, self.overrides)
        wanted = Schema.from_frame(
            table.select(allowed.columns),
            overrides=[*self.overrides, *(schema or ())],
            numeric=self.meta.get("numeric", "buckets"),
        )
        return self.encoder.grown(table, wanted, columns=allowed.columns, values=allowed.values)

    def schema_report(self, frame: Any) -> SchemaReport:
        """Tell which columns and values of a frame are new, missing or known, and what follows."""
        return compare(self.encoder, self._table(frame), self.policies, self.overrides)

    # ---- looking at it -------------------------------------------------------------------------

    def contributions(self, frame: Any, graph: Graph = "auto") -> dict[str, list[Any]]:
        """How much each feature of each row moved its output.

        The effect is that of leaving the feature out: the log-odds of the predicted class (of the
        second one for a binary target; of each label; the number itself in regression) with it
        minus without it.

        Returns
        -------
            Columns of equal length: row, output, field, value, new, effect.
        """
        table = self._table(frame)
        bank = self._prepared(table, graph)
        X = bank.encoder.encode(table)
        whole = _scores(bank.predicted(X), self.task)
        effect = whole[X.row_of] - _scores(bank.predicted(_leave_one_out(X)), self.task)  # (E, C)
        entry, output = self._explained(whole, X.row_of)
        named = [bank.encoder.decode(int(feature)) for feature in X.ids[entry]]
        names = ["prediction"] if self.task == "regression" else self.classes
        return {
            "row": X.row_of[entry].tolist(),
            "output": [names[at] for at in output],
            "field": [field for field, _ in named],
            "value": [describe_value(value) for _, value in named],
            "new": (X.ids[entry] >= self.running.n_observed).tolist(),
            "effect": effect[entry, output].tolist(),
        }

    def _explained(
        self, scores: NDArray[np.float64], row_of: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Pairs (entry, output) to tell of: one output for each entry, or every label."""
        entries = np.arange(len(row_of))
        if self.task == "multilabel":
            n_labels = scores.shape[1]
            return np.repeat(entries, n_labels), np.tile(np.arange(n_labels), len(entries))
        if self.task == "multiclass":
            return entries, scores.argmax(axis=1)[row_of]
        return entries, np.full(len(entries), int(self.task == "binary"))

    def nearest(self, field: str, value: str | float | None, k: int = 5) -> dict[str, Any]:
        """Tell what the bank knows of one feature.

        Parameters
        ----------
        field, value
            The feature; of a bucketed field any number in the bucket, None for a missing cell.
        k
            How many of the observed features nearest to it (by the cosine of their embeddings).

        Returns
        -------
            Its id, whether it is new, its number of rows, its neighbours, and its effect: the
            change of the outputs of an average row that gets the feature.
        """
        feature = self._find(field, value)
        running = self.running
        own = running.embeddings(np.array([feature], dtype=np.int32), self.encoder.field_of)[0]
        known = running.W.double()
        cosine = torch.nn.functional.cosine_similarity(known, own[None], dim=1).cpu().numpy()
        if feature < running.n_observed:
            cosine[feature] = -np.inf
        order = np.argsort(-cosine, kind="stable")[: min(k, len(cosine))]
        return {
            "field": field,
            "value": describe_value(self.encoder.decode(feature)[1]),
            "id": feature,
            "new": feature >= running.n_observed,
            "rows": self._rows_of(feature),
            "nearest": [
                {**self._named(int(j)), "cosine": float(cosine[j])}
                for j in order
                if np.isfinite(cosine[j])
            ],
            "effect": self._average_effect(own),
        }

    def _find(self, field: str, value: str | float | None) -> int:
        feature = self.encoder.find(field, value)
        if feature is None:
            raise InputError(
                f"field {field!r} has no value {value!r} in this bank: observe rows that have it."
            )
        return feature

    def _named(self, feature: int) -> dict[str, Any]:
        field, value = self.encoder.decode(feature)
        rows = self._rows_of(feature)
        return {"field": field, "value": describe_value(value), "rows": rows}

    def _rows_of(self, feature: int) -> int:
        counts = self.running.sums.counts
        return int(counts[feature]) if feature < len(counts) else 0

    def _average_effect(self, own: torch.Tensor) -> dict[str, float]:
        running = self.running
        counts = torch.from_numpy(running.sums.counts[: running.n_observed]).to(own.device)
        average = counts @ running.W.double() / max(1, self.meta.get("n_rows", 0))
        with torch.no_grad():
            logits = running.backbone(torch.stack([average, average + own])).cpu().numpy()
        before, after = self.finish(logits)
        names = self.classes or ["prediction"]
        return {str(n): float(a - b) for n, a, b in zip(names, after, before, strict=True)}

    def describe(self) -> dict[str, Any]:
        """What the bank is, for people and programs: fields, sizes, settings, metrics."""
        field_of = self.encoder.field_of
        new = np.arange(len(field_of)) >= self.running.n_observed
        fields = [
            {
                "name": field.name,
                "kind": field.kind,
                "observed_features": int(np.sum((field_of == index) & ~new)),
                "new_features": int(np.sum((field_of == index) & new)),
            }
            for index, field in enumerate(self.encoder.schema)
        ]
        return {
            "task": self.task,
            "classes": [str(name) for name in self.classes],
            "observed_features": self.running.n_observed,
            "new_features": int(new.sum()),
            "fields": fields,
            "exclude": list(self.exclude),
            "policies": self.policies.to_dict(),
            "meta": {key: value for key, value in self.meta.items() if key != "files"},
        }

    def replaced(self, encoder: Encoder, running: RunningFATE) -> FeatureBank:
        """The same bank around another vocabulary and network."""
        bank = copy.copy(self)
        bank.encoder, bank.running, bank.meta = encoder, running, dict(self.meta)
        return bank

    def _table(self, frame: Any) -> Table:
        table = read_table(frame)
        if not self.exclude:
            return table
        return table.select(name for name in table.columns if name not in self.exclude)

    # ---- bundles -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a bundle, whole or not at all: see `openfate.persistence`."""
        write_bundle(self.to_bundle(), path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> FeatureBank:
        """Read a bundle that `save` or an estimator wrote; needs no training data."""
        return cls.from_bundle(read_bundle(path), str(path))

    def to_bundle(self) -> Bundle:
        """Everything as plain values."""
        header, vocabulary = self.encoder.to_parts()
        running = self.running
        weights = {"W": running.W.cpu().numpy()}
        for part in ("backbone", "extrapolator"):
            module = getattr(running, part)
            if module is not None:
                state = module.state_dict()
                weights |= {f"{part}.{n}": t.float().cpu().numpy() for n, t in state.items()}
        meta = {
            **self.meta,
            "task": self.task,
            "classes": _plain_classes(self.classes),
            "target_scale": list(self.target_scale),
            "policies": self.policies.to_dict(),
            "exclude": list(self.exclude),
            "overrides": self.overrides.to_json(),
            "recompose": running.recompose,
        }
        state = {"counts": running.sums.counts, "messages": running.sums.messages}
        return Bundle(header, vocabulary, weights, state, meta)

    @classmethod
    def from_bundle(cls, bundle: Bundle, source: str = "bundle") -> FeatureBank:
        """The bank that `to_bundle` took apart; refuses parts that do not fit together."""
        meta = bundle.meta
        try:
            encoder = Encoder.from_parts(bundle.schema, bundle.vocabulary)
            running = _running_from(bundle)
            bank = cls(
                encoder,
                running,
                meta["task"],
                meta["classes"],
                target_scale=tuple(meta["target_scale"]),
                policies=Policies.from_dict(meta["policies"]),
                exclude=meta["exclude"],
                overrides=Schema.from_json(meta["overrides"]),
                meta={k: v for k, v in meta.items() if k not in _WRITTEN_BY_BUNDLE},
            )
        except (InputError, KeyError, TypeError, RuntimeError, ValueError) as error:
            raise DataFileError(
                f"{source}: the parts of the bundle do not fit together ({error})."
            ) from None
        if not running.n_observed <= len(running.sums.counts) <= encoder.n_features:
            raise DataFileError(
                f"{source}: the vocabulary has {encoder.n_features} features, the weights "
                f"{running.n_observed} and the state {len(running.sums.counts)}; it is damaged."
            )
        return bank


_WRITTEN_BY_BUNDLE = {
    "format",
    "openfate",
    "versions",
    "written",
    "files",
    "digest",
    "task",
    "classes",
    "target_scale",
    "policies",
    "exclude",
    "overrides",
    "recompose",
}


def _running_from(bundle: Bundle) -> RunningFATE:
    tensors = {name: torch.from_numpy(array) for name, array in bundle.weights.items()}
    n_features, width = tensors["W"].shape
    n_layers = sum(name.startswith("backbone.") and name.endswith(".weight") for name in tensors)
    sizes = [len(tensors[f"backbone.layers.{layer}.bias"]) for layer in range(n_layers)]
    *hidden, n_outputs = sizes
    has_graph = any(name.startswith("extrapolator.") for name in tensors)
    normalize = bool(bundle.meta.get("normalize", True))
    extrapolator = GraphSAGE(width, 2, normalize) if has_graph else None
    model = FATE(
        n_features,
        MLP(width, n_outputs, hidden),
        extrapolator,
        recompose=bundle.meta["recompose"],
    )
    model.load_state_dict(tensors)
    sums = Sums(bundle.state["counts"].copy(), bundle.state["messages"].copy())
    if sums.messages.shape != (len(sums.counts), width) or sums.counts.dtype != np.float64:
        raise ValueError(f"sums of the shape {sums.messages.shape} for width {width}")
    return RunningFATE(model, sums)


def describe_value(value: Any) -> str:
    """A feature's value as text for people: a bucket as an interval, a missing cell as such."""
    if value is None:
        return "(missing)"
    if isinstance(value, tuple):
        low, high = value
        return f"{low:g} to {high:g}"
    return str(value)


def _scores(outputs: NDArray[np.float64], task: Task) -> NDArray[np.float64]:
    """Log-odds of probabilities; numbers as they are."""
    if task == "regression":
        return outputs
    p = np.clip(outputs, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def _rows_with(X: MultiHot, features: NDArray[np.bool_]) -> NDArray[np.intp]:
    hit = np.concatenate([[0], np.cumsum(features[X.ids])])
    return np.flatnonzero(np.diff(hit[X.row_ptr]))


def _leave_one_out(X: MultiHot) -> MultiHot:
    """(E, D): for each entry of X its row without it."""
    degree = X.row_degree
    repeated = X.select_rows(np.repeat(np.arange(X.n_rows), degree))
    place = np.arange(X.nnz) - np.repeat(X.row_ptr[:-1], degree)  # of the entry within its row
    left_out = repeated.row_ptr[:-1] + place
    keep = np.ones(repeated.nnz, dtype=bool)
    keep[left_out] = False
    values = None if repeated.values is None else repeated.values[keep]
    row_ptr = repeated.row_ptr - np.arange(X.nnz + 1)
    return MultiHot(row_ptr, repeated.ids[keep], X.n_features, values)


def _plain_classes(classes: Sequence[Any]) -> list[Any]:
    plain = [c.item() if isinstance(c, np.generic) else c for c in classes]
    for name in plain:
        if not isinstance(name, str | int | float | bool):
            raise InputError(
                f"class {name!r} of type {type(name).__name__} cannot be written: "
                "use text, whole numbers or truth values."
            )
    return plain
