"""What all estimators share: reading X, and everything that a fitted one does with its bank.

Named frames are open: columns may be new, missing or in another order.  Arrays have no names, so
their columns are known by place and their number is strict.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from openfate.bank import (
    FeatureBank,
    Floats,
    Graph,
    Network,
    Retrain,
    Use,
    Wrapped,
    contributions,
)
from openfate.errors import InputError, OpenWorldWarning
from openfate.estimators.data import no_column
from openfate.estimators.target import (
    LabelledRows,
    Target,
    hash_rows,
    join_classes,
    join_numbers,
)
from openfate.estimators.usage import Usage, measure_new_share
from openfate.openworld import GROWTH, WINDOW, Decision, LiveEvidence, Mixture
from openfate.table import (
    Encoder,
    MultiHot,
    Numeric,
    Policies,
    Schema,
    SchemaReport,
    Table,
    column_of,
    read_labels,
    read_table,
    tell_names,
    uncollected,
)

_NO_ROWS = Table(0, {})
_SOME = 20_000  # rows at most, that tell how often a network meets rows that are alike
# A model leans on a column without which the probabilities of training rows move by so much, or
# numbers by so much of their spread; how many rows tell, and of how many columns.
_LEANS, _LEAN_ROWS, _MOST_LEANS = 0.1, 128, 64
_FIRST_RETRAINED, _FIRST_SLOW = 16, 64  # labels, before which training again would be as before


Later = tuple[Table, NDArray[Any], NDArray[np.float64] | None]  # rows, labels, weights


class BankEstimator(BaseEstimator, metaclass=ABCMeta):  # type: ignore[misc]
    """An estimator whose `fit` makes a `FeatureBank`.

    A subclass has the parameters `schema`, `exclude`, `hidden_share`, `random_state`,
    `new_columns`, `new_values`, `missing_columns`, `max_new_features`, `source` and `half_life`, a
    `_read_target` and a `fit`.
    """

    bank_: FeatureBank
    _training: Any = None  # the rows of `fit`, where they are at hand: after `load` by `remind`
    _training_hash: str | None = None
    _target_name: tuple[str, ...]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    def _store(self, values: Mapping[str, Any]) -> None:
        """Keep parameters as they are given, as scikit-learn wants it."""
        for name in self._get_param_names():
            setattr(self, name, values[name])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags

    # ---- fitting -------------------------------------------------------------------------------

    def _read_training(self, X: Any, y: Any, unlabelled: Any) -> tuple[Table, Target, Table | None]:
        """Read what `fit` is given; the estimator learns names, width and classes."""
        _ = self._policies  # WHY: a wrong word is told before any work
        if isinstance(y, str) and _has_names(X):
            X, y = _take_column(X, y)
        table = self._read(X, reset=True)
        target = self._read_target(y, table.n_rows)
        # WHY: a named target must not come in as a feature later.
        name = getattr(y, "name", None)
        is_new = isinstance(name, str) and name and name not in table.columns
        self._target_name = (str(name),) if is_new else ()
        return table, target, None if unlabelled is None else self._read(unlabelled)

    def _read_target(self, y: Any, n_rows: int) -> Target:
        return self._join_target([read_labels(y, n_rows)])

    @abstractmethod
    def _join_target(self, parts: Sequence[NDArray[Any]]) -> Target:
        """The target of labels that came in parts."""

    def _read(self, X: Any, *, reset: bool = False) -> Table:
        """Read a frame or an array; `reset` in fit, where the estimator learns names and width.

        Raises
        ------
        InputError, ValueError, TypeError
            For duplicate names, no rows, arrays of another width, infinite numbers, sparse
            matrices.
        """
        if isinstance(X, Sequence) and len(X) and isinstance(X[0], Mapping):
            raise InputError(
                "it is a list of dicts: give one dict for one row, or a frame of them all, such as "
                "polars.DataFrame(rows)."
            )
        if not _has_names(X):
            array = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan")
            columns = {f"x{at}": _cells(f"x{at}", cells) for at, cells in enumerate(array.T)}
            return Table(len(array), columns, array)
        if not reset and not hasattr(self, "feature_names_in_"):
            raise InputError(
                "it was fitted with an array, whose columns have no names, and now gets a frame "
                "with names: give an array of the same width, or fit with a frame."
            )
        table = read_table(X)
        if reset:
            if not table.n_rows:
                raise InputError("the frame has 0 sample(s): a minimum of 1 row is required.")
            if not table.columns:
                raise InputError("the frame has 0 feature(s): a minimum of 1 column is required.")
            self.feature_names_in_ = np.array(list(table.columns), dtype=object)
            self.n_features_in_ = len(table.columns)
        return table

    def _set_bank(
        self,
        X: MultiHot,
        target: Target,
        encoder: Encoder,
        model: Network | Wrapped,
        usage: Usage | None,
        table: Table = _NO_ROWS,
    ) -> None:
        """Make the bank, which has seen the rows `X`; without `usage` new features are ignored.

        A wrapped model predicts them from their `table`.
        """
        self._training_hash = None
        uses_embeddings = usage is not None and usage.scale is not None
        evidence, mixture, task = None, None, target.task
        if usage is not None:
            step = 1 + X.n_rows // _SOME
            some = X if table.n_rows else X.select_rows(np.arange(0, X.n_rows, step))
            P0, _ = model.predict_both(table, some, encoder.field_at)
            evidence = LiveEvidence(
                *(model.n_outputs, task, usage.state, usage.batch, P0),
                by_source=self.source is not None,
            )
            numbers = target.outcomes if task == "regression" else np.array([0.0, 1.0])
            bounds = float(numbers.min()), float(numbers.max())
            trusts = usage.trusts_evidence
            mixture = Mixture(model.n_outputs, task, trusts_evidence=trusts, bounds=bounds)
        self.bank_ = FeatureBank(
            encoder,
            model,
            target.classes,
            embeddings=usage.strength if usage is not None and uses_embeddings else 0.0,
            evidence=evidence,
            mixture=mixture,
            policies=self._policies,
            exclude=(*self._excluded, *self._target_name),
            overrides=self._overrides,
            max_new_features=self.max_new_features,
            source=self.source,
            half_life=self.half_life,
        )
        # WHY: training rows, in which nothing is new, are no evidence: a feature's rows are
        # compared with the mean of the rows it came with, as in the probe; a mean of other rows,
        # however near, would be counted once for each new feature of a row.
        self.bank_.count(X)
        if said := tell_names(self.bank_.find_row_names()):
            warnings.warn(said, OpenWorldWarning, stacklevel=4)

    def _note_leans(self, frame: Any) -> None:
        """Let the bank know the columns without which predictions of training rows move far."""
        fields = self.bank_.encoder.fields
        # WHY: an array's columns cannot be missing, and one of very many carries little.
        if not hasattr(self, "feature_names_in_") or not 1 < len(fields) <= _MOST_LEANS:
            return
        rows = nw.from_native(frame, eager_only=True)
        # WHY: places, for tables of pyarrow take no slice with a step.
        some = rows[np.arange(0, len(rows), 1 + len(rows) // _LEAN_ROWS)]
        before, predict = self._without_a_column(some)
        unit = 1.0
        if self.bank_.task == "regression":
            unit = float(before.std()) or 1.0
        elif self.bank_.task != "multilabel":
            unit = 2 / before.shape[1]  # probabilities of classes move up and down alike
        leans = {}
        for name in fields:
            # A wrapped model that cannot do without a column says so itself.
            with suppress(InputError):
                moved = float(np.abs(predict(name) - before).mean()) / unit
                if moved >= _LEANS:
                    leans[name] = round(moved, 3)
        self.bank_.meta["leans"] = leans

    def _without_a_column(self, rows: Any) -> tuple[Floats, Callable[[str], Floats]]:
        """What the bank predicts of rows without what is new, and what without a column, too."""
        bank = self.bank_
        call = bank.run(rows.to_native(), "state", use=False)
        model, X, encoder = bank.model, call.X, bank.encoder

        def predict(name: str) -> Floats:
            if isinstance(model, Network):  # WHY: what is missing has no entries; to encode is slow
                field = encoder.fields.index(name)
                X_without = X.select_cells(encoder.field_at[X.ids] != field)
                return model.predict(X_without, encoder.field_at)
            return bank.predict(rows.drop(name).to_native(), new_features="drop")

        return call.outputs, predict

    def _expect_share(self, encoder: Encoder, unlabelled: Table | None) -> float | None:
        """The share of cells that will be new: the parameter, or what unlabelled rows tell."""
        if self.hidden_share is not None or unlabelled is None:
            return None if self.hidden_share is None else float(self.hidden_share)
        left_out = {*self._excluded, *self._target_name}
        table = unlabelled.select(name for name in unlabelled.columns if name not in left_out)
        return measure_new_share(encoder, table, self._policies, self._overrides, self._numeric)

    @property
    def _numeric(self) -> Numeric:
        """How columns of numbers, new ones too, become features."""
        return "linear"

    @property
    def _policies(self) -> Policies:
        return Policies(self.new_columns, self.new_values, self.missing_columns)

    @property
    def _overrides(self) -> Schema:
        return self.schema if isinstance(self.schema, Schema) else Schema(self.schema or ())

    @property
    def _excluded(self) -> tuple[str, ...]:
        name = self.exclude
        if isinstance(name, str):
            raise InputError(f"exclude={name!r} is a string: give a list of columns, [{name!r}].")
        if self.source is None:
            return tuple(name)
        if not isinstance(self.source, str):
            raise InputError(f"source={self.source!r}: give the name of a column.")
        return tuple(dict.fromkeys((*name, self.source)))

    def _draw_seed(self) -> int:
        """Draw a seed from what scikit-learn takes: None, an integer or a generator."""
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except ValueError:
            raise InputError(
                f"random_state={self.random_state!r}: choose an integer from 0 to 2**32 - 1, a "
                "numpy.random.RandomState or None."
            ) from None

    # ---- using the bank ------------------------------------------------------------------------

    def _check_fitted(self) -> None:
        if not hasattr(self, "bank_"):  # WHY: sklearn's check asks every class for its tags first
            check_is_fitted(self, "bank_")

    def _open(self, X: Any) -> Table:
        self._check_fitted()
        return self._read(X)

    def _predict(self, X: Any, graph: Graph, new_features: Use) -> Floats:
        self._check_fitted()
        is_row = isinstance(X, Mapping) and hasattr(self, "feature_names_in_")
        with uncollected(X):
            # WHY no name for the rows: they are gone before the collector would go through them.
            return self.bank_.predict(
                X if is_row else self._read(X),
                graph=graph,
                new_features=new_features,
                policies=self._policies,
            )

    def observe(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        seen: bool = False,
        refit: Literal["auto", "never"] = "auto",
    ) -> Self:
        """Let rows teach the model what is new in them.

        New columns and values get an id, and from then on what is known of them is computed from
        all the rows that had them.  Labels, where they come later, count at once: what they teach
        corrects the predictions of old and new features, and the model trained again is one more
        way to predict.  All ways are weighed by what each would have lost on every label before it
        was learned from (`openfate.openworld.Mixture`).  This changes the model (prediction never
        does); a frame that raises an error leaves it as it was.

        Parameters
        ----------
        X
            Rows, with or without new columns.
        y
            Their labels, as in `fit`, if they are known.
        sample_weight
            (N,) how much each label counts, above 0; the largest counts as one row.
        seen
            Whether these rows were observed before, when they had no labels.
        refit
            "auto": the model is trained again on the rows of `fit` and the labelled ones, whenever
            labels have grown enough, as long as the rows of `fit` are at hand (after `load` they
            are where `remind` was given them).  "never": labels correct it without.
        """
        if refit not in ("auto", "never"):
            raise InputError(f"refit={refit!r} is unknown: choose 'auto' or 'never'.")
        table = self._open(X)
        labels = None if y is None else self.bank_.read_labels(y, table.n_rows)
        weight = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        options: dict[str, Any] = {"seen": seen, "weight": weight, "policies": self._policies}
        if labels is not None and refit == "auto":
            options |= self.retraining(self.bank_, table, labels, weight)
        self.bank_.observe(table, labels, **options)
        return self

    # ---- training again ------------------------------------------------------------------------

    def remind(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Give a loaded estimator the rows of `fit` again, which no bundle holds.

        `observe` then trains the model again, as it does after `fit` (``refit="auto"``); nothing
        else changes.  Labelled rows that were observed before `save` are not among those rows.

        Parameters
        ----------
        X, y, sample_weight
            As `fit` got them, in the same order; columns that it did not get are left out.

        Raises
        ------
        InputError
            Where these are other rows, by number or by hash, or the model cannot be trained again.

        Examples
        --------
        >>> import pandas as pd, tempfile
        >>> from openfate import OpenWorldClassifier, load
        >>> rows = pd.DataFrame({"age": range(20, 70)})
        >>> clf = OpenWorldClassifier().fit(rows, rows["age"] > 45)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     clf.save(folder + "/model")
        ...     again = load(folder + "/model").remind(rows, rows["age"] > 45)
        >>> _ = again.observe(rows.assign(city="Rome"), rows["age"] > 45)
        >>> again.bank_.retrained is not None
        True
        """
        if isinstance(y, str) and _has_names(X):
            X, y = _take_column(X, y)
        table, bank = self._open(X), self.bank_
        if bank.mixture is None:
            raise InputError("this model learns nothing from labels: it is never trained again.")
        if (fault := self._training_fault()) is not None:
            raise InputError(f"this model cannot be trained again: {fault}.")
        told = bank.meta.get("data_hash")
        if told is None:
            raise InputError(
                "the bundle is of an earlier version and does not tell which rows it was fitted "
                "on: fit it again."
            )
        columns = self._fitted_columns(table)
        if missing := [name for name in columns if name not in table.columns]:
            raise InputError(
                f"the rows have no column {missing[0]!r}, which the model was fitted on: give the "
                "rows of fit."
            )
        labels = bank.read_labels(y, table.n_rows)
        table = _numbers_read(table.select(columns), bank.encoder.schema)
        training, rows = self._remember_rows(table, labels, sample_weight)
        if rows.X.n_rows != bank.meta["n_rows"]:
            raise InputError(
                f"these are {rows.X.n_rows:,} rows, and the model was fitted on "
                f"{bank.meta['n_rows']:,}: give the rows of fit."
            )
        if hash_rows(rows) != told:
            raise InputError(
                "these are not the rows that the model was fitted on: cells, labels or their order "
                "differ; give the rows of fit, as they were."
            )
        self._training, self._training_hash = training, _hash_exactly(rows, table, told)
        return self

    @property
    def training_hash(self) -> str | None:
        """What tells the rows that `remind` was given from all others; None where it was not."""
        return self._training_hash

    def retraining(
        self,
        bank: FeatureBank,
        table: Table,
        labels: NDArray[Any],
        weight: NDArray[np.float64] | None = None,
    ) -> dict[str, Any]:
        """What `FeatureBank.observe` needs, so that these labels train the model again.

        Parameters
        ----------
        bank
            The estimator's own, or one that became of it.
        table, labels, weight
            As `FeatureBank.observe` gets them.

        Returns
        -------
            Its arguments `retrain` and `keep`; none where the rows of `fit` are not at hand.
        """
        table = _numbers_read(table, bank.encoder.schema)
        retrain = self._retrain_with(bank, table, labels, weight)
        if retrain is None or not table.columns:  # rows without a cell have nothing to train on
            return {}
        part = (kept_rows(table), labels, weight)
        return {"retrain": retrain, "keep": partial(_keep_newest, part=part)}

    @abstractmethod
    def _retrain_with(
        self,
        bank: FeatureBank,
        table: Table,
        labels: NDArray[Any],
        weight: NDArray[np.float64] | None,
    ) -> Retrain | None:
        """What trains the model again with some of these rows; None where it cannot be."""

    @abstractmethod
    def _training_fault(self) -> str | None:
        """Why a model that was read from a bundle cannot be trained; None where it can."""

    @abstractmethod
    def _fitted_columns(self, table: Table) -> list[str]:
        """The columns of rows such as those of `fit` that the model was trained on."""

    @abstractmethod
    def _remember_rows(
        self, table: Table, labels: NDArray[Any], sample_weight: ArrayLike | None
    ) -> tuple[Any, LabelledRows]:
        """`_training` of the rows of `fit`, and the rows as their hash is computed of them."""

    # ---- what is new ---------------------------------------------------------------------------

    def schema_report(self, X: Any) -> SchemaReport:
        """Which columns and values of `X` are new, missing or known, and what is done with each.

        Printable, a small table in a notebook, and ``.to_dict()`` for programs.
        """
        table = self._open(X)
        report = self.bank_.schema_report(table, policies=self._policies)
        if self._training is None and self.bank_.mixture is not None:
            more = (
                "The rows of fit are not at hand (remind): labels correct the model without "
                "training again."
            )
            return replace(report, note=f"{report.note} {more}")
        return report

    def explain(self, X: Any, graph: Graph = "auto", rows: Sequence[int] | None = None) -> Any:
        """Which features pushed each row's prediction; new ones are marked.

        The effect of a feature is that of leaving it out: the log-odds of the predicted class
        (binary: of the second class; regression: the number) with it minus without it.  Of a
        wrapped model only new features are told: the known ones are its own business.

        Parameters
        ----------
        X, graph
            As in prediction.  What is known of a feature that no earlier row had comes from the
            rows of the call: explain a row together with those it was predicted with.
        rows
            Places of the rows to explain; all by default.

        Returns
        -------
            A frame of the kind of `X` (polars for arrays) with the columns row, output, field,
            value, new and effect, one line for each feature of each row.
        """
        table = self._open(X)
        columns = contributions(self.bank_, table, graph, rows, policies=self._policies)
        native = nw.from_native(X, pass_through=True)
        backend = native.implementation if isinstance(native, nw.DataFrame) else "polars"
        return nw.from_dict(columns, backend=backend).to_native()

    # ---- bundles -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a bundle: a folder of plain files that `load` reads without the training data.

        Parameters
        ----------
        path
            The folder; one that is there needs `overwrite`.

        Raises
        ------
        InputError
            Where the path is taken, or a wrapped model has no format that is safe to read back.
        """
        check_is_fitted(self, "bank_")
        self.bank_.save(path, overwrite=overwrite)

    def _describe(self, decision: Decision | None, **more: Any) -> None:
        """Let the bank remember what makes this estimator again, and what else a bundle tells."""
        self.bank_.meta.update(
            {
                "kind": type(self).__name__,
                "columns": getattr(self, "feature_names_in_", np.array([])).tolist(),
                "n_features_in": self.n_features_in_,
                "classes_dtype": str(getattr(self, "classes_", np.array([])).dtype),
                "decision": None if decision is None else decision.to_json(),
                **more,
            }
        )

    def _restore(self, bank: FeatureBank) -> Self:
        """Become the fitted estimator whose bank was read from a bundle."""
        meta, self.bank_ = bank.meta, bank
        self.n_features_in_ = int(meta["n_features_in"])
        if meta["columns"]:
            self.feature_names_in_ = np.array(meta["columns"], dtype=object)
        if bank.task != "regression":
            self.classes_ = np.array(bank.classes, dtype=meta["classes_dtype"])
        self._target_name = tuple(name for name in bank.exclude if name not in self._excluded)
        return self


class BankClassifier(ClassifierMixin, BankEstimator):  # type: ignore[misc]
    """What classifiers do with their bank."""

    classes_: NDArray[Any]

    def _join_target(self, parts: Sequence[NDArray[Any]]) -> Target:
        target = join_classes(parts)
        self.classes_ = np.array(target.classes)
        return target

    def predict_proba(self, X: Any, graph: Graph = "auto", new_features: Use = "use") -> Floats:
        """Probabilities of the classes, in the order of `classes_`; the model is not changed.

        Parameters
        ----------
        X
            Rows; columns may be new, missing or in any order (arrays: as in `fit`).  Or one row, a
            dict of its cells by column, which takes no frame: the way for a request.
        graph
            What new features are computed from: "state" (training and observed rows), "batch"
            (those and the rows of `X`), "auto" ("batch" for what the state has never seen).
        new_features
            "drop" ignores new features, to see what they are worth.

        Returns
        -------
        (N, C), or (N, K) for K labels
        """
        return self._predict(X, graph, new_features)

    def predict(self, X: Any, graph: Graph = "auto", new_features: Use = "use") -> NDArray[Any]:
        """The likeliest class of each row, or its labels: (N,) or (N, K); see `predict_proba`."""
        p = self._predict(X, graph, new_features)
        if self.bank_.task == "multilabel":
            return (p > 0.5).astype(np.int64)
        return np.asarray(self.classes_[p.argmax(axis=1)])


class BankRegressor(RegressorMixin, BankEstimator):  # type: ignore[misc]
    """What regressors do with their bank."""

    def _join_target(self, parts: Sequence[NDArray[Any]]) -> Target:
        return join_numbers(parts)

    def predict(self, X: Any, graph: Graph = "auto", new_features: Use = "use") -> Floats:
        """Numbers (N,); see `FATEClassifier.predict_proba` for `graph` and `new_features`."""
        return self._predict(X, graph, new_features)[:, 0]


def is_due(n_labels: int, *, slow: bool) -> bool:
    """Whether a model is trained again at so many labels: at each solution, or when they doubled.

    Examples
    --------
    >>> [n for n in (8, 16, 20, 64, 80, 100, 128) if is_due(n, slow=True)]
    [64, 128]
    """
    if not slow:
        return n_labels >= _FIRST_RETRAINED
    octaves = [math.floor(math.log2(n / _FIRST_SLOW)) for n in (n_labels, n_labels / GROWTH)]
    return octaves[0] >= 0 and octaves[0] > octaves[1]


def _keep_newest(kept: tuple[Later, ...], part: Later) -> tuple[Later, ...]:
    """The last parts, as few as hold as many rows as corrections are solved from.

    WHY joined: labels may come one by one, and to train takes a time for each part.  A part joins
    the last of the same columns that is no longer than itself: each row is copied a few times.
    """
    parts = list(kept)
    while (at := _find_alike(parts, part)) is not None:
        part = _join(parts.pop(at), part)
    parts.append(part)
    n_rows = np.cumsum([each[0].n_rows for each in reversed(parts)])
    return tuple(parts[-1 - int(np.searchsorted(n_rows, WINDOW)) :])


def _find_alike(parts: Sequence[Later], part: Later) -> int | None:
    """The last of the parts that may be joined with another one, if it is no longer than that."""
    kind = _kind(part)
    alike = [at for at, other in enumerate(parts) if kind is not None and _kind(other) == kind]
    return alike[-1] if alike and parts[alike[-1]][0].n_rows <= part[0].n_rows else None


def _kind(part: Later) -> Any:
    """What parts must have in common to be joined; None where a part is left alone."""
    table, _, weight = part
    frame = table.native
    return (frame.schema, weight is None) if isinstance(frame, pl.DataFrame) else None


def _join(first: Later, second: Later) -> Later:
    tables = first[0], second[0]
    frame = pl.concat([table.native for table in tables])
    columns = {
        name: pl.concat([table.columns[name] for table in tables]) for name in tables[0].columns
    }
    weight = None if first[2] is None else np.concatenate([first[2], second[2]])
    labels = np.concatenate([first[1], second[1]])
    return Table(len(frame), columns, frame), labels, weight


def _hash_exactly(rows: LabelledRows, table: Table, told: str) -> str:
    """As `told`, the hash of features and labels, and of numbers to the last bit and weights."""
    digest = hashlib.sha256(told.encode())
    for name, column in table.columns.items():
        if column.dtype.is_numeric() or column.dtype.is_temporal():
            numbers = column.to_physical().cast(pl.Float64).fill_null(np.nan).to_numpy()
            digest.update(name.encode() + np.ascontiguousarray(numbers).tobytes())
    if rows.weight is not None:
        digest.update(np.ascontiguousarray(rows.weight).tobytes())
    return digest.hexdigest()


def _numbers_read(table: Table, schema: Schema) -> Table:
    """The rows, with numbers that came as text as the numbers that the encoder reads in them.

    WHY: a model that is trained again would take a column that is text anywhere for one of words.
    """
    read = {
        field.name: table.columns[field.name].cast(pl.Float64, strict=False)
        for field in schema
        if field.kind == "numeric"
        and field.name in table.columns
        and table.columns[field.name].dtype == pl.String
    }
    if not read:
        return table
    frame = table.native
    frame = frame.with_columns(**read) if isinstance(frame, pl.DataFrame) else frame
    return Table(table.n_rows, {**table.columns, **read}, frame)


def kept_rows(table: Table) -> Table:
    """The rows without what was computed of them, which would be kept and cannot be pickled."""
    return Table(table.n_rows, table.columns, table.native)


@contextmanager
def unchanged_on_error(estimator: BaseEstimator) -> Iterator[None]:
    """Leave an estimator as it was where a fit fails: no new names around an old model."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def _has_names(X: Any) -> bool:
    """Whether it is a frame with names of its own; pandas numbers columns that have none."""
    if isinstance(X, Mapping):
        return True  # one row
    try:
        frame = nw.from_native(X, pass_through=True)
    except nw.exceptions.DuplicateError:
        return True  # `read_table` says which names they are
    if isinstance(frame, nw.LazyFrame):
        raise InputError("a lazy frame cannot be used: call .collect() first.")
    if not isinstance(frame, nw.DataFrame):
        return False
    return not frame.columns or any(isinstance(name, str) for name in frame.columns)


def _take_column(X: Any, name: str) -> tuple[Any, Any]:
    """A frame without one of its columns, and that column."""
    frame = nw.from_native(X, eager_only=True)
    if name not in frame.columns:
        raise no_column("y", name, frame.columns)
    return frame.drop(name).to_native(), frame[name].to_native()


def _cells(name: str, cells: NDArray[Any]) -> pl.Series:
    if cells.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} holds {cells[0]}.")
    if cells.dtype.kind != "O":
        column = pl.Series(name, np.ascontiguousarray(cells))
        return column.fill_nan(None) if column.dtype.is_float() else column
    return column_of(name, list(cells))
