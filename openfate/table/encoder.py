"""Encoder: (field, value) -> feature id, the map behind the rows of X.

The vocabulary only ever grows and an id, once given, never changes: that is what lets a trained
model meet new values and new columns.  Only values and buckets that occur get an id; D is their
number, N rows, d fields.  What happens within one field is in `codec`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.table.cells import rows_of
from openfate.table.codec import Codec, Unseen, Value
from openfate.table.frame import Table, read_table
from openfate.table.hashing import checked_key, random_key
from openfate.table.multihot import MultiHot
from openfate.table.parts import State, state_of, to_parts
from openfate.table.schema import Field, Schema, infer, refuse_nameless

__all__ = ["Encoder", "Unseen", "Value"]

Ids = NDArray[np.int32]


class Encoder:
    """Gives every (field, value) pair an id and turns frames into 0-1 rows.

    Parameters
    ----------
    schema
        The fields to encode; other columns of a frame are left alone until `grow` meets them.
    missing
        "feature": a missing cell (null, NaN) is a value of its own.  "none": it gives no feature.
    hash_key
        The secret of the hashed fields, 1 to 64 bytes; random where it is not given.  Ids do not
        depend on it.

    Notes
    -----
    Values are compared as text: the integer 1, the float 1.0 and the text "1" are one feature
    (pandas turns integers into floats where a cell is missing), the text "1.0" is another.
    A missing cell is not an unknown value: "missing" may be a feature, unknown gives none.
    A frame may be a `Table` (see `read_table`): it is then taken apart only once.

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

    def __init__(
        self,
        schema: Schema,
        missing: Literal["feature", "none"] = "feature",
        hash_key: bytes | None = None,
    ) -> None:
        if missing not in ("feature", "none"):
            raise InputError(f'missing must be "feature" or "none", not {missing!r}.')
        self.schema = schema
        self.missing: Literal["feature", "none"] = missing
        self._hash_key = None if hash_key is None else checked_key(hash_key)
        self._field_of = np.empty(0, dtype=np.int32)  # (D,)
        self._fitted = False
        self._codecs: dict[str, Codec] = {}
        self._add_codecs(schema)

    # ---- learning values ---------------------------------------------------------------------

    def fit(self, frame: Any) -> Encoder:
        """Learn the bucket edges and the vocabulary of the schema's fields, once.

        Ids go by field, then by value in sorted order, whatever the order of the rows; hashed
        values are in an order that tells nothing of them.

        Raises
        ------
        InputError
            If it is fitted already, a field is not a column, or a bucketed field is infinite.

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
        self._become(self._learned(table, self.schema, new=()))
        self._fitted = True
        return self

    def grow(
        self,
        frame: Any,
        schema: Schema | None = None,
        columns: Collection[str] | None = None,
        values: Collection[str] | None = None,
    ) -> Ids:
        """Give ids to the values and columns of a frame that have none yet, as `grown` does.

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
        first = self.n_features
        self._become(self.grown(frame, schema, columns, values))
        return np.arange(first, self.n_features, dtype=np.int32)

    def grown(
        self,
        frame: Any,
        schema: Schema | None = None,
        columns: Collection[str] | None = None,
        values: Collection[str] | None = None,
    ) -> Encoder:
        """Give a copy in which what is new in a frame has ids too; it shares all that is not new.

        Parameters
        ----------
        frame
            Rows with new values of known fields, new columns, or both.
        schema
            The kinds of new columns; columns it does not name are ignored.  By default every new
            column is added, by inference, as soon as one of its cells has a value.  A new numeric
            column takes its edges from `frame`.
        columns
            The new columns that may be added; by default all.
        values
            The known fields that may take new values; by default all.

        Returns
        -------
            The copy, or this encoder itself where nothing is new.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"city": ["Rome", "Oslo"]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
        >>> encoder.grown(rows) is encoder
        True
        >>> encoder.grown(pl.DataFrame({"city": ["Bern"]})).n_features, encoder.n_features
        (3, 2)
        """
        self._refuse_unfitted()
        table = read_table(frame)
        may_add, may_grow = _names("columns", columns), _names("values", values)
        new = self._new_fields(table, schema, may_add)
        known = [f for f in self.schema if may_grow is None or f.name in may_grow]
        return self._learned(table, known, new)

    def _new_fields(
        self, table: Table, schema: Schema | None, may_add: Collection[str] | None
    ) -> list[Field]:
        names = [
            name
            for name in (table.columns if schema is None else schema.names)
            if name not in self.schema and (may_add is None or name in may_add)
        ]
        if "" in names:
            refuse_nameless(table)
        if schema is None:
            filled = [n for n in names if table.columns[n].null_count() < table.n_rows]
            return list(infer(table.select(filled)))
        for field in schema:
            if field.name in self.schema and field not in self.schema:
                raise InputError(
                    f"field {field.name!r} is known as {self.schema[field.name]}; "
                    f"it cannot become {field}."
                )
        return [schema[name] for name in names if name in table.columns]

    def _learned(self, table: Table, known: Iterable[Field], new: Collection[Field]) -> Encoder:
        """Give a copy that has learned the columns of the given fields, or itself for nothing."""
        encoder = copy.copy(self)
        encoder._codecs = dict(self._codecs)
        if new:
            encoder.schema = Schema([*self.schema, *new])
            encoder._add_codecs(new)
        index = {name: i for i, name in enumerate(encoder.schema.names)}
        field_of, first, is_changed = [self._field_of], self.n_features, bool(new)
        for field in (f for f in (*known, *new) if f.name in table.columns):
            codec = encoder._codecs[field.name]
            found = codec.new_in(table)
            if found.n_ids or found.measure is not codec.measure:
                encoder._codecs[field.name] = codec.grown(found, first)
                field_of.append(np.full(found.n_ids, index[field.name], dtype=np.int32))
                first += found.n_ids
                is_changed = True
        if not is_changed:
            return self
        encoder._field_of = np.concatenate(field_of)
        return encoder

    def _add_codecs(self, fields: Iterable[Field]) -> None:
        for field in fields:
            if field.hashed and self._hash_key is None:
                self._hash_key = random_key()
            key = self._hash_key if field.hashed else None
            self._codecs[field.name] = Codec(field, self.missing == "feature", key)

    def _become(self, other: Encoder) -> None:
        self.__dict__.update(other.__dict__)

    def _refuse_unfitted(self) -> None:
        if not self._fitted:
            raise InputError("this encoder has seen no rows: call fit first.")

    # ---- encoding ----------------------------------------------------------------------------

    def encode(self, frame: Any) -> MultiHot:
        """Turn a frame into 0-1 rows with the ids given so far; never changes the encoder.

        Unknown values, unknown columns and absent columns give no feature.  Numbers beyond a
        numeric field's range, infinite ones too, fall into its first or last bucket.  Where a
        field has ``numeric="value"`` the rows have values: the standardised number, within -5 and
        5, there, and one elsewhere.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"tags": [["a", "b", "a"], ["b"]]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).encode(rows).to_dense()
        array([[1, 1],
               [0, 1]], dtype=int8)
        """
        self._refuse_unfitted()
        table = read_table(frame)
        cells = [
            part
            for field in self.schema
            if field.name in table.columns
            for part in self._codecs[field.name].cells(table)
        ]
        has_values = any(field.numeric == "value" for field in self.schema)
        return rows_of(cells, table.n_rows, self.n_features, has_values)

    def unseen(self, frame: Any, fields: Iterable[Field] | None = None) -> dict[str, Unseen]:
        """Tell what the columns of a frame hold that has no id.

        Parameters
        ----------
        frame
            Rows; fields that are not among its columns are left out.
        fields
            Where to look; one that the encoder does not know is looked at as `grown` would add it.
            By default all that it knows.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"city": ["Rome", "Oslo"]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
        >>> encoder.unseen(pl.DataFrame({"city": ["Bern", "Rome", None, None]}))["city"]
        Unseen(share=0.5, n_values=1, examples=('Bern',), missing=True)
        """
        self._refuse_unfitted()
        table = read_table(frame)
        wanted = [f for f in (self.schema if fields is None else fields) if f.name in table.columns]
        looking, new = self, [field for field in wanted if field.name not in self.schema]
        if new:
            looking = copy.copy(self)
            looking._codecs = dict(self._codecs)
            looking._add_codecs(new)
        return {field.name: looking._codecs[field.name].unseen(table) for field in wanted}

    # ---- looking at it -----------------------------------------------------------------------

    @property
    def n_features(self) -> int:
        """D."""
        return len(self._field_of)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return self.schema.names

    @property
    def field_of(self) -> Ids:
        """(D,) the index in `fields` of each feature's field."""
        return self._field_of.copy()  # WHY: grown copies share the original

    def decode(self, feature: int) -> tuple[str, Value]:
        """Give a feature's field and value.

        The value is a text (of a hashed field, the hash), (low, high) of a bucket, the `Scale` of
        a number that is a feature itself, or None for missing.  A bucket includes its lower end,
        and the last one of a field its upper end too.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"age": [0.0, 10.0]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).decode(1)
        ('age', (9.0, 10.0))
        """
        if not 0 <= feature < self.n_features:
            raise InputError(f"feature id {feature} is outside 0..{self.n_features - 1}.")
        name = self.schema.fields[self._field_of[feature]].name
        return name, self._codecs[name].value_of(feature)

    def find(self, field: str, value: Any) -> int | None:
        """Find the id of a value; None where it has none.

        Parameters
        ----------
        field
            The field's name.
        value
            As it stands in a cell, or as `decode` gives it; None for a missing cell.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"age": [0.0, 10.0]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
        >>> encoder.find("age", 9.5), encoder.find("age", None)
        (1, None)
        """
        feature = self._codecs[self.schema[field].name].id_of(value)
        return feature if feature >= 0 else None

    # ---- parts -------------------------------------------------------------------------------

    def to_parts(self) -> tuple[dict[str, Any], pl.DataFrame]:
        """Take it apart: a header that JSON can hold, and the vocabulary, one row for each id.

        The header holds the hash key: keep it as secret as the hashed values.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"job": ["pilot", None]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
        >>> header, vocabulary = encoder.to_parts()
        >>> vocabulary.rows()
        [(0, 'pilot', None), (0, None, None)]
        >>> Encoder.from_parts(header, vocabulary).decode(0)
        ('job', 'pilot')
        """
        kept = self._hash_key, self._codecs, self._field_of, self._fitted
        return to_parts(State(self.schema, self.missing, *kept))

    @classmethod
    def from_parts(cls, header: Mapping[str, Any], vocabulary: pl.DataFrame) -> Encoder:
        """Put together what `to_parts` took apart; the ids are the same.

        Raises
        ------
        InputError
            Where the parts are something else, or do not fit together.
        """
        state = state_of(header, vocabulary)
        encoder = cls(state.schema, state.missing, state.hash_key)
        encoder._codecs, encoder._field_of = state.codecs, state.field_of
        encoder._fitted = state.fitted
        return encoder


def _names(what: str, names: Collection[str] | None) -> frozenset[str] | None:
    if isinstance(names, str):
        raise InputError(f"{what} must be a list of names, not the text {names!r}.")
    return None if names is None else frozenset(names)
