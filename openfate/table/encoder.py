"""Encoder: (field, value) -> feature id, the map behind the rows of X.

The vocabulary only ever grows and an id, once given, never changes: that is what lets a trained
model meet new values and new columns.  Only values and buckets that occur get an id; D is their
number, N rows, d fields.  What the cells of a field hold is in `fields`.
"""

from __future__ import annotations

import collections
import copy
import itertools
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate._lazy import ComputesOnce
from openfate.errors import InputError, check_choice, check_integer
from openfate.growing import merge_layers
from openfate.table.counts import Learned, Mask, Pieces, count, work_on_fields
from openfate.table.fields import (
    KINDS,
    Field,
    Ids,
    Keys,
    Kind,
    Knots,
    Lookup,
    Number,
    Plain,
    Text,
    Value,
    guess_knots,
)
from openfate.table.frame import FEW_ROWS, Table, read_table
from openfate.table.hashes import FEW, hash_key, hash_keys, mix_bits
from openfate.table.multihot import MultiHot
from openfate.table.newcomers import Meeting
from openfate.table.schema import Schema, refuse_nameless
from openfate.table.wide import CellEdges, WideColumns, edges_of

_STATES = tuple(state for kind in KINDS.values() for state in kind.states)
_HEADER = ("schema", "missing", *_STATES, "hash_key", "fitted")
_MALFORMED = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
_COLUMNS = {"field": pl.Int32(), "value": pl.String(), "bucket": pl.Int32()}


@dataclass(frozen=True)
class Unseen:
    """What has no id in one column.

    Parameters
    ----------
    share
        Of the cells that are not missing (of the elements of lists, of the parts of dates), how
        much has a value without an id.
    n_values
        The number of distinct such values.
    examples
        Up to three of them, as `Encoder.decode` would give them.
    missing
        Whether a cell is missing and "missing" is a value without an id.
    """

    share: float
    n_values: int
    examples: tuple[Value, ...]
    missing: bool

    @property
    def n_new(self) -> int:
        """The number of values without an id, "missing" among them."""
        return self.n_values + self.missing


class RowIds(NamedTuple):
    """The features of one row."""

    ids: list[int]
    values: list[float]  # what their edges carry
    unseen: list[str]  # the field of each key that has no id


class Growth(NamedTuple):
    """What an encoder has learned of a field since some moment."""

    kind: Kind
    keys: pl.Series  # (n,) that got an id
    ids: Ids  # (n,)
    missing: int  # the id of a missing cell, or -1 where it got none


_ABSENT, _ODD = object(), object()
_PLAIN = frozenset({str, int, float, bool, type(None)})


def plain_cell(cell: Any) -> Any:
    """A number of numpy as Python's, nan as None; `_ODD` for what only a column can hold."""
    if isinstance(cell, np.floating | np.integer | np.bool_):
        return cell.item()
    return _ODD


