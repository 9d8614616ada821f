"""What every fitted estimator does with its bank: predict, observe, report, explain, save."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import narwhals as nw
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from openfate.bank import FeatureBank, Floats, Graph, Use, contributions
from openfate.estimators.inputs import as_predicted, label_target, open_table
from openfate.table import Policies, Policy, SchemaReport, Table

__all__ = ["BankEstimator"]


class BankEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator whose `fit` makes a `FeatureBank`."""

    bank_: FeatureBank
    new_columns: Policy
    new_values: Policy
    missing_columns: Policy

    def _outputs(self, X: Any, graph: Graph, new_features: Use) -> Floats:
        table = self._open(X)
        return self.bank_.predict(
            table, graph=graph, new_features=new_features, policies=self._policies
        )

    def _open(self, X: Any) -> Table:
        check_is_fitted(self, "bank_")
        return open_table(self, X, reset=False)

    @property
    def _policies(self) -> Policies:
        return Policies(self.new_columns, self.new_values, self.missing_columns)

    def observe(self, X: Any, y: Any = None, *, seen: bool = False) -> Self:
        """Let rows teach the model what is new in them; nothing is trained.

        New columns and values get an id, and from then on what is known of them is computed from
        all the rows that had them.  Labels, where they come later, sharpen it: what happened is
        compared with what the model expected.  This changes the model (prediction never does); a
        frame that raises an error leaves it as it was.

        Parameters
        ----------
        X
            Rows, with or without new columns.
        y
            Their labels, as in `fit`, if they are known.
        seen
            Whether these rows were observed before, when they had no labels.
        """
        table = self._open(X)
        labels = None
        if y is not None:
            labels = as_predicted(label_target(y, table.n_rows, self.bank_))
        self.bank_.observe(table, labels, seen=seen, policies=self._policies)
        return self

    def schema_report(self, X: Any) -> SchemaReport:
        """Which columns and values of `X` are new, missing or known, and what is done with each.

        Printable, a small table in a notebook, and ``.to_dict()`` for programs.
        """
        table = self._open(X)
        return self.bank_.schema_report(table, policies=self._policies)

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
