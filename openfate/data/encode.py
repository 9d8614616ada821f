"""Encoder: (field, value) -> feature id, the map behind the rows of X.

The vocabulary only ever grows and an id, once given, never changes: that is what lets a trained
model meet new values and new columns.  Numeric fields are cut into equal-width buckets.
Only values and buckets that occur get an id; D is their number, N rows, d fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.data.frame import Table, elements_of, numbers_of, read_table, text_of
from openfate.data.multihot import MultiHot
from openfate.data.schema import Field, Schema, infer
from openfate.errors import InputError

__all__ = ["Encoder"]

Key = str | int | None  # a value's text, a bucket's number, or None for a missing cell
Value = str | tuple[float, float] | None
Edges = NDArray[np.float64]  # (buckets + 1,)


class Encoder:
    """Gives every (field, value) pair an id and turns frames into 0-1 rows.

    Parameters
    ----------
    schema
        The fields to encode; other columns of a frame are left alone until `grow` meets them.
    missing
        "feature": a missing cell (null, NaN) is a value of its own.  "none": it gives no feature.

    Notes
    -----
    Values are compared as text: the integer 1, the float 1.0 and the text "1" are one feature
    (pandas turns integers into floats where a cell is missing), the text "1.0" is another.
    A missing cell is not an unknown value: "missing" may be a feature, unknown gives none.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({"job": ["cook", "pilot"], "age": [20.0, 60.0]})
    >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
    >>> [encoder.decode(j) for j in range(encoder.n_features)]
    [('job', 'cook'), ('job', 'pilot'), ('age', (20.0, 24.0)), ('age', (56.0, 60.0))]
    >>> later = pl.DataFrame({"job": ["judge"], "age": [61.5], "city": ["Rome"]})
    >>> encoder.encode(later).ids.tolist()  # unknown job, unknown column, age clipped
    [3]
    >>> encoder.grow(later).tolist()
    [4, 5]
    >>> encoder.encode(later).ids.tolist()
    [4, 3, 5]
    """

    def __init__(self, schema: Schema, missing: Literal["feature", "none"] = "feature") -> None:
        if missing not in ("feature", "none"):
            raise InputError(f'missing must be "feature" or "none", not {missing!r}.')
        self.schema = schema
        self.missing: Literal["feature", "none"] = missing
        self._edges: dict[str, Edges] = {}
        self._ids: list[dict[Key, int]] = [{} for _ in schema]
        self._keys: list[tuple[int, Key]] = []  # id -> (index of the field, key)
        self._fitted = False

    # ---- learning values ---------------------------------------------------------------------

    def fit(self, frame: Any) -> Encoder:
        """Learn the bucket edges and the vocabulary of the schema's fields, once.

        Ids go by field, then by value in sorted order, whatever the order of the rows.

        Raises
        ------
        InputError
            If it is fitted already, a field is not a column, or a numeric field is infinite.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"job": ["pilot", "cook"]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).n_features
        2
        """
        if self._fitted:
            raise InputError(
                "this encoder is fitted; ids never change: call grow, or make another."
            )
        table = read_table(frame)
        for name in self.schema.names:
            if name not in table.columns:
                raise InputError(
                    f"field {name!r} is not a column of the frame; "
                    f"columns: {', '.join(table.columns) or 'none'}."
                )
        self._learn(table, self.schema)
        self._fitted = True
        return self

    def grow(self, frame: Any, schema: Schema | None = None) -> NDArray[np.int32]:
        """Give ids to the values and columns of a frame that have none yet.

        Parameters
        ----------
        frame
            Rows with new values of known fields, new columns, or both.
        schema
            The kinds of new columns; columns it does not name are ignored.  By default every new
            column is added, by inference.  A new numeric column takes its edges from `frame`.

        Returns
        -------
            The new ids, ascending; a frame that raises an error changes nothing.

        Examples
        --------
        >>> import polars as pl
        >>> encoder = Encoder(Schema([])).fit(pl.DataFrame())
        >>> encoder.grow(pl.DataFrame({"city": ["Rome", "Oslo"]})).tolist()
        [0, 1]
        """
        table = read_table(frame)
        known = set(self.schema.names)
        if schema is None:
            wanted = infer(table)
        else:
            wanted = schema
            self._refuse_other_kinds(schema)
        new = [field for field in wanted if field.name not in known and field.name in table.columns]
        first = self.n_features
        self._learn(table, Schema([*self.schema, *new]))
        return np.arange(first, self.n_features, dtype=np.int32)

    def _refuse_other_kinds(self, schema: Schema) -> None:
        for field in schema:
            if field.name in self.schema.names and field != self.schema[field.name]:
                raise InputError(
                    f"field {field.name!r} is known as {self.schema[field.name]}; "
                    f"it cannot become {field}."
                )

    def _learn(self, table: Table, schema: Schema) -> None:
        # WHY: everything that can fail comes before the first change of the encoder.
        edges = self._new_edges(table, schema)
        every_edge = {**self._edges, **edges}
        learned = [self._keys_in(table, field, every_edge.get(field.name)) for field in schema]
        self._edges, self.schema = every_edge, schema
        self._ids += [{} for _ in range(len(schema) - len(self._ids))]
        for index, keys in enumerate(learned):
            for key in keys:
                if key not in self._ids[index]:
                    self._ids[index][key] = len(self._keys)
                    self._keys.append((index, key))

    def _new_edges(self, table: Table, schema: Schema) -> dict[str, Edges]:
        """Edges of the numeric fields that have none and of which a value has now been seen."""
        edges = {}
        for field in schema:
            if field.kind != "numeric" or field.name in self._edges:
                continue
            if field.bounds is not None:
                edges[field.name] = _cut(field.n_buckets, *field.bounds)
            elif field.name in table.columns:
                values = numbers_of(table.columns[field.name], field.name).drop_nulls().to_numpy()
                if not np.all(np.isfinite(values)):
                    worst = values[~np.isfinite(values)][0]
                    raise InputError(
                        f"numeric field {field.name!r} holds {worst}, which leaves no edges for "
                        "its buckets; make it finite or missing."
                    )
                if len(values):
                    edges[field.name] = _cut(field.n_buckets, values.min(), values.max())
        return edges

    def _keys_in(self, table: Table, field: Field, edges: Edges | None) -> list[Key]:
        """Sort the keys that occur in the field's column; a missing cell comes last."""
        if field.name not in table.columns:
            return []
        column = table.columns[field.name]
        keys: list[Key] = []
        if field.kind != "numeric":
            text = elements_of(column, field.name)[1] if field.kind == "multivalued" else column
            keys = text_of(text, field.name).drop_nulls().unique().sort().to_list()
        elif edges is not None:
            cells = numbers_of(column, field.name).drop_nulls().to_numpy()
            keys = [int(bucket) for bucket in np.unique(_buckets(cells, edges))]
        return [*keys, None] if self.missing == "feature" and column.null_count() else keys

    # ---- encoding ----------------------------------------------------------------------------

    def encode(self, frame: Any) -> MultiHot:
        """Turn a frame into 0-1 rows with the ids given so far; never changes the encoder.

        Unknown values, unknown columns and absent columns give no feature.  Numbers beyond a
        numeric field's range, infinite ones too, fall into its first or last bucket.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"tags": [["a", "b", "a"], ["b"]]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).encode(rows).to_dense()
        array([[1, 1],
               [0, 1]], dtype=int8)
        """
        if not self._fitted:
            raise InputError("this encoder has seen no rows: call fit first.")
        table = read_table(frame)
        single, row, feature = [], [], []
        for field, ids in zip(self.schema, self._ids, strict=True):
            if field.name not in table.columns:
                continue
            column = table.columns[field.name]
            if field.kind == "multivalued":
                at, found = self._encode_lists(column, field, ids)
                row.append(at)
                feature.append(found)
            else:
                single.append(self._encode_cells(column, field, ids))
        if not row:
            return _from_cells(single, table.n_rows, self.n_features)
        for found in single:
            row.append(np.flatnonzero(found >= 0))
            feature.append(found[found >= 0])
        return MultiHot.from_entries(
            np.concatenate(row), np.concatenate(feature), table.n_rows, self.n_features
        )

    def _encode_cells(
        self, column: pl.Series, field: Field, ids: dict[Key, int]
    ) -> NDArray[np.int32]:
        """(N,) the id of each cell, -1 for none."""
        if field.kind == "categorical":
            found = _lookup(text_of(column, field.name), ids)
        else:
            found = np.full(len(column), -1, dtype=np.int32)
            edges = self._edges.get(field.name)
            cells = numbers_of(column, field.name)
            if edges is not None:
                id_of = np.array([ids.get(b, -1) for b in range(len(edges) - 1)], dtype=np.int32)
                present = cells.is_not_null().to_numpy()
                found[present] = id_of[_buckets(cells.drop_nulls().to_numpy(), edges)]
        found[column.is_null().to_numpy()] = ids.get(None, -1)
        return found

    def _encode_lists(
        self, column: pl.Series, field: Field, ids: dict[Key, int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Find the entries (row, id) of a multivalued column, repeats included."""
        row, values = elements_of(column, field.name)
        found = _lookup(text_of(values, field.name), ids)
        known = found >= 0
        missing = np.flatnonzero(column.is_null().to_numpy()) if None in ids else row[:0]
        absent = np.full(len(missing), ids.get(None, -1), dtype=np.int32)
        return np.concatenate([row[known], missing]), np.concatenate([found[known], absent])

    # ---- looking at it -----------------------------------------------------------------------

    @property
    def n_features(self) -> int:
        """D."""
        return len(self._keys)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return self.schema.names

    @property
    def field_of(self) -> NDArray[np.int32]:
        """(D,) the index in `fields` of each feature's field."""
        return np.array([index for index, _ in self._keys], dtype=np.int32)

    def decode(self, feature: int) -> tuple[str, Value]:
        """Give a feature's field and value: text, (low, high) of a bucket, or None for missing.

        A bucket includes its lower end, and the last one of a field its upper end too.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"age": [0.0, 10.0]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).decode(1)
        ('age', (9.0, 10.0))
        """
        if not 0 <= feature < self.n_features:
            raise InputError(f"feature id {feature} is outside 0..{self.n_features - 1}.")
        index, key = self._keys[feature]
        name = self.fields[index]
        if isinstance(key, int):
            edges = self._edges[name]
            return name, (float(edges[key]), float(edges[key + 1]))
        return name, key

    def to_json(self) -> str:
        """Write schema, edges and vocabulary as JSON text.

        Examples
        --------
        >>> encoder = Encoder(Schema([]))
        >>> Encoder.from_json(encoder.to_json()).n_features
        0
        """
        return json.dumps(
            {
                "schema": json.loads(self.schema.to_json()),
                "missing": self.missing,
                "fitted": self._fitted,
                "edges": {name: edges.tolist() for name, edges in self._edges.items()},
                "features": self._keys,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Encoder:
        """Read what `to_json` wrote; the ids are the same.

        Raises
        ------
        InputError
            Where the text is something else.
        """
        try:
            data = json.loads(text)
            encoder = cls(Schema.from_json(json.dumps(data["schema"])), data["missing"])
            encoder._edges = {name: np.array(e, float) for name, e in data["edges"].items()}
            encoder._restore(data["features"])
            encoder._fitted = bool(data["fitted"])
        except InputError:
            raise
        except (
            AttributeError,
            IndexError,
            KeyError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise InputError(f"this is not an encoder's JSON: {error!r}.") from None
        return encoder

    def _restore(self, features: Iterable[tuple[int, Key]]) -> None:
        for index, key in features:
            if index < 0 or key in self._ids[index]:
                raise InputError(f"feature {(index, key)!r} appears twice or has no field.")
            edges = self._edges.get(self.fields[index], ())
            if isinstance(key, int) and not 0 <= key < len(edges) - 1:
                raise InputError(f"feature {(index, key)!r} is a bucket that its field lacks.")
            self._ids[index][key] = len(self._keys)
            self._keys.append((index, key))


# ---- cells -> keys -----------------------------------------------------------------------------


def _cut(n_buckets: int, low: float, high: float) -> Edges:
    """(buckets + 1,) equal-width edges; a constant column has one bucket."""
    if low == high:
        return np.array([low, high], dtype=np.float64)
    # WHY: the width of [-1e308, 1e308] is no float; that of a sixteenth of it is.
    scale = 16.0 if max(abs(low), abs(high)) > 1e307 else 1.0
    edges = np.linspace(low / scale, high / scale, n_buckets + 1) * scale
    edges[0], edges[-1] = low, high
    return np.asarray(edges, dtype=np.float64)


def _buckets(values: NDArray[np.float64], edges: Edges) -> NDArray[np.int64]:
    # PAPER: "10 even buckets"; the maximum falls into the last one, not into an eleventh, which
    # gives the paper's feature counts (test_datasets.py).
    return np.searchsorted(edges[1:-1], values, side="right")


def _lookup(text: pl.Series, ids: dict[Key, int]) -> NDArray[np.int32]:
    """(N,) the id of each text, -1 where it has none; each distinct text is looked up once."""
    distinct = text.drop_nulls().unique()
    new = pl.Series([ids.get(value, -1) for value in distinct], dtype=pl.Int32)
    found = text.replace_strict(distinct, new, default=-1, return_dtype=pl.Int32)
    return np.array(found.to_numpy(), dtype=np.int32)


def _from_cells(cells: list[NDArray[np.int32]], n_rows: int, n_features: int) -> MultiHot:
    """One id or none for each field: (N,) arrays with -1 for none."""
    table = np.stack(cells, axis=1) if cells else np.empty((n_rows, 0), dtype=np.int32)  # (N, d)
    present = table >= 0
    row_ptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return MultiHot(row_ptr, table[present], n_features)