class Encoder(ComputesOnce):
    """Gives every (field, value) pair an id and turns frames into 0-1 rows.

    Parameters
    ----------
    schema
        The fields to encode; other columns of a frame are left alone until `grow_copy` meets them.
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
    >>> encoder.grow_copy(later).encode(later).ids.tolist()
    [4, 3, 5]
    """

    def __init__(
        self,
        schema: Schema,
        missing: Literal["feature", "none"] = "feature",
        hash_key: bytes | None = None,
    ) -> None:
        check_choice("missing", missing, ("feature", "none"))
        self.schema = schema
        self._late: _Late | None = None
        self.missing: Literal["feature", "none"] = missing
        self._hash_key = None if hash_key is None else _check_key(hash_key)
        self.field_at = FieldOf()
        self._fitted = False
        self._codecs = {}
        self._add_codecs(schema)

    @cached_property
    def schema(self) -> Schema:
        """The fields, those that were met later at the end."""
        assert self._late is not None
        return Schema([*self._late.schema, *self._late.new.fields()])

    @cached_property
    def _codecs(self) -> dict[str, _Codec]:
        assert self._late is not None
        late, codecs = self._late, dict(self._late.codecs)
        known = len(late.schema)
        lookups = late.new.lookups(late.first)
        for field, (lookup, missing) in zip(self.schema.fields[known:], lookups, strict=True):
            knots = None if field.knots is None else Knots.declared(field.knots)
            kind = Text(field) if knots is None else Number(field, measure=knots)
            vocabulary = Vocabulary((lookup,), missing)
            codecs[field.name] = _Codec(kind, self.missing == "feature", vocabulary)
        return codecs

    # ---- learning values ---------------------------------------------------------------------

    def fit(self, frames: Any, *, min_count: int = 1) -> Encoder:
        """Learn the bucket edges and the vocabulary of the schema's fields, once.

        Ids go by field, then by value in sorted order, whatever the order of the rows and however
        they are cut into frames; hashed values are in an order that tells nothing of them.

        Parameters
        ----------
        frames
            A frame; or a list of frames, or anything else that gives the same frames whenever it is
            iterated over: they are gone through once, or twice where numbers are cut into buckets,
            and memory holds one of them at a time.
        min_count
            Texts (and elements of lists) that fewer rows hold get no id: they are unknown.

        Raises
        ------
        InputError
            If it is fitted already, a field is not a column, or a bucketed field is infinite.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"job": ["pilot", "cook", "pilot"]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).n_features
        2
        >>> Encoder(Schema.from_frame(rows)).fit([rows[:1], rows[1:]], min_count=2).decode(0)
        ('job', 'pilot')
        """
        self.fit_sparing(frames, None, min_count=min_count)
        return self

    def fit_sparing(self, frames: Any, spared: Mask | None, *, min_count: int = 1) -> Encoder:
        """Fit on all rows but some, and make a copy in which those have ids too.

        Parameters
        ----------
        frames, min_count
            As in `fit`.
        spared
            (N,) the rows that are not learned from.

        Returns
        -------
            What ``fit(learned rows).grow_copy(spared rows)`` would give, in one pass.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"job": ["pilot", "cook", "judge"]})
        >>> encoder = Encoder(Schema.from_frame(rows))
        >>> grown = encoder.fit_sparing(rows, np.array([False, False, True]))
        >>> encoder.n_features, grown.decode(2)
        (2, ('job', 'judge'))
        """
        if self._fitted:
            raise InputError(
                "this encoder is fitted; ids never change: call grow_copy, or make another."
            )
        least = check_integer("min_count", min_count, 1)
        kinds = [codec.kind for codec in self._codecs.values()]
        counts = count(kinds, Pieces(frames), spared, exact=least > 1)
        self.__dict__.update(self._take([each.first(least) for each in counts]).__dict__)
        self._fitted = True
        return self if spared is None else self._take([each.second(least) for each in counts])

    def _take(self, learned: Sequence[Learned]) -> Encoder:
        """Make a copy in which what was learned of each field has ids."""
        encoder = self._copy_with(())
        field_of: list[Ids] = []
        first = self.n_features
        for index, (name, new) in enumerate(zip(self._codecs, learned, strict=True)):
            codec, missing = self._codecs[name], new.missing and self.missing == "feature"
            vocabulary = codec.vocabulary.add(new.keys, first, missing)
            n_new = len(vocabulary) - len(codec.vocabulary)
            encoder._codecs[name] = replace(codec, kind=new.kind, vocabulary=vocabulary)
            field_of.append(np.full(n_new, index, dtype=np.int32))
            first += n_new
        encoder.field_at = self.field_at.add(field_of)
        return encoder

    def grow_copy(
        self,
        frame: Any,
        schema: Schema | None = None,
        columns: Collection[str] | None = None,
        values: Collection[str] | None = None,
        *,
        lasting: bool = True,
        meeting: Meeting | None = None,
    ) -> Encoder:
        """Make a copy in which what is new in a frame has ids too; it shares all that is not new.

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
        lasting
            Whether the copy will be grown further; if not, it costs by what is new alone.
        meeting
            Which texts get an id at once, and which only when they come again; None: all do.

        Returns
        -------
            The copy, or this encoder itself where nothing is new.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"city": ["Rome", "Oslo"]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
        >>> encoder.grow_copy(rows) is encoder
        True
        >>> encoder.grow_copy(pl.DataFrame({"city": ["Bern"]})).n_features, encoder.n_features
        (3, 2)
        """
        table = self._read(frame)
        for what, names in (("columns", columns), ("values", values)):
            if isinstance(names, str):
                raise InputError(f"{what} must be a list of names, not the string {names!r}.")
        new = self._new_fields(table, schema, columns)
        known = [f for f in self.schema if values is None or f.name in values]
        return self._learn(table, known, new, lasting, meeting)

    def _new_fields(
        self, table: Table, schema: Schema | None, may_add: Collection[str] | None
    ) -> list[Field]:
        given = table.columns if schema is None else schema.names
        known = frozenset(self.schema.names)
        names = [name for name in given if name not in known]
        if may_add is not None:
            allowed = frozenset(may_add)
            names = [name for name in names if name in allowed]
        if "" in names:
            refuse_nameless(table)
        if schema is None:
            filled = [n for n in names if table.columns[n].null_count() < table.n_rows]
            return list(Schema.from_frame(table.select(filled)))
        for field in schema:
            if field.name in known and field not in self.schema:
                raise InputError(
                    f"field {field.name!r} is known as {self.schema[field.name]}; "
                    f"it cannot become {field}."
                )
        wanted = frozenset(names)
        return [field for field in schema if field.name in wanted and field.name in table.columns]

    def _learn(
        self,
        table: Table,
        known: Collection[Field],
        new: Collection[Field],
        lasting: bool = True,
        meeting: Meeting | None = None,
    ) -> Encoder:
        """Make a copy that has learned the columns of the given fields; itself for nothing."""
        new = guess_knots(new, table)
        encoder = self._copy_with(new)
        index = {name: i for i, name in enumerate(encoder.schema.names)}
        grown_fields: list[int] = []
        n_grown: list[int] = []
        first, is_changed = self.n_features, bool(new)
        if table.n_rows > FEW_ROWS:
            # WHY: ids are given field by field; cells can be read, which takes longest, side by
            # side.
            kinds = [encoder._codecs[f.name].kind for f in known if f.name in table.columns]
            work_on_fields(lambda kind: kind.read(table), kinds, table.n_rows)
        codecs = encoder._codecs
        for name in [f.name for f in (*known, *new) if f.name in table.columns]:
            grown, n_new = codecs[name].grow(table, first, lasting, meeting)
            if grown is not codecs[name]:
                codecs[name] = grown
                grown_fields.append(index[name])
                n_grown.append(n_new)
                first += n_new
                is_changed = True
        if not is_changed:
            return self
        field_of = np.repeat(np.array(grown_fields, dtype=np.int32), n_grown)
        encoder.field_at = self.field_at.add([field_of], lasting)
        return encoder

    def with_columns(self, new: WideColumns, *, lasting: bool = True) -> Encoder:
        """A copy in which new columns have ids, which were read at once.

        Examples
        --------
        >>> from openfate.table.wide import read_wide
        >>> rows = pl.DataFrame({"city": ["Rome"]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
        >>> table = read_table(pl.DataFrame({f"c{at}": ["a"] for at in range(40)}))
        >>> wide = read_wide(table, list(table.columns), "linear", missing=True)
        >>> grown = encoder.with_columns(wide)
        >>> grown.n_features, grown.decode(40), grown.encode(table).ids[:3].tolist()
        (41, ('c39', 'a'), [1, 2, 3])
        """
        late = _Late(self.schema, self._codecs, self.n_features, new)
        encoder = copy.copy(self)
        for what in ("schema", "_codecs"):
            del vars(encoder)[what]
        encoder._late = late
        field_of = np.repeat(np.arange(len(new.names), dtype=np.int32), new.n_features)
        encoder.field_at = self.field_at.add([field_of + np.int32(len(self.schema))], lasting)
        return encoder

    def _copy_with(self, new: Collection[Field]) -> Encoder:
        codecs, schema = dict(self._codecs), self.schema
        encoder = copy.copy(self)
        encoder._codecs, encoder.schema, encoder._late = codecs, schema, None
        if new:
            encoder.schema = Schema([*self.schema, *new])
            encoder._add_codecs(new)
        return encoder

    def _add_codecs(self, fields: Iterable[Field]) -> None:
        kinds, missing = dict(KINDS), self.missing == "feature"
        for field in fields:
            if field.hashed and self._hash_key is None:
                self._hash_key = secrets.token_bytes(32)
            kind = kinds[field.kind](field, self._hash_key if field.hashed else None)
            self._codecs[field.name] = _Codec(kind, missing)

    def _read(self, frame: Any) -> Table:
        if not self._fitted:
            raise InputError("this encoder has seen no rows: call fit first.")
        return read_table(frame)

    @property
    def is_open(self) -> NDArray[np.bool_]:
        """(D,) whether each feature is a text of a field that may have any number of them."""
        return self._find_keys(lambda kind: kind.is_open)

    def select(self, kept: NDArray[np.integer]) -> Encoder:
        """A copy that knows some features alone, ascending; they are numbered 0, 1, ... anew.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"city": ["Rome", "Oslo", "Bern"]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows).select(np.array([0, 2]))
        >>> encoder.encode(rows).ids.tolist(), encoder.decode(1)
        ([1, 0], ('city', 'Rome'))
        """
        number = np.full(self.n_features, -1, dtype=np.int32)
        number[kept] = np.arange(len(kept), dtype=np.int32)
        encoder = self._copy_with(())
        for name, codec in self._codecs.items():
            vocabulary = codec.vocabulary.select(number)
            encoder._codecs[name] = replace(codec, vocabulary=vocabulary)
        encoder.field_at = FieldOf().add([self.field_at[:][kept]])
        return encoder

    def growth(self, first: int) -> list[Growth]:
        """What it has learned since it had `first` features: by field, in the order of fields.

        A field whose cells had no keys then, and have now, is among them without any.

        Examples
        --------
        >>> import polars as pl
        >>> encoder = Encoder(Schema([Field("city", "categorical")]))
        >>> encoder = encoder.fit(pl.DataFrame({"city": ["Rome"]}))
        >>> grown = encoder.grow_copy(pl.DataFrame({"city": ["Oslo", None]})).growth(1)
        >>> [(one.kind.field.name, one.keys.to_list(), one.missing) for one in grown]
        [('city', ['Oslo'], 2)]
        """
        found = []
        for codec in self._codecs.values():
            known = codec.vocabulary
            parts = [(layer, int(np.searchsorted(layer.ids, first))) for layer in known.layers]
            layers = [
                (layer.keys[at:], layer.ids[at:]) for layer, at in parts if at < len(layer.ids)
            ]
            missing = known.missing if known.missing >= first else -1
            if not layers and missing < 0 and codec.kind.state() is None:
                continue
            keys = pl.concat([keys for keys, _ in layers]) if layers else pl.Series()
            ids = np.concatenate([np.empty(0, np.int32), *(ids for _, ids in layers)])
            found.append(Growth(codec.kind, keys, ids, missing))
        return found

    def grow_by(self, growth: Sequence[Growth]) -> tuple[Encoder, dict[int, int]]:
        """A copy in which what another one has learned has ids too, and these by that one's ids.

        Parameters
        ----------
        growth
            Of an encoder that was once a copy of this one, since then.

        Raises
        ------
        InputError
            Where both have met a new column and made different fields of it.

        Examples
        --------
        >>> import polars as pl
        >>> rows = [pl.DataFrame({"city": [city]}) for city in ("Rome", "Oslo", "Bern")]
        >>> encoder = Encoder(Schema.from_frame(rows[0])).fit(rows[0])
        >>> grown, number = encoder.grow_copy(rows[1]).grow_by(encoder.grow_copy(rows[2]).growth(1))
        >>> grown.decode(2), number
        (('city', 'Bern'), {1: 2})
        """
        order = {name: at for at, name in enumerate(self.schema.names)}
        parts = sorted(growth, key=lambda one: order.get(one.kind.field.name, len(order)))
        encoder = self._copy_with([g.kind.field for g in parts if g.kind.field.name not in order])
        index = {name: i for i, name in enumerate(encoder.schema.names)}
        field_of, number, first = list[Ids](), dict[int, int](), self.n_features
        for one in parts:
            name = one.kind.field.name
            codec = encoder._codecs[name].learned_by(one.kind)
            known = codec.vocabulary
            is_new = known.find(one.keys) < 0 if len(one.keys) else np.empty(0, dtype=bool)
            keys = one.keys.filter(pl.Series(is_new)) if len(one.keys) else one.keys
            vocabulary = known.add(keys, first, one.missing >= 0 and known.missing < 0)
            n_new = len(vocabulary) - len(known)
            encoder._codecs[name] = replace(codec, vocabulary=vocabulary)
            field_of.append(np.full(n_new, index[name], dtype=np.int32))
            first += n_new
            if len(one.keys):
                number |= zip(one.ids.tolist(), vocabulary.find(one.keys).tolist(), strict=True)
            if one.missing >= 0:
                number[one.missing] = vocabulary.missing
        encoder.field_at = self.field_at.add(field_of)
        return encoder, number

    def with_unnamed(self, fields: Sequence[int]) -> Encoder:
        """A copy with ids for values of the given fields that nobody can look up.

        For one row that has values without an id, of which only their number matters.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"city": ["Rome", "Oslo"]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).with_unnamed([0]).n_features
        3
        """
        encoder = copy.copy(self)
        encoder.field_at = self.field_at.add([np.array(fields, dtype=np.int32)], lasting=False)
        return encoder

    # ---- encoding ----------------------------------------------------------------------------

    def encode(self, frame: Any) -> MultiHot:
        """Turn a frame into 0-1 rows with the ids given so far; never changes the encoder.

        Unknown values, unknown columns and absent columns give no feature.  Numbers beyond a
        numeric field's range, infinite ones too, fall into its first or last bucket.  Where a
        field has ``numeric="value"`` or ``"linear"`` the rows have values: there the standardised
        number, within -5 and 5, or how near each of two knots is, and one elsewhere.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"tags": [["a", "b", "a"], ["b"]]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).encode(rows).to_dense()
        array([[1, 1],
               [0, 1]], dtype=int8)
        """
        table = self._read(frame)
        late = self._late
        edges = None if late is None else edges_of(table, late.new)
        if late is None or edges is None:
            return self._encode(self._codecs, table)
        return _put_beside(self._encode(late.codecs, table), edges, late)

    def _encode(self, every: Mapping[str, _Codec], table: Table) -> MultiHot:
        codecs = [codec for name, codec in every.items() if name in table.columns]
        n_features, has_values = self.n_features, _have_values(every)
        few = _look_up_few(codecs, table) if table.n_rows <= FEW_ROWS else None
        if few is not None:
            row_ptr = np.cumsum([0, *map(len, few[0])])
            ids = np.array(list(itertools.chain.from_iterable(few[0])), dtype=np.int32)
            values = np.array(list(itertools.chain.from_iterable(few[1])), dtype=np.float32)
            return MultiHot(row_ptr, ids, n_features, values if has_values else None)
        # WHY: fields know nothing of one another, so that those of many rows are worth threads.
        encoded = work_on_fields(lambda codec: codec.encode(table), codecs, table.n_rows)
        columns = list(itertools.chain.from_iterable(encoded))
        return _join(columns, table.n_rows, n_features, has_values)

    def look_up(self, cells: Mapping[str, Any]) -> RowIds | None:
        """The ids of one row, given as a dict, without a frame: what `encode` gives for it.

        Parameters
        ----------
        cells
            Texts, numbers, booleans and None by the names of their columns.

        Returns
        -------
            None where something in the row needs `encode`: lists, dates, text where a number is
            wanted.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"job": ["cook", "pilot"], "age": [20.0, 60.0]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
        >>> encoder.look_up({"age": 61.5, "job": "judge"})
        RowIds(ids=[3], values=[1.0], unseen=['job'])
        """
        ids: list[int] = []
        values: list[float] = []
        unseen: list[str] = []
        for name, codec in self._codecs.items():
            cell = cells.get(name, _ABSENT)
            if cell is _ABSENT:
                continue
            if type(cell) not in _PLAIN:
                cell = plain_cell(cell)
                if cell is _ODD:
                    return None
            found = codec.look_up(cell)
            if found is None:
                return None
            for feature, value in found:
                if feature >= 0:
                    ids.append(feature)
                    values.append(value)
                else:
                    unseen.append(name)
        return RowIds(ids, values, unseen)

    def hide(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """One row, the cells of hashed fields as hashes: to keep, and to be encoded all the same.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"email": ["ann@a.org", "bob@b.org"]})
        >>> fields = Schema([Field("email", "categorical", hashed=True)])
        >>> encoder = Encoder(fields).fit(rows)
        >>> kept = encoder.hide({"email": "bob@b.org"})
        >>> "bob" in kept["email"], encoder.look_up(kept) == encoder.look_up({"email": "bob@b.org"})
        (False, True)
        """
        hidden = dict(cells)
        for field in self.schema:
            if field.hashed and field.name in hidden:
                hidden[field.name] = self._codecs[field.name].kind.hide(hidden[field.name])
        return hidden

    def unseen(self, frame: Any, fields: Iterable[Field] | None = None) -> dict[str, Unseen]:
        """Tell what the columns of a frame hold that has no id.

        Parameters
        ----------
        frame
            Rows; fields that are not among its columns are left out.
        fields
            Where to look; one that the encoder does not know is looked at as `grow_copy` would add
            it.  By default all that it knows.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"city": ["Rome", "Oslo"]})
        >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
        >>> encoder.unseen(pl.DataFrame({"city": ["Bern", "Rome", None, None]}))["city"]
        Unseen(share=0.5, n_values=1, examples=('Bern',), missing=True)
        """
        table = self._read(frame)
        wanted = [f for f in (self.schema if fields is None else fields) if f.name in table.columns]
        looking = self._copy_with([field for field in wanted if field.name not in self.schema])
        return {field.name: looking._codecs[field.name].unseen(table) for field in wanted}

    # ---- looking at it -----------------------------------------------------------------------

    @property
    def n_features(self) -> int:
        """D."""
        return len(self.field_at)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return self.schema.names

    @property
    def field_of(self) -> Ids:
        """(D,) the index in `fields` of each feature's field."""
        return self.field_at[:].copy()  # WHY: grown copies share the original

    @property
    def has_values(self) -> bool:
        """Whether the rows that it gives carry values."""
        late = self._late
        if late is None or "_codecs" in vars(self):
            return _have_values(self._codecs)
        return late.new.has_values or _have_values(late.codecs)

    @property
    def is_knot(self) -> NDArray[np.bool_]:
        """(D,) whether each feature is a knot of a field with ``numeric="linear"``."""
        return self._find_keys(lambda kind: kind.has_knots)

    def _find_keys(self, is_wanted: Callable[[Kind], bool]) -> NDArray[np.bool_]:
        """(D,) whether each feature is of a field of some kinds, and no missing cell."""
        found = np.zeros(self.n_features, dtype=bool)
        for codec in self._codecs.values():
            if is_wanted(codec.kind):
                for layer in codec.vocabulary.layers:
                    found[layer.ids] = True
        return found

    def decode(self, feature: int) -> tuple[str, Value]:
        """Give a feature's field and value.

        The value is a text (of a hashed field, the hash), (low, high) of a bucket, the number at a
        knot, the `Scale` of a number that is a feature itself, or None for missing.  A bucket
        includes its lower end, and the last one of a field its upper end too.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"age": [0.0, 10.0]})
        >>> Encoder(Schema.from_frame(rows)).fit(rows).decode(1)
        ('age', (9.0, 10.0))
        """
        if not 0 <= feature < self.n_features:
            raise InputError(
                f"feature id {feature} is outside 0..{self.n_features - 1}; give one of these."
            )
        name = self.schema.fields[int(self.field_at[np.array([feature])][0])].name
        key = self._codecs[name].vocabulary.key_of(feature)
        return name, None if key is None else self._codecs[name].kind.decode(key)

    def describe(self, feature: int) -> tuple[str, str]:
        """Give a feature's field and value as text for people.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"age": [0.0, 10.0, None]})
        >>> encoder = Encoder(Schema.from_frame(rows, [Field("age", "numeric")])).fit(rows)
        >>> encoder.describe(1), encoder.describe(2)
        (('age', '9 to 10'), ('age', '(missing)'))
        """
        name, value = self.decode(feature)
        return name, "(missing)" if value is None else self._codecs[name].kind.describe(value)

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
        codec = self._codecs[self.schema[field].name]
        feature = codec.vocabulary.missing
        if value is not None:
            feature = int(codec.vocabulary.find(codec.kind.keys_of(value)).max(initial=-1))
        return feature if feature >= 0 else None

    def hash_features(self, ids: Ids) -> NDArray[np.uint64]:
        """(n,) a hash of field and value of each feature, whatever id it was given.

        Examples
        --------
        >>> import polars as pl
        >>> one, other = pl.DataFrame({"city": ["Rome", "Oslo"]}), pl.DataFrame({"city": ["Rome"]})
        >>> hashes = [
        ...     Encoder(Schema.from_frame(rows)).fit(rows).hash_features(np.array([at]))
        ...     for rows, at in ((one, 1), (other, 0))
        ... ]
        >>> hashes[0] == hashes[1]
        array([ True])
        """
        index, names = self.field_at[ids], self.schema.names
        order = np.argsort(index, kind="stable")
        fields, start = np.unique(index[order], return_index=True)
        salts = [hash_key(names[field]) for field in fields.tolist() if field < len(names)]
        hashes = mix_bits(ids.astype(np.uint64))  # of one that is `with_unnamed`, of a new column
        for field, salt, at in zip(fields, salts, np.split(order, start[1:]), strict=False):
            vocabulary = self._codecs[names[field]].vocabulary
            hashes[at] = mix_bits(salt ^ vocabulary.hash_ids(ids[at]))
        return hashes

    # ---- parts -------------------------------------------------------------------------------

    def to_parts(self) -> tuple[dict[str, Any], pl.DataFrame]:
        """Take it apart: a header that JSON can hold, and the vocabulary, one row for each id.

        A row of the vocabulary has the index of the field, and the value's text (or hash) or the
        bucket's number; neither for a missing cell.  The header holds the hash key: keep it as
        secret as the hashed values.

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
        states: dict[str, dict[str, Any]] = {state: {} for state in _STATES}
        frames = [pl.DataFrame(schema={"id": pl.Int32, **_COLUMNS})]
        for name, codec in self._codecs.items():
            if (learned := codec.kind.state()) is not None:
                states[learned[0]][name] = learned[1]
            for layer in codec.vocabulary.layers:
                frames.append(pl.DataFrame({"id": layer.ids, codec.kind.stores: layer.keys}))
            if codec.vocabulary.missing >= 0:
                frames.append(pl.DataFrame({"id": [codec.vocabulary.missing]}, {"id": pl.Int32}))
        header = {
            "schema": json.loads(self.schema.to_json()),
            "missing": self.missing,
            **states,
            "hash_key": None if self._hash_key is None else self._hash_key.hex(),
            "fitted": self._fitted,
        }
        vocabulary = pl.concat(frames, how="diagonal").sort("id").drop("id")
        return header, vocabulary.with_columns(field=pl.Series(self.field_at[:], dtype=pl.Int32))

    @classmethod
    def from_parts(cls, header: Mapping[str, Any], vocabulary: pl.DataFrame) -> Encoder:
        """Put together what `to_parts` took apart; the ids are the same.

        Raises
        ------
        InputError
            Where the parts are something else, or do not fit together.
        """
        try:
            return cls._from_parts(header, vocabulary)
        except InputError:
            raise
        except _MALFORMED as error:
            raise _refusal(repr(error)) from None

    @classmethod
    def _from_parts(cls, header: Mapping[str, Any], vocabulary: pl.DataFrame) -> Encoder:
        _check_shape(header, vocabulary)
        schema = Schema.from_json(json.dumps(header["schema"]))
        key = None if header["hash_key"] is None else bytes.fromhex(header["hash_key"])
        if key is None and any(field.hashed for field in schema):
            raise _refusal("a field is hashed and there is no hash_key")
        encoder = cls(schema, header["missing"], key)
        encoder._restore_states(header)
        field_of = vocabulary["field"].to_numpy().copy()
        encoder.field_at = FieldOf().add([field_of])
        encoder._fitted = header["fitted"]
        if len(field_of) and not (0 <= field_of.min() and field_of.max() < len(schema)):
            raise _refusal(f"a feature belongs to none of the {len(schema)} fields")
        if len(field_of) and not encoder._fitted:
            raise _refusal("it has features and is not fitted")
        rows = vocabulary.with_row_index("id").partition_by("field", as_dict=True)
        for (index,), features in rows.items():
            name = schema.names[index]
            encoder._codecs[name] = encoder._codecs[name].restore(features)
        return encoder

    def _restore_states(self, header: Mapping[str, Any]) -> None:
        for state in _STATES:
            for name, learned in header.get(state, {}).items():
                codec = self._codecs[self.schema[name].name]
                kind = codec.kind.restore(state, learned)
                if kind is None:
                    raise _refusal(f"field {name!r} cannot have these {state}")
                self._codecs[name] = replace(codec, kind=kind)


def _check_key(key: object) -> bytes:
    """Take a key that BLAKE2 can use."""
    if not isinstance(key, bytes) or not 1 <= len(key) <= 64:
        what = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise InputError(
            f"hash_key must be 1 to 64 bytes, not {what}; e.g. secrets.token_bytes(32)."
        )
    return key


def _check_shape(header: Mapping[str, Any], vocabulary: pl.DataFrame) -> None:
    # WHY: a bundle that is older than a kind of field holds nothing of what that kind learns.
    is_header = isinstance(header, Mapping) and set(header) <= set(_HEADER)
    if not is_header or set(_HEADER) - set(header) - set(_STATES):
        raise _refusal(f"the header must hold {', '.join(_HEADER)}")
    if header["missing"] not in ("feature", "none") or not isinstance(header["fitted"], bool):
        raise _refusal("missing or fitted is not what it must be")
    if not isinstance(vocabulary, pl.DataFrame) or dict(vocabulary.schema) != _COLUMNS:
        raise _refusal("the vocabulary must have the columns field, value and bucket")
    if vocabulary["field"].null_count():
        raise _refusal("a feature has no field")


def _refusal(what: str) -> InputError:
    return InputError(f"these are not an encoder's parts: {what}.")


# ---- one field -----------------------------------------------------------------------------------


class _Column(NamedTuple):
    """The ids of a field's cells, or of one part of its cells."""

    ids: Ids  # (cells,) -1 for none
    row: NDArray[np.int64] | None  # (cells,) None: one cell for each row, in order
    values: NDArray[np.float32] | None  # (cells,) None for ones


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The ids of one field's keys, and that of its missing cells; never changed, only added to.

    It is made of layers that copies share: ten new values on top of a million are a new layer of
    ten.  Layers are merged as they come near one another's size, so that there are few.

    Parameters
    ----------
    layers
        Oldest first, none empty, ids ascending, each smaller than half of the one before.
    missing
        The id of a missing cell, or -1.

    Examples
    --------
    >>> jobs = Vocabulary().add(pl.Series(["cook", "pilot"]), 0)
    >>> later = jobs.add(pl.Series(["judge"]), 7, missing=True)
    >>> later.find(pl.Series(["judge", "cook", "clerk"])).tolist(), later.missing
    ([7, 0, -1], 8)
    >>> jobs.find(pl.Series(["judge"])).tolist(), later.key_of(7)
    ([-1], 'judge')
    """

    layers: tuple[Lookup, ...] = ()
    missing: int = -1

    def __len__(self) -> int:
        return sum(map(len, self.layers)) + (self.missing >= 0)

    def find(self, keys: pl.Series) -> Ids:
        """(n,) the id of each key, -1 where it has none."""
        found = np.full(len(keys), -1, dtype=np.int32)
        for layer in self.layers:
            found = np.maximum(found, layer.find(keys))
        return found

    def get(self, key: str | int) -> int:
        """The id of one key, -1 where it has none."""
        for layer in self.layers:
            if (found := layer.get(key)) >= 0:
                return found
        return -1

    def key_of(self, feature: int) -> str | int | None:
        """Give the key that has an id of this field; None for a missing cell."""
        for layer in self.layers:
            # WHY: for a Python int numpy would copy a million ids to int64.
            at = int(np.searchsorted(layer.ids, np.int32(feature)))
            if at < len(layer.ids) and layer.ids[at] == feature:
                key: str | int = layer.keys[at]
                return key
        return None

    def hash_ids(self, ids: Ids) -> NDArray[np.uint64]:
        """(n,) a hash of the key that each id has; of a missing cell, and of no key, the same."""
        hashes = np.zeros(len(ids), np.uint64)
        for layer in self.layers:
            place = np.searchsorted(layer.ids, ids)
            there = np.flatnonzero(place < len(layer.ids))
            there = there[layer.ids[place[there]] == ids[there]]
            if len(there) <= FEW:
                hashes[there] = [hash_key(layer.key_at(at)) for at in place[there].tolist()]
            else:
                hashes[there] = hash_keys(layer.keys.gather(place[there]))
        return hashes

    def add(
        self, keys: Keys, first: int, missing: bool = False, lasting: bool = True
    ) -> Vocabulary:
        """Give the ids `first`, `first` + 1, ... to new keys, and then to a missing cell.

        What is not `lasting` is added to no more, and leaves the layers as they are.
        """
        layers = self.layers
        if len(keys):
            layers = (*layers, Lookup(keys, range(first, first + len(keys))))
        missing_id = first + len(keys) if missing else self.missing
        return Vocabulary(merge_layers([*layers]) if lasting else layers, missing_id)

    def select(self, number: Ids) -> Vocabulary:
        """The keys whose ids have another `number` (D,) from now on; those with -1 are left out."""
        layers: list[Lookup] = []
        for layer in self.layers:
            ids = number[layer.ids]
            kept = ids >= 0
            if kept.any():
                keys = layer.keys if kept.all() else layer.keys.filter(pl.Series(kept))
                layers = list(merge_layers([*layers, Lookup(keys, ids[kept])]))
        return Vocabulary(tuple(layers), int(number[self.missing]) if self.missing >= 0 else -1)


@dataclass(frozen=True, eq=False)
class _Codec:
    """One field with the values that have an id; never changed, only grown into another.

    Parameters
    ----------
    kind
        What its cells hold.
    missing
        Whether a missing cell is a value of its own.
    vocabulary
        Which id each key has.
    """

    kind: Kind
    missing: bool
    vocabulary: Vocabulary = Vocabulary()

    def _look(self, table: Table, meeting: Meeting | None = None) -> tuple[Kind, Keys, bool]:
        """The kind that has learned from a table, its keys without an id, whether missing has none.

        Keys are in the order in which they get ids.
        """
        kind, new = self.kind.learn(table), []
        may_be_new = self.missing and self.vocabulary.missing < 0
        if (few := kind.read_few(table)) is not None:
            # Declared knots are features all at once: see below.
            declared = kind.field.knots
            found: Any = {key for keys in few for key, _ in keys} if declared is None else ()
            unknown: Any = sorted(found) if declared is None else range(len(declared))
            if self.vocabulary.layers:
                unknown = [key for key in unknown if self.vocabulary.get(key) < 0]
            if meeting is not None and kind.is_open and unknown:
                n_cells = collections.Counter(key for keys in few for key, _ in keys)
                counts = np.array([n_cells[key] for key in unknown])
                admitted = meeting.admit(kind.field.name, pl.Series(unknown), counts)
                unknown = [key for key, is_in in zip(unknown, admitted, strict=True) if is_in]
            return kind, unknown, may_be_new and () in few
        for cells in kind.read(table):
            is_new = self.vocabulary.find(cells.keys) < 0
            if meeting is not None and kind.is_open and is_new.any():
                code = cells.spread(np.arange(len(is_new), dtype=np.int32))
                counts = np.bincount(code[code >= 0], minlength=len(is_new))[is_new]
                keys = cells.keys.filter(pl.Series(is_new))
                is_new[is_new] = meeting.admit(kind.field.name, keys, counts)
            if is_new.any():
                new.append(cells.distinct.filter(pl.Series(is_new)))
            if kind.field.knots is not None:
                # WHY: declared knots are features all at once, or a number between two that no row
                # has touched yet would be new.
                knots = pl.Series(range(len(kind.field.knots)), dtype=cells.keys.dtype)
                new.append(knots.filter(pl.Series(self.vocabulary.find(knots) < 0)))
        keys = kind.order(pl.concat(new)) if new else pl.Series()
        return kind, keys, may_be_new and len(kind.find_missing(table)) > 0

    def grow(
        self, table: Table, first: int, lasting: bool = True, meeting: Meeting | None = None
    ) -> tuple[_Codec, int]:
        """Give ids from `first` on to what is new; itself where nothing is.  How much is new."""
        kind, keys, missing = self._look(table, meeting)
        if kind is self.kind and not len(keys) and not missing:
            return self, 0
        vocabulary = self.vocabulary.add(keys, first, missing, lasting)
        return _Codec(kind, self.missing, vocabulary), len(keys) + missing

    def learned_by(self, kind: Kind) -> _Codec:
        """The same where a copy of it has learned what must be known before cells have keys."""
        own, other = self.kind.state(), kind.state()
        if self.kind.field != kind.field or (None not in (own, other) and own != other):
            raise InputError(
                f"the column {kind.field.name!r} is new, and two parts have made different fields "
                f"of it ({self.kind.field} and {kind.field}, {own} and {other}): declare it, with "
                "its bounds or knots, before they observe it."
            )
        return self if other is None or own is not None else replace(self, kind=kind)

    def unseen(self, table: Table) -> Unseen:
        """Describe what has no id."""
        kind, keys, missing = self._look(table)
        if not len(keys):
            return Unseen(0.0, 0, (), missing)
        cells = kind.read(table)
        known = [part.spread(self.vocabulary.find(part.keys)) >= 0 for part in cells]
        n_filled, n_known = sum(part.n_filled for part in cells), sum(map(np.count_nonzero, known))
        share = float((n_filled - n_known) / n_filled)
        return Unseen(share, len(keys), tuple(map(kind.decode, keys[:3])), missing)

    def look_up(self, cell: Plain | None) -> Sequence[tuple[int, float]] | None:
        """The ids of one cell, -1 for those that have none, and what their edges carry.

        None where only `encode` will do.
        """
        if cell is None or cell != cell:
            return ((self.vocabulary.missing, 1.0),) if self.missing else ()
        if isinstance(cell, int) and not -(2**63) <= cell < 2**63:
            return None
        keys = self.kind.keys_in(cell)
        if keys is None:
            return None
        get = self.vocabulary.get
        return [(get(key), value) for key, value in keys]

    def encode(self, table: Table) -> list[_Column]:
        """Give the ids of the field's column; a date's parts are columns of their own."""
        columns = [
            _Column(cells.spread(self.vocabulary.find(cells.keys)), cells.row, cells.values)
            for cells in self.kind.read(table)
        ]
        rows, (ids, row, values) = self.kind.find_missing(table), columns[0]
        if row is None:
            ids[rows] = self.vocabulary.missing
        else:
            ids = np.append(ids, np.full(len(rows), self.vocabulary.missing, np.int32))
            columns[0] = _Column(ids, np.append(row, rows), values)
        return columns

    def restore(self, features: pl.DataFrame) -> _Codec:
        """Take the rows of a vocabulary's frame, with their ids."""
        field, kept = self.kind.field, self.kind.stores
        other = "value" if kept == "bucket" else "bucket"
        if features[other].null_count() < len(features):
            raise _refusal(f"{field.kind} field {field.name!r} has a feature with a {other}")
        ids = features["id"].cast(pl.Int32).to_numpy()
        is_missing = features[kept].is_null().to_numpy()
        keys, missing = features[kept].drop_nulls(), ids[is_missing].tolist()
        if len(missing) > 1 or keys.n_unique() < len(keys):
            raise _refusal(f"field {field.name!r} has a feature twice")
        if missing and not self.missing:
            raise _refusal(f"field {field.name!r} has a missing value where missing is 'none'")
        odd = self.kind.find_odd(keys)
        if odd is not None:
            raise _refusal(f"field {field.name!r} cannot have the feature {odd!r}")
        layers = (Lookup(keys, ids[~is_missing]),) if len(keys) else ()
        return replace(self, vocabulary=Vocabulary(layers, *missing))


@dataclass(frozen=True, eq=False)
class FieldOf:
    """(D,) the index of each feature's field, in layers that copies of an encoder share.

    Parameters
    ----------
    layers
        One after the other; merged like those of a `Vocabulary`.

    Examples
    --------
    >>> known = FieldOf().add([np.array([0, 0, 1])])
    >>> later = known.add([np.array([2])])
    >>> later[np.array([3, 0])].tolist(), later[:2].tolist(), len(known)
    ([2, 0], [0, 0], 3)
    """

    layers: tuple[Ids, ...] = (np.empty(0, dtype=np.int32),)

    def add(self, fields: Sequence[Ids], lasting: bool = True) -> FieldOf:
        """The fields of further features; what is not `lasting` is added to no more."""
        new = np.concatenate([np.empty(0, np.int32), *fields]).astype(np.int32)
        layers = [*self.layers, new] if len(new) else list(self.layers)
        while lasting and len(layers) > 1 and 2 * len(layers[-1]) >= len(layers[-2]):
            last = layers.pop()
            layers[-1] = np.concatenate([layers[-1], last])
        return FieldOf(tuple(layers))

    def __len__(self) -> int:
        return sum(map(len, self.layers))

    def __getitem__(self, at: Any) -> Ids:
        """The fields of some features: a slice, or an array of ids."""
        first, *more = self.layers
        if isinstance(at, slice):
            stop = len(self) if at.stop is None else at.stop
            whole = first if stop <= len(first) else np.concatenate(self.layers)
            return np.asarray(whole[at])
        if not more:
            return np.asarray(first[at])
        found, start = np.empty(len(at), dtype=np.int32), 0
        for layer in self.layers:
            here = (start <= at) & (at < start + len(layer))
            found[here] = layer[at[here] - start]
            start += len(layer)
        return found


# ---- all fields ----------------------------------------------------------------------------------


class _Late(NamedTuple):
    """What an encoder knew before it met many new columns at once, and these."""

    schema: Schema
    codecs: dict[str, _Codec]
    first: int  # the id of their first feature
    new: WideColumns


def _have_values(codecs: Mapping[str, _Codec]) -> bool:
    return any(codec.kind.has_values for codec in codecs.values())


def _put_beside(known: MultiHot, edges: CellEdges, late: _Late) -> MultiHot:
    """Each row, and after it its edges to the features of new columns."""
    is_edge = edges.ids >= 0  # (N, columns, 2)
    n_edges = np.count_nonzero(is_edge, axis=(1, 2))
    cuts = known.row_ptr[1:-1], np.cumsum(n_edges)[:-1]

    def join(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        parts = zip(np.split(old, cuts[0]), np.split(new, cuts[1]), strict=True)
        return np.concatenate(list(itertools.chain.from_iterable(parts)))

    ids, values = join(known.ids, edges.ids[is_edge] + np.int32(late.first)), None
    if late.new.has_values or known.values is not None:
        old = np.ones(known.nnz, np.float32) if known.values is None else known.values
        values = join(old, edges.values[is_edge])
    row_ptr = known.row_ptr + np.concatenate([[0], np.cumsum(n_edges)])
    n_features = late.first + int(late.new.n_features.sum())
    return MultiHot(row_ptr, ids, n_features, values)


def _look_up_few(
    codecs: Sequence[_Codec], table: Table
) -> tuple[list[list[int]], list[list[float]]] | None:
    """(N,) the ids of each row, and what their edges carry, cell by cell: what `_join` gives.

    None where a field needs polars.  WHY: three rows of 100,000 columns would be as many arrays.
    """
    ids: list[list[int]] = [[] for _ in range(table.n_rows)]
    values: list[list[float]] = [[] for _ in range(table.n_rows)]
    for codec in codecs:
        cells, vocabulary = codec.kind.read_few(table), codec.vocabulary
        if cells is None:
            return None
        missing, layers = vocabulary.missing, vocabulary.layers
        get = layers[0].few if len(layers) == 1 else None
        for row, carried, keys in zip(ids, values, cells, strict=True):
            if not keys and missing >= 0:
                row.append(missing)
                carried.append(1.0)
            for key, value in keys:
                feature = vocabulary.get(key) if get is None else get(key, -1)
                if feature >= 0:
                    row.append(feature)
                    carried.append(value)
    return ids, values


def _join(columns: Sequence[_Column], n_rows: int, n_features: int, has_values: bool) -> MultiHot:
    """Put the ids of all fields together, row by row."""
    valued = columns if has_values else ()
    values = [np.ones(len(c.ids), np.float32) if c.values is None else c.values for c in valued]
    if columns and all(column.row is None for column in columns):
        # One id or none in each column of each row (N, d): no entry has to be sorted.
        table = np.stack([column.ids for column in columns], axis=1)
        known = table >= 0
        row_ptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int64)
        value = np.stack(values, axis=1)[known] if has_values else None
        return MultiHot(row_ptr, table[known], n_features, value)
    rows = [np.arange(n_rows) if column.row is None else column.row for column in columns]
    row = np.concatenate([np.empty(0, np.int64), *rows])
    feature = np.concatenate([np.empty(0, np.int32), *(column.ids for column in columns)])
    known = feature >= 0
    value = np.concatenate([np.empty(0, np.float32), *values])[known] if has_values else None
    return MultiHot.from_entries(row[known], feature[known], n_rows, n_features, value)
