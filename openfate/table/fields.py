"""Field, and one class a kind of field: how its cells become features, and back.

A field is a raw column (the paper's "raw feature", d of them).  Its cells hold keys (texts, hashes,
numbers of buckets), and each distinct key is a feature; which id a key has is the encoder's
business.  A kind is a subclass of `Kind`, in a file of its own perhaps, and a line of `KINDS`.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import math
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate._lazy import ComputesOnce, LazyDict
from openfate.errors import InputError, suggest
from openfate.table.frame import (
    FEW_ROWS,
    Table,
    elements_of,
    is_unicode,
    numbers_of,
    plain_text,
    text_of,
    times_of,
)
from openfate.table.tally import SAMPLED, Tally

Numeric = Literal["buckets", "value", "linear", "log"]
Ids = NDArray[np.int32]
Floats = NDArray[np.float64]

# WHY: below some thousand cells Python's dicts are faster than a polars call of half a millisecond.
SMALL = 2000
_HASHED = 1 << 16


@dataclass(frozen=True)
class Field:
    """A raw column.

    Parameters
    ----------
    name
        The column's name.
    kind
        "categorical": each value is a feature.  "numeric": each of `n_buckets` equal intervals is
        one, or the number itself is, or each of some knots (see `numeric`).  "multivalued": a cell
        is a list, and each value in it is a feature.  "datetime": the hour, the weekday and the
        month are features.
    n_buckets
        The number of intervals of a numeric field; nothing else uses it.
    bounds
        The least and the greatest value of a numeric field's intervals where they are known
        beforehand; by default the encoder takes them from the rows it is fitted with.
    hashed
        Whether the vocabulary holds a keyed hash of each value of a categorical or multivalued
        field instead of the value, for names of people and the like.
    numeric
        "buckets"; "value": a numeric field is one feature, which carries the standardised number;
        "linear": each of some knots, which lie at quantiles, is a feature, and a cell has the two
        around its number, the nearer the more (see `Knots`); "log": intervals that grow with the
        number, the same for all tables, as click logs have them (see `LogBuckets`).
    scale
        The mean and the deviation that standardise a "value" where they are known beforehand.
    n_knots
        The number of knots of a "linear" field, at most: fewer for few rows or values.
    knots
        Where the knots lie, ascending, if that is known beforehand.
    jumps
        Numbers, ascending, that are knots of a "linear" field besides: two that are neighbours let
        what is learned jump between them, as at a threshold.

    Examples
    --------
    >>> Field("age", "numeric", n_buckets=5).n_buckets
    5
    >>> Field("email", "categorical", hashed=True).hashed
    True
    """

    name: str
    kind: str
    n_buckets: int = 10
    bounds: tuple[float, float] | None = None
    hashed: bool = False
    numeric: Numeric = "buckets"
    scale: tuple[float, float] | None = None
    n_knots: int = 24
    knots: tuple[float, ...] | None = None
    jumps: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"a field's name must be a non-empty string, not {self.name!r}.")
        for fault in self._faults():
            raise InputError(f"field {self.name!r}: {fault}.")
        for name in ("bounds", "scale"):
            if (pair := getattr(self, name)) is not None:
                object.__setattr__(self, name, _as_pair(pair))
        for name in ("knots", "jumps"):
            if (numbers := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(float(number) for number in numbers))

    def unchecked(self, **settings: Any) -> Field:
        """The field with other settings, which are as they must be.

        WHY not `replace`: of 100,000 columns a check would take a third of the time.
        """
        found = object.__new__(Field)
        vars(found).update(vars(self), **settings)
        return found

    def _faults(self) -> Iterator[str]:
        if self.kind not in list(KINDS):  # as JSON may give a list, which has no hash
            hint = f"{suggest(self.kind, KINDS)} (known: {', '.join(KINDS)})"
            yield f"unknown kind {self.kind!r}{hint}"
        for name, least in (("n_buckets", 1), ("n_knots", 2)):
            number = getattr(self, name)
            if type(number) is not int or number < least:
                yield f"{name} must be an integer from {least} up, not {number!r}"
        hashed: object = self.hashed
        if not isinstance(hashed, bool):
            yield f"hashed must be True or False, not {hashed!r}"
        if self.numeric not in list(_MEASURES):
            yield f"numeric must be {NUMERIC_WORDS}, not {self.numeric!r}"
        settings = KINDS[self.kind].settings
        if self.hashed and "hashed" not in settings:
            others = " or ".join(name for name in KINDS if "hashed" in KINDS[name].settings)
            yield f"a {self.kind} field holds no values that could be hashed; declare it {others}"
        if self.numeric != "buckets" and "numeric" not in settings:
            yield f'a {self.kind} field cannot have numeric="{self.numeric}"; declare it numeric'
        low, high = (0.0, 0.0) if self.bounds is None else _as_pair(self.bounds)
        if not -math.inf < low <= high < math.inf:
            yield f"bounds must be two finite numbers, the lower first, not {self.bounds!r}"
        if self.knots is not None and Knots.from_json(self, self.knots) is None:
            yield f"knots must be up to n_knots finite numbers, ascending, not {self.knots!r}"
        if self.jumps is not None and _ascending(self.jumps) is None:
            yield f"jumps must be finite numbers, ascending, not {self.jumps!r}"
        mean, std = (0.0, 1.0) if self.scale is None else _as_pair(self.scale)
        if not (math.isfinite(mean) and 0 < std < math.inf):
            yield f"scale must be a finite mean and a deviation above 0, not {self.scale!r}"


def _ascending(numbers: Any) -> Floats | None:
    """Finite numbers that grow, one or more, as an array; None for anything else."""
    try:
        found = np.array(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    fits = found.ndim == 1 and len(found) and np.isfinite(found).all()
    return found if fits and (found[1:] > found[:-1]).all() else None


def _as_pair(numbers: Any) -> tuple[float, float]:
    try:
        first, second = (float(number) for number in numbers)
    except (TypeError, ValueError):
        return math.nan, math.nan
    return first, second


# ---- what every kind of field does ---------------------------------------------------------------


Keys = pl.Series | list[str | int] | range  # a range, from 0: all knots of a field


class Lookup(ComputesOnce):
    """Which id each of some keys has; never changed.

    Few keys are found by a dict.  Many are found by a sorted array of their hashes, and compared:
    12 bytes a key beside the key itself, where a dict would take 150.

    Parameters
    ----------
    keys
        (n,) texts, or numbers of buckets; each once.
    ids
        (n,) their ids.  WHY a range: an array takes half a µs, for each of many columns.

    Examples
    --------
    >>> jobs = Lookup(["cook", "pilot"], np.array([4, 7], np.int32))
    >>> jobs.get("pilot"), jobs.find(pl.Series(["judge", "cook"])).tolist()
    (7, [-1, 4])
    """

    def __init__(self, keys: Keys, ids: Ids | range) -> None:
        self._given, self._ids = keys, ids
        if isinstance(keys, list) and isinstance(ids, range):
            # WHY now: it will be asked for, and the lock of `cached_property` takes longer.
            self._id_of = dict(zip(keys, ids, strict=True))

    @cached_property
    def ids(self) -> Ids:
        """(n,)."""
        given = self._ids
        if isinstance(given, range):
            return np.arange(given.start, given.stop, dtype=np.int32)
        return given

    @cached_property
    def keys(self) -> pl.Series:
        """(n,)."""
        # WHY: a Series takes 15 µs, and few keys of one of many columns are seldom asked for it.
        if isinstance(self._given, pl.Series):
            return self._given
        is_text = bool(self._given) and isinstance(self._given[0], str)
        return pl.Series(self._given, dtype=pl.String if is_text else pl.Int32)

    def key_at(self, place: int) -> str | int:
        """One of the keys."""
        key: str | int = self._given[place]
        return key

    @cached_property
    def _id_of(self) -> dict[str | int, int]:
        keys, ids = self._given, self._ids
        texts = keys.to_list() if isinstance(keys, pl.Series) else keys
        return dict(zip(texts, ids if isinstance(ids, range) else ids.tolist(), strict=True))

    @cached_property
    def _index(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(n,) the hashes of the keys, ascending, and the place of each."""
        codes = _hash_in_process(self.keys)
        order = np.argsort(codes).astype(np.int32)
        return codes[order], order

    def find(self, keys: pl.Series) -> Ids:
        """(m,) the id of each key, -1 where it is none of these."""
        if not len(self.ids):
            return _no_ids(len(keys))
        if len(self.ids) <= SMALL and len(keys) <= SMALL:
            get = self._id_of.get
            return np.array([get(key, -1) for key in keys.to_list()], dtype=np.int32)
        if len(keys) < len(self.ids) or "_index" in vars(self):
            return self._find_many(keys)
        # WHY: more cells than keys, as where the distinct texts of a column are spread over it:
        # that is asked once, and polars needs no index.
        new = pl.Series(self.ids, dtype=pl.Int32)
        found = keys.replace_strict(self.keys, new, default=-1, return_dtype=pl.Int32)
        return found.to_numpy(writable=True)

    def _find_many(self, keys: pl.Series) -> Ids:
        (codes, order), found = self._index, _no_ids(len(keys))
        wanted = _hash_in_process(keys)
        at, asked = np.searchsorted(codes, wanted), np.arange(len(keys))
        while len(asked):  # once, or again for keys that share a hash
            at, asked = at[at < len(codes)], asked[at < len(codes)]
            same = codes[at] == wanted[asked]
            at, asked = at[same], asked[same]
            place = order[at]
            equal = self.keys.gather(place).eq_missing(keys.gather(asked)).to_numpy()
            found[asked[equal]] = self.ids[place[equal]]
            at, asked = at[~equal] + 1, asked[~equal]
        return found

    def get(self, key: str | int) -> int:
        """The id of one key, -1 where it is none of these."""
        if (get := self.few) is not None:
            return get(key, -1)
        (codes, order), code = self._index, hash(key)
        at = int(codes.searchsorted(code))
        while at < len(codes) and codes[at] == code:
            if self.keys[int(order[at])] == key:
                return int(self.ids[order[at]])
            at += 1
        return -1

    @property
    def few(self) -> Callable[[str | int, int], int] | None:
        """`get` with what is given where a key is none of these; None where keys are many."""
        if isinstance(self._given, range) and isinstance(self._ids, range):
            return self._add_first
        return self._id_of.get if len(self._given) <= SMALL else None

    def _add_first(self, number: str | int, default: int) -> int:
        """WHY: a dict of all knots of each of many columns takes more than all else."""
        n, first = len(self._ids), self._ids[0]
        return number + first if isinstance(number, int) and 0 <= number < n else default

    def __len__(self) -> int:
        return len(self._ids)

    def __add__(self, later: Lookup) -> Lookup:
        keys = pl.concat([self.keys, later.keys], rechunk=True)
        return Lookup(keys, np.concatenate([self.ids, later.ids]))


def _hash_in_process(keys: pl.Series) -> NDArray[np.int64]:
    """(n,) Python's own hashes, which no other process has: nobody can send keys that share one."""
    codes = np.empty(len(keys), dtype=np.int64)
    for start in range(0, len(keys), _HASHED):  # WHY: Python's texts take 60 bytes each
        part = keys.slice(start, _HASHED).to_list()
        codes[start : start + len(part)] = np.fromiter(map(hash, part), np.int64, len(part))
    return codes


def _no_ids(n_cells: int) -> Ids:
    return np.full(n_cells, -1, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Cells:
    """Some cells of a field: the distinct keys in them, and which cell has which.

    Parameters
    ----------
    distinct
        (distinct,) what the cells hold, each once, in any order.
    keys
        (distinct,) what stands for each in the vocabulary.
    n_filled
        The number of cells that are not missing.
    spread
        Gives (cells,) from one id for each key; -1 where a cell has none.
    row
        (cells,) the row of each, or None where there is one cell for each row, in order.
    values
        (cells,) what the edges carry; None for ones.
    """

    distinct: pl.Series
    keys: pl.Series
    n_filled: int
    spread: Callable[[Ids], Ids]
    row: NDArray[np.int64] | None = None
    values: NDArray[np.float32] | None = None


Plain = str | int | float | bool  # what a cell of a row without a frame may be, of these very types
RowKeys = tuple[tuple[str | int, float], ...]


@dataclass(frozen=True)
class Kind(ABC):
    """How the cells of one field become features, and back.

    Parameters
    ----------
    field
        What the column is.
    hash_key
        The secret of a hashed field.
    """

    name: ClassVar[str]  # as `Field.kind` gives it
    settings: ClassVar[tuple[str, ...]] = ()  # what of `Field` it uses beside name and kind
    stores: ClassVar[Literal["value", "bucket"]] = "value"  # the vocabulary's column of its keys
    states: ClassVar[tuple[str, ...]] = ()  # where a bundle's header keeps what it has learned
    is_open: ClassVar[bool] = False  # whether there is no end to the values that it may have

    field: Field
    hash_key: bytes | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # WHY: a kind that reads columns otherwise than its base has other keys in a cell too.
        if "_read" in vars(cls) and "keys_in" not in vars(cls):
            cls.keys_in = Kind.keys_in  # type: ignore[method-assign]

    @classmethod
    def takes(cls, dtype: pl.DataType) -> bool:
        """Whether a column of this type is guessed to be of this kind."""
        return False

    # ---- cells -> keys -----------------------------------------------------------------------

    def learn(self, table: Table) -> Self:
        """Learn what must be known before cells have keys, once."""
        return self

    def read(self, table: Table) -> tuple[Cells, ...]:
        """Read the field's column: one `Cells`, or one for each part of its cells."""
        cells: tuple[Cells, ...] = table.recall(self.field.name, self, lambda: self._read(table))
        return cells

    @abstractmethod
    def _read(self, table: Table) -> tuple[Cells, ...]: ...

    def find_missing(self, table: Table) -> NDArray[np.int64]:
        """The rows whose cell is missing."""
        column = table.columns[self.field.name]
        return np.flatnonzero(column.is_null().to_numpy()) if column.null_count() else _NO_ROWS

    def order(self, distinct: pl.Series) -> pl.Series:
        """The keys of new values, in the order in which they get ids."""
        return distinct.sort()

    @property
    def has_values(self) -> bool:
        """Whether its features carry values."""
        return False

    @property
    def has_knots(self) -> bool:
        """Whether its features, but for missing cells, are knots on a line."""
        return False

    def keys_in(self, cell: Plain) -> RowKeys | None:
        """The keys of one cell that is not missing, and what their edges carry.

        What `read` gives for a column of that cell, without a column; None where only that will do.
        """
        return None

    def read_few(self, table: Table) -> list[RowKeys] | None:
        """(N,) the keys of each cell, none of a missing one: what `read` gives, for few rows.

        None where only `read` will do.

        Examples
        --------
        >>> table = Table(2, {"job": pl.Series(["cook", None])})
        >>> Text(Field("job", "categorical")).read_few(table)
        [(('cook', 1.0),), ()]
        """
        if table.n_rows > FEW_ROWS or self.hash_key is not None:
            return None
        # WHY not `recall`, which would hash all of the field: this is for many columns.
        name = self.field.name
        read_by, kept = table.memo.get((name, "few"), _NOT_YET)
        found: list[RowKeys] | None = kept
        if read_by is not self:
            found = self._read_few(table)
            table.memo[name, "few"] = self, found
        return found

    def _read_few(self, table: Table) -> list[RowKeys] | None:
        if type(self).keys_in is Kind.keys_in or self.field.name not in table.few:
            return None
        dtype, cells = table.few[self.field.name]
        if dtype is pl.String and type(self).keys_in is Text.keys_in:
            return [() if cell is None else ((cell, 1.0),) for cell in cells]
        found: list[RowKeys] = []
        keys_in = self.keys_in
        for cell in cells:
            keys = () if cell is None else keys_in(cell)
            if keys is None or cell != cell:
                return None
            found.append(keys)
        return found

    # ---- keys -> values ----------------------------------------------------------------------

    def decode(self, key: Any) -> Value:
        """The value that a key stands for."""
        value: Value = key
        return value

    def keys_of(self, value: Any) -> pl.Series:
        """The keys that a value may have, given as it stands in a cell or as `decode` gives it."""
        return text_of(pl.Series([value]), self.field.name).drop_nulls()

    def hide(self, cell: Any) -> Any:
        """A cell as it may be kept: itself, but for hashed ones."""
        return cell

    @classmethod
    def describe(cls, value: Any) -> str:
        """Write a value for people."""
        return str(value)

    @classmethod
    def quote(cls, value: Any) -> str:
        """Write a value for people, as an example within a sentence."""
        return reprlib.repr(value)

    # ---- bundles -----------------------------------------------------------------------------

    def state(self) -> tuple[str, Any] | None:
        """What it has learned: one of `states`, and what JSON can hold."""
        return None

    def restore(self, name: str, state: Any) -> Self | None:
        """The same with what `state` gave; None where it cannot have that."""
        return None

    def find_odd(self, keys: pl.Series) -> Any:
        """The first key that the field cannot have; None where it can have all."""
        return None


_NO_ROWS = np.empty(0, dtype=np.int64)
_NOT_YET: tuple[None, None] = None, None


# ---- text ----------------------------------------------------------------------------------------


def read_texts(
    text: pl.Series, row: NDArray[np.int64] | None = None, hash_key: bytes | None = None
) -> Cells:
    """Cells that hold texts, null for none; a text is looked up and hashed once for all its cells.

    Examples
    --------
    >>> cells = read_texts(pl.Series(["a", None, "b", "a"]))
    >>> cells.keys.to_list(), cells.spread(np.array([7, 3])).tolist()
    (['a', 'b'], [7, -1, 3, 7])
    """
    n_filled = len(text) - text.null_count()
    if len(text) > SMALL:
        # WHY: texts are hashed once: their codes tell both what there is and where.
        categories = pl.Categories.random()
        coded = text.cast(pl.Categorical(categories))  # as long as it is there the texts are, too
        distinct = categories.to_series()
        code = coded.to_physical().fill_null(len(distinct)).to_numpy()  # (cells,)

        def spread(ids: Ids) -> Ids:
            return np.append(ids, np.int32(-1)).take(code)
    else:
        once = dict.fromkeys(text.to_list())
        once.pop(None, None)
        distinct = pl.Series(list(once), dtype=pl.String)

        def spread(ids: Ids) -> Ids:
            return Lookup(distinct, ids).find(text)

    keys = distinct if hash_key is None else _hash(distinct, hash_key)
    return Cells(distinct, keys, n_filled, spread, row)


class Text(Kind):
    """Each value is a feature.

    Examples
    --------
    >>> table = Table(2, {"job": pl.Series([1.0, 2.5])})
    >>> (cells,) = Text(Field("job", "categorical")).read(table)
    >>> cells.keys.to_list()
    ['1', '2.5']
    """

    name = "categorical"
    settings = ("hashed",)
    is_open = True

    @classmethod
    def takes(cls, dtype: pl.DataType) -> bool:
        """Any type: what no other kind takes is text."""
        return True

    def _read(self, table: Table) -> tuple[Cells, ...]:
        name = self.field.name
        return (read_texts(text_of(table.columns[name], name), hash_key=self.hash_key),)

    def keys_in(self, cell: Plain) -> RowKeys | None:
        """Its text, or the hash of it.

        Examples
        --------
        >>> Text(Field("job", "categorical")).keys_in(2.0)
        (('2', 1.0),)
        """
        text = cell if isinstance(cell, str) else plain_text(cell)
        if text is None or self.hash_key is None:
            return None if text is None else ((text, 1.0),)
        return ((_hash_text(text, self.hash_key), 1.0),) if is_unicode(text) else None

    def hide(self, cell: Any) -> Any:
        """The hash of a cell, where it is hashed, in a form that is taken in its place.

        Examples
        --------
        >>> kind = Text(Field("email", "categorical", hashed=True), hash_key=b"secret")
        >>> kind.keys_in(kind.hide("a@b.org")) == kind.keys_in("a@b.org")
        True
        """
        if self.hash_key is None or cell is None:
            return cell
        if isinstance(cell, list):
            return [self.hide(value) for value in cell]
        text = cell if isinstance(cell, str) else plain_text(cell)
        return cell if text is None else _HIDDEN + _hash_text(text, self.hash_key)

    def order(self, distinct: pl.Series) -> pl.Series:
        """By text; hashed ones in an order that tells nothing of them, nor depends on the key."""
        if self.hash_key is None:
            return distinct.sort()
        # WHY: ids follow this order.  By the keyed hash, the same seed would give another result.
        return _hash(distinct.gather(_hash(distinct).arg_sort()), self.hash_key)

    def keys_of(self, value: Any) -> pl.Series:
        """The text, and its hash."""
        text = super().keys_of(value)
        return text if self.hash_key is None else pl.concat([text, _hash(text, self.hash_key)])

    def find_odd(self, keys: pl.Series) -> Any:
        """A text that is no hash."""
        if self.hash_key is None:
            return None
        return next((key for key in keys if not _HASH.fullmatch(key)), None)


_HASH_BYTES = 16
_HASH = re.compile(rf"[0-9a-f]{{{2 * _HASH_BYTES}}}")
_HIDDEN = "\0hash:"  # before the hash of a text that stands for the text


def _hash(texts: pl.Series, key: bytes = b"") -> pl.Series:
    """Hash each text with a key, which keeps the hashes from being looked up in a table of all."""
    hashes = [_hash_text(text, key) for text in texts]
    return pl.Series(texts.name, hashes, dtype=pl.String)


def _hash_text(text: str, key: bytes) -> str:
    if text.startswith(_HIDDEN):
        return text.removeprefix(_HIDDEN)
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES, key=key).hexdigest()


class List(Text):
    """A cell is a list, and each value in it is a feature.

    Examples
    --------
    >>> table = Table(2, {"tags": pl.Series([["a", "b"], ["a"]])})
    >>> (cells,) = List(Field("tags", "multivalued")).read(table)
    >>> cells.row.tolist(), cells.spread(np.array([0, 1])).tolist()
    ([0, 0, 1], [0, 1, 0])
    """

    name = "multivalued"

    @classmethod
    def takes(cls, dtype: pl.DataType) -> bool:
        """Lists and arrays."""
        return dtype in (pl.List, pl.Array)

    def _read(self, table: Table) -> tuple[Cells, ...]:
        row, values = elements_of(table.columns[self.field.name], self.field.name)
        return (read_texts(text_of(values, self.field.name), row, self.hash_key),)


# ---- numbers -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Buckets(ComputesOnce):
    """Where the buckets of a numeric field lie; they have equal width."""

    state: ClassVar[str] = "edges"

    at: Floats  # (buckets + 1,)

    @property
    def n_buckets(self) -> int:
        """How many buckets there are."""
        return len(self.at) - 1

    @classmethod
    def of_tally(cls, field: Field, tally: Tally) -> Buckets | None:
        """Take the bounds that are declared, or those of the numbers; None where there is none.

        Examples
        --------
        >>> learn_measure(Field("age", "numeric", 2), np.array([0.0, 8.0])).at.tolist()
        [0.0, 4.0, 8.0]
        """
        if field.bounds is not None:
            return cls.cut(*field.bounds, field.n_buckets)
        if tally.odd is not None:
            raise InputError(
                f"numeric field {field.name!r} holds {tally.odd}, which leaves no edges "
                "for its buckets; make it finite or missing."
            )
        return cls.cut(tally.low, tally.high, field.n_buckets) if tally.n else None

    @classmethod
    def cut(cls, low: float, high: float, n_buckets: int) -> Buckets:
        """Cut an interval into buckets; one too narrow to be cut has one bucket."""
        # WHY: the width of [-1e308, 1e308] is no float; that of a sixteenth of it is.
        scale = 16.0 if max(abs(low), abs(high)) > 1e307 else 1.0
        edges = np.linspace(low / scale, high / scale, n_buckets + 1) * scale
        edges[0], edges[-1] = low, high
        if not (edges[1:] > edges[:-1]).all():  # no width, or less than floats can tell apart
            edges = np.array([low, high])
        return cls(np.asarray(edges, dtype=np.float64))

    def place(self, numbers: Floats) -> NDArray[np.int64]:
        """(N,) the bucket of each; numbers beyond the edges fall into the first or the last.

        Examples
        --------
        >>> Buckets.cut(0.0, 8.0, 2).place(np.array([-1.0, 4.0, 8.0])).tolist()
        [0, 1, 1]
        """
        # PAPER: "10 even buckets"; the maximum falls into the last one, not into an eleventh, which
        # gives the paper's feature counts (test_datasets.py).
        return np.searchsorted(self.at[1:-1], numbers, side="right")

    def carry(self, numbers: Floats) -> None:
        """No values: a bucket is there or not."""

    @cached_property
    def _inner(self) -> list[float]:
        return [float(edge) for edge in self.at[1:-1]]

    def keys_in(self, number: float) -> RowKeys:
        """The bucket of one number, as `place` has it."""
        return ((bisect.bisect_right(self._inner, number), 1.0),)

    def decode(self, bucket: int) -> tuple[float, float]:
        """The lower and the upper end of a bucket."""
        return float(self.at[bucket]), float(self.at[bucket + 1])

    def to_json(self) -> list[float]:
        """The edges."""
        return [float(edge) for edge in self.at]

    @classmethod
    def from_json(cls, field: Field, numbers: Any) -> Buckets | None:
        """Read what `to_json` gave; None where the field cannot have these edges."""
        at = np.array(numbers, dtype=np.float64)
        fits = at.ndim == 1 and len(at) in (2, field.n_buckets + 1)
        return cls(at) if fits and np.isfinite(at).all() and (at[1:] >= at[:-1]).all() else None


_FARTHEST = 5.0  # standard deviations


@dataclass(frozen=True)
class Scale:
    """What the feature of a numeric field with ``numeric="value"`` carries: (x - mean) / std."""

    state: ClassVar[str] = "scales"
    n_buckets: ClassVar[int] = 1

    mean: float
    std: float

    @classmethod
    def of_tally(cls, field: Field, tally: Tally) -> Scale | None:
        """Take the scale that is declared, or that of the finite numbers; None where none is.

        Examples
        --------
        >>> field = Field("age", "numeric", numeric="value")
        >>> learn_measure(field, np.array([1.0, 3.0, np.inf]))
        Scale(mean=2.0, std=1.0)
        >>> learn_measure(field, np.array([0.1, 0.1, 0.1]))
        Scale(mean=0.1, std=1.0)
        """
        if field.scale is not None:
            return cls(*field.scale)
        return cls(*tally.mean_and_std()) if tally.n else None

    def place(self, numbers: Floats) -> NDArray[np.int64]:
        """(N,) zeros: there is one feature."""
        return np.zeros(len(numbers), dtype=np.int64)

    def carry(self, numbers: Floats) -> NDArray[np.float32]:
        """(N,) standard deviations from the mean, at most 5, infinite numbers too.

        Examples
        --------
        >>> Scale(2.0, 1.0).carry(np.array([3.0, -np.inf])).tolist()
        [1.0, -5.0]
        """
        with np.errstate(over="ignore"):  # too large is infinite, and is clipped
            steps = (numbers - self.mean) / self.std
        return np.clip(steps, -_FARTHEST, _FARTHEST).astype(np.float32)

    def keys_in(self, number: float) -> RowKeys:
        """The one feature, and what it carries of one number, as `carry` has it."""
        steps = (number - self.mean) / self.std
        return ((0, min(max(steps, -_FARTHEST), _FARTHEST)),)

    def decode(self, bucket: int) -> Scale:
        """The scale itself."""
        return self

    def to_json(self) -> list[float]:
        """Mean and deviation."""
        return [self.mean, self.std]

    @classmethod
    def from_json(cls, field: Field, numbers: Any) -> Scale | None:
        """Read what `to_json` gave; None where it is no scale."""
        mean, std = (float(number) for number in numbers)
        return cls(mean, std) if std > 0 and np.isfinite([mean, std]).all() else None


def between(numbers: Floats, low: Floats, high: Floats) -> NDArray[np.float32]:
    """How far each number is on the way from its left knot to the next one; 0 on a knot."""
    with np.errstate(all="ignore"):  # what is no number has not left its knot
        share = (numbers - low) / (high - low)
    inside = (low < numbers) & (numbers < high) & np.isfinite(share)
    return np.where(inside, share, 0.0).astype(np.float32)


_ROWS_A_KNOT = 16  # WHY: what fewer rows tell of a knot is noise, as settings' own splits show


@dataclass(frozen=True, eq=False)
class Knots(ComputesOnce):
    """Where the knots of a numeric field with ``numeric="linear"`` lie: at quantiles.

    A number x between the knots a and b has both, the left one with the value 1 - t and the right
    one with t = (x - a) / (b - a): a sum over features is then a piecewise linear function of x,
    fine where numbers are many, whatever their skew.  A number on a knot has it alone, one beyond
    the ends the end.
    """

    state: ClassVar[str] = "knots"

    at: Floats  # (knots,) increasing

    @property
    def n_buckets(self) -> int:
        """How many knots there are."""
        return len(self.at)

    @classmethod
    def learn(cls, field: Field, numbers: Floats) -> Knots | None:
        """Take quantiles of the finite numbers that occur; None for no number.

        Examples
        --------
        >>> field = Field("pay", "numeric", numeric="linear", n_knots=3)
        >>> Knots.learn(field, np.array([0.0] * 60 + [1.0] * 20 + [1e6])).at.tolist()
        [0.0, 1.0, 1000000.0]
        """
        if len(numbers) < 2 * _ROWS_A_KNOT:  # WHY: what `of_tally` gives for them, in a tenth of it
            few = sorted({number for number in numbers.tolist() if math.isfinite(number)})
            if len(few) <= 2:
                return cls(_with_jumps(field, np.array(few))) if few else None
        return cls.of_tally(field, _tally_of(field, numbers))

    @classmethod
    def of_tally(cls, field: Field, tally: Tally) -> Knots | None:
        """The same of numbers that were counted in pieces; or the knots that are declared."""
        if field.knots is not None:
            return cls.declared(field.knots)
        values, counts = np.unique(tally.sample, return_counts=True)
        if not len(values):
            return None
        n_knots = max(2, min(field.n_knots, int(counts.sum()) // _ROWS_A_KNOT))
        return cls(_with_jumps(field, cls.of_quantiles(values, counts, n_knots).at))

    @classmethod
    def declared(cls, knots: tuple[float, ...]) -> Knots:
        """Knots that a field names."""
        found = cls(np.array(knots, dtype=np.float64))
        vars(found)["_list"] = knots
        return found

    @classmethod
    def of_quantiles(cls, values: Floats, counts: NDArray[np.integer], n_knots: int) -> Knots:
        """Knots at quantiles of numbers (n,), ascending, that occur so often."""
        if len(values) <= n_knots:
            return cls(values)
        (rank,), (places,) = _rank(counts[None], np.array([len(values)]), n_knots)
        return cls(values[np.unique(np.searchsorted(rank, places))])

    def left_of(self, numbers: Floats) -> NDArray[np.int64]:
        """(N,) the last knot that is not above each number; the first for those below all."""
        return np.maximum(np.searchsorted(self.at, numbers, side="right") - 1, 0)

    def share(self, numbers: Floats, left: NDArray[np.int64]) -> NDArray[np.float32]:
        """(N,) t: how far each number is on the way from its left knot to the next one.

        Examples
        --------
        >>> knots, numbers = Knots(np.array([0.0, 8.0])), np.array([-1.0, 2.0, 8.0, np.inf])
        >>> knots.share(numbers, knots.left_of(numbers)).tolist()
        [0.0, 0.25, 0.0, 0.0]
        """
        return between(numbers, self.at[left], self.at[np.minimum(left + 1, len(self.at) - 1)])

    @cached_property
    def _list(self) -> Sequence[float]:
        return self.to_json()

    def keys_in(self, number: float) -> RowKeys:
        """The knots around one number and their shares, as `left_of` and `share` have them.

        Examples
        --------
        >>> Knots(np.array([0.0, 8.0])).keys_in(2.0)
        ((0, 0.75), (1, 0.25))
        """
        at = self._list
        left = max(bisect.bisect_right(at, number) - 1, 0)
        if left + 1 < len(at) and at[left] < number:
            share = (number - at[left]) / (at[left + 1] - at[left])
            t = float(np.float32(share))
            if t > 0 and math.isfinite(share):
                return (left, 1 - t), (left + 1, t)
        return ((left, 1.0),)

    def decode(self, bucket: int) -> float:
        """The number at which a knot lies."""
        return float(self.at[bucket])

    def to_json(self) -> list[float]:
        """The knots."""
        found: list[float] = self.at.tolist()
        return found

    @classmethod
    def from_json(cls, field: Field, numbers: Any) -> Knots | None:
        """Read what `to_json` gave; None where these are no knots."""
        at = _ascending(numbers)
        most = field.n_knots + len(field.jumps or ())
        return cls(at) if at is not None and len(at) <= most else None


def _with_jumps(field: Field, knots: Floats) -> Floats:
    """The knots, and those that the field declares besides."""
    return knots if field.jumps is None else np.union1d(knots, field.jumps)


# ---- knots of columns that appear after training -------------------------------------------------

_NEW_ROWS_A_KNOT, _MANY_NEW_ROWS = 8, 100
# Of the size of few numbers, and of their spread: where knots stand around them.
_PARTS = np.array([sign * 2.0**power for power in range(-3, 4) for sign in (1, -1)])
_STEPS = np.array([sign * 2.0**power for power in range(-1, 3) for sign in (1, -1)])


def guess_knots(fields: Iterable[Field], table: Table) -> list[Field]:
    """Fields that appear after training, with knots declared by their first rows where they can be.

    Those rows may be very few.  Where they are, knots at powers of two of their size stand around
    them, so that numbers that come later are told apart.

    Examples
    --------
    >>> table = Table(1, {"pay": pl.Series([100.0])})
    >>> (pay,) = guess_knots([Field("pay", "numeric", numeric="linear")], table)
    >>> pay.knots[-4:]
    (125.0, 200.0, 400.0, 800.0)
    """
    found = list(fields)
    wanted: dict[int, list[int]] = {}  # places of fields, by the number of their knots
    for at, field in enumerate(found):
        if field.kind == "numeric" and field.numeric == "linear" and field.knots is None:
            if field.name in table.columns:
                wanted.setdefault(field.n_knots, []).append(at)
    for n_knots, places in wanted.items():
        columns = (_few_numbers_in(table, found[at].name) for at in places)
        # WHY: few rows of all columns at once; calls of numpy for each would take 100 µs.
        n_at_once = len(places) if table.n_rows <= FEW_ROWS else 1
        while numbers := list(itertools.islice(columns, n_at_once)):
            some, places = places[: len(numbers)], places[len(numbers) :]
            every, n_found = knots_of_columns(np.array(numbers, dtype=np.float64), n_knots)
            for at, knots, n in zip(some, every, n_found.tolist(), strict=True):
                if n:
                    knots = tuple(_with_jumps(found[at], knots[:n]).tolist())
                    found[at] = found[at].unchecked(knots=knots)
    return found


def _few_numbers_in(table: Table, name: str) -> Sequence[float | None] | Floats:
    dtype, cells = table.few.get(name, (None, ()))
    return cells if dtype in (pl.Float64, pl.Int64) else numbers_in(table, name)


def knots_of_columns(numbers: Floats, most: int) -> tuple[Floats, NDArray[np.int64]]:
    """The knots that `guess_knots` declares, of many columns at once.

    Parameters
    ----------
    numbers
        (columns, N), NaN where missing.
    most
        Knots that a column may have.

    Returns
    -------
    (columns, knots) ascending, then NaN; (columns,) how many there are, none where no number is
    finite

    Examples
    --------
    >>> knots, n_knots = knots_of_columns(np.array([[100.0], [np.nan]]), 3)
    >>> knots[0].tolist(), n_knots.tolist()
    ([-800.0, 75.0, 800.0], [3, 0])
    """
    finite = np.where(np.isfinite(numbers), numbers, np.nan)
    n_rows = np.count_nonzero(finite == finite, axis=1)
    n_wanted = np.clip(n_rows // _NEW_ROWS_A_KNOT, 2, max(2, most))
    found, n_found = np.full((len(numbers), max(2, most)), np.nan), np.zeros_like(n_rows)
    for at in np.flatnonzero(n_rows >= _MANY_NEW_ROWS):
        values, counts = np.unique(finite[at][finite[at] == finite[at]], return_counts=True)
        knots = Knots.of_quantiles(values, counts, n_wanted[at]).at
        found[at, : len(knots)], n_found[at] = knots, len(knots)
    few = np.flatnonzero((n_rows > 0) & (n_rows < _MANY_NEW_ROWS))
    if not len(few):
        return found, n_found
    with np.errstate(over="ignore", invalid="ignore"):
        around = _knots_around(finite[few], n_wanted[few])
    n_around = np.count_nonzero(around == around, axis=1)
    for n in np.unique(n_around).tolist():
        here, places = n_around == n, _choose(n, most)
        found[few[here], : len(places)] = around[here][:, places]
        n_found[few[here]] = len(places)
    return found, n_found


def _knots_around(numbers: Floats, n_knots: NDArray[np.int64]) -> Floats:
    """(columns, many) knots around few numbers, NaN where missing: ascending, then NaN."""
    values, counts = _ascend(numbers)  # (columns, N)
    n_values = np.count_nonzero(counts, axis=1)
    stand, n_stand = values.copy(), n_values.copy()
    for n in np.unique(n_knots[n_values > n_knots]).tolist():
        here = np.flatnonzero((n_values > n_knots) & (n_knots == n))
        rank, at = _rank(counts[here], n_values[here], n)
        places = np.count_nonzero(rank[:, None] < at[:, :, None], axis=2)
        stand[here] = np.nan
        stand[here, :n], n_stands = _ascend(np.take_along_axis(values[here], places, axis=1))
        n_stand[here] = np.count_nonzero(n_stands, axis=1)
    every = np.maximum(n_stand // 3, 1)
    stand[np.arange(stand.shape[1]) % every[:, None] != 0] = np.nan
    size = _median(np.sort(np.abs(values), axis=1), n_values)
    size[size == 0] = 1.0
    # Numbers far from 0 may lie close together: steps of their spread, or of parts of one.
    spread = values[np.arange(len(values)), n_values - 1] - values[:, 0]
    spread = np.where(spread == 0, size / 16, spread)
    middle = _median(values, n_values)[:, None]
    zero = np.zeros_like(middle)
    around = [stand, zero, size[:, None] * _PARTS, middle + spread[:, None] * _STEPS]
    knots = np.concatenate(around, axis=1)
    return _ascend(np.where(np.isfinite(knots), knots, np.nan))[0]


def _ascend(numbers: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """The numbers of each row, each once and ascending, then NaN; how often each occurs."""
    numbers = np.sort(numbers, axis=1)
    first = numbers == numbers
    first[:, 1:] &= numbers[:, 1:] != numbers[:, :-1]
    row, place = np.nonzero(numbers == numbers)
    order = np.cumsum(first, axis=1)[row, place] - 1  # of each number among those of its row
    found, counts = np.full_like(numbers, np.nan), np.zeros(numbers.shape, np.int64)
    found[row, order] = numbers[row, place]
    np.add.at(counts, (row, order), 1)
    return found, counts


def _median(ascending: Floats, n: NDArray[np.int64]) -> Floats:
    """(columns,) the middle of the first `n` of each row."""
    rows = np.arange(len(n))
    low, high = ascending[rows, (n - 1) // 2], ascending[rows, n // 2]
    return np.where(n % 2, low, (low + high) / 2)


def _rank(
    counts: NDArray[np.integer], n: NDArray[np.integer], n_knots: int
) -> tuple[Floats, Floats]:
    """(columns, numbers) ranks of the first `n` numbers of each column, which occur so often.

    And (columns, n_knots) the ranks at which knots lie.
    """
    # WHY: a number that fills many quantiles would leave the others few knots: it counts once.
    capped = np.minimum(counts, counts.sum(axis=1, keepdims=True) / n_knots)
    rank = np.cumsum(capped, axis=1) - capped / 2
    last = rank[np.arange(len(n)), n - 1]
    rank[np.arange(rank.shape[1]) >= n[:, None]] = np.inf
    return rank, np.linspace(rank[:, 0], last, n_knots, axis=1)


@functools.cache
def _choose(n: int, most: int) -> list[int]:
    """Places among n, evenly spread: at most so many."""
    if n <= most:
        return list(range(n))
    places: list[int] = np.linspace(0, n - 1, most).round().astype(int).tolist()
    return places


_LOWEST_LOG, _HIGHEST_LOG = -64, 1 << 19  # ln(x)^2 of the largest float is below


@dataclass(frozen=True)
class LogBuckets:
    """Intervals of a numeric field with ``numeric="log"``: nothing is learned of them.

    PAPER: above 2 the squared logarithm, else the number less 2, so that the two never meet.
    """

    state: ClassVar[str] = "logs"
    n_buckets: ClassVar[int] = _HIGHEST_LOG - _LOWEST_LOG

    @classmethod
    def of_tally(cls, field: Field, tally: Tally) -> LogBuckets:
        """The same for all numbers."""
        return cls()

    def place(self, numbers: Floats) -> NDArray[np.int64]:
        """(N,) the interval of each, from 0.

        Examples
        --------
        >>> (LogBuckets().place(np.array([-1.0, 2.0, 3.0, 40.0])) - 64).tolist()
        [-3, 0, 1, 13]
        """
        with np.errstate(invalid="ignore"):
            squares = np.log(np.maximum(numbers, 2.0)) ** 2
        bucket = np.floor(np.where(numbers > 2, squares, numbers - 2))
        return np.clip(bucket, _LOWEST_LOG, _HIGHEST_LOG - 1).astype(np.int64) - _LOWEST_LOG

    def keys_in(self, number: float) -> RowKeys:
        """The interval of one number."""
        return ((int(self.place(np.array([number]))[0]), 1.0),)

    def carry(self, numbers: Floats) -> None:
        """No values: an interval is there or not."""

    def decode(self, bucket: int) -> tuple[float, float]:
        """The lower and the upper end of an interval."""
        at = bucket + _LOWEST_LOG
        if at < 0:
            return float(at + 2), float(at + 3)
        return max(2.0, math.exp(math.sqrt(at))), math.exp(math.sqrt(at + 1))

    def to_json(self) -> list[float]:
        """Nothing."""
        return []

    @classmethod
    def from_json(cls, field: Field, numbers: Any) -> LogBuckets | None:
        """Read what `to_json` gave."""
        return cls() if numbers == [] else None


Value = str | float | tuple[float, float] | Scale | None
Measure = Buckets | Scale | Knots | LogBuckets
_MEASURES: dict[str, type[Measure]] = {
    "buckets": Buckets,
    "value": Scale,
    "linear": Knots,
    "log": LogBuckets,
}
NUMERIC_WORDS = '"buckets", "value", "linear" or "log"'


def start_tally(field: Field) -> Tally:
    """An empty tally of what the measure of a numeric field needs."""
    return Tally(sums=field.numeric == "value", sampled=SAMPLED if field.numeric == "linear" else 0)


def learn_measure(field: Field, numbers: Floats) -> Measure | None:
    """Where the buckets or knots of a field lie, or how it is scaled, by numbers (n,), none NaN.

    None where there is no number, and nothing is declared.
    """
    if field.numeric == "linear" and field.knots is None:
        return Knots.learn(field, numbers)
    return _MEASURES[field.numeric].of_tally(field, _tally_of(field, numbers))


def _tally_of(field: Field, numbers: Floats) -> Tally:
    tally = start_tally(field)
    tally.add(numbers, np.arange(len(numbers)))
    return tally


def read_numbers(numbers: Floats, measure: Buckets | Scale | LogBuckets | None) -> Cells:
    """Cells that hold numbers, NaN for none; keys are the buckets in which they lie.

    Examples
    --------
    >>> cells = read_numbers(np.array([7.5, np.nan, 1.0]), Buckets.cut(0.0, 8.0, 2))
    >>> cells.keys.to_list(), cells.spread(np.array([5, 6])).tolist()
    ([0, 1], [6, -1, 5])
    """
    missing = np.isnan(numbers)
    filled = numbers[~missing] if missing.any() else numbers
    bucket = _NO_ROWS if measure is None else measure.place(filled)
    values = None if measure is None else measure.carry(numbers)
    if values is not None:
        values[missing] = 1.0
    return _numbered_cells(
        len(numbers), None if len(filled) == len(numbers) else ~missing, bucket, values
    )


def numbers_in(table: Table, name: str) -> Floats:
    """(N,) of a column, NaN where missing."""
    column = table.columns[name]
    if column.dtype == pl.Float64:
        return column.to_numpy()
    numbers: Floats = table.recall(name, "numbers", lambda: numbers_of(column, name).to_numpy())
    return numbers


def read_between(numbers: Floats, knots: Knots) -> tuple[Cells, Cells]:
    """Cells that hold numbers, NaN for none: the knots left of them, and those right of them.

    Examples
    --------
    >>> left, right = read_between(np.array([2.0, np.nan, 8.0]), Knots(np.array([0.0, 8.0])))
    >>> left.spread(np.array([5, 6])).tolist(), left.values.tolist()
    ([5, -1, 6], [0.75, 1.0, 1.0])
    >>> right.spread(np.array([6])).tolist(), right.values.tolist()
    ([6, -1, -1], [0.25, 0.0, 0.0])
    """
    filled = ~np.isnan(numbers)
    left = knots.left_of(numbers[filled])
    share = np.zeros(len(numbers), dtype=np.float32)
    share[filled] = knots.share(numbers[filled], left)
    between = share > 0
    return (
        _numbered_cells(len(numbers), filled, left, 1 - share),
        _numbered_cells(len(numbers), between, left[between[filled]] + 1, share),
    )


def _numbered_cells(
    n_cells: int,
    there: NDArray[np.bool_] | None,
    bucket: NDArray[np.int64],
    values: NDArray[np.float32] | None,
) -> Cells:
    """Cells whose keys are numbers: those of `there` (None: all), which lie in `bucket`."""
    found = np.flatnonzero(np.bincount(bucket)).astype(np.int32)

    def spread(ids: Ids) -> Ids:
        if not len(found):
            return _no_ids(n_cells)
        id_of = np.empty(found[-1] + 1, dtype=np.int32)
        id_of[found] = ids
        if there is None:
            return id_of[bucket]
        cells = _no_ids(n_cells)
        cells[there] = id_of[bucket]
        return cells

    keys = pl.Series(found)
    return Cells(keys, keys, n_cells if there is None else int(there.sum()), spread, values=values)


@dataclass(frozen=True)
class Number(Kind):
    """Each bucket or knot is a feature, or the number itself is one; the latter carry values.

    `measure` says where buckets or knots lie or how the number is standardised; it is learned once,
    from the rows in which the field is first met, and is None until a number is seen.

    Examples
    --------
    >>> table = Table(2, {"age": pl.Series([0.0, 10.0])})
    >>> age = Number(Field("age", "numeric")).learn(table)
    >>> age.read(table)[0].keys.to_list(), age.decode(9)
    ([0, 9], (9.0, 10.0))
    """

    name = "numeric"
    settings = ("n_buckets", "bounds", "numeric", "scale", "n_knots", "knots", "jumps")
    stores = "bucket"
    states = ("edges", "scales", "knots", "logs")

    measure: Measure | None = None

    @classmethod
    def takes(cls, dtype: pl.DataType) -> bool:
        """Numbers and durations."""
        return dtype.is_numeric() or dtype == pl.Duration

    def learn(self, table: Table) -> Self:
        """Learn edges, scale or knots, unless they are known."""
        if self.measure is not None:
            return self
        if self.field.knots is not None:  # WHY: of 100,000 columns nothing else is to be looked at
            return type(self)(self.field, self.hash_key, Knots.declared(self.field.knots))
        numbers = self.numbers(table)
        measure = learn_measure(self.field, numbers[~np.isnan(numbers)])
        return self if measure is None else replace(self, measure=measure)

    def learn_tally(self, tally: Tally) -> Self:
        """The same from numbers that were counted in pieces; itself where there is none."""
        measure = self._measure_type.of_tally(self.field, tally)
        return self if measure is None else replace(self, measure=measure)

    @property
    def _measure_type(self) -> type[Measure]:
        return _MEASURES[self.field.numeric]

    def numbers(self, table: Table) -> Floats:
        """(N,) NaN where missing."""
        return numbers_in(table, self.field.name)

    def _read(self, table: Table) -> tuple[Cells, ...]:
        if isinstance(self.measure, Knots):
            return read_between(self.numbers(table), self.measure)
        return (read_numbers(self.numbers(table), self.measure),)

    def keys_in(self, cell: Plain) -> RowKeys | None:
        """The bucket or the knots of a number; text is left to polars' rules."""
        if self.measure is None or isinstance(cell, str):
            return None
        return self.measure.keys_in(float(cell))

    def order(self, distinct: pl.Series) -> pl.Series:
        """By number; a knot that is left of some cells and right of others counts once."""
        return distinct.unique().sort()

    def find_missing(self, table: Table) -> NDArray[np.int64]:
        """The rows without a number."""
        return np.flatnonzero(np.isnan(self.numbers(table)))

    @property
    def has_values(self) -> bool:
        """Whether the number itself is the feature, or how near a knot it is."""
        return self.field.numeric in ("value", "linear")

    @property
    def has_knots(self) -> bool:
        """Whether numbers lie between knots."""
        return self.field.numeric == "linear"

    def decode(self, key: Any) -> Value:
        """(low, high) of a bucket, the scale, or the number at a knot."""
        return None if self.measure is None else self.measure.decode(key)

    def keys_of(self, value: Any) -> pl.Series:
        """The bucket of a number, or the knot nearest to it."""
        number = value[0] if isinstance(value, tuple) else value
        column = pl.Series([number.mean if isinstance(number, Scale) else number], strict=False)
        left, *right = self._read(Table(1, {self.field.name: column}))
        is_right = any(cells.values is not None and cells.values[0] > 0.5 for cells in right)
        return right[0].keys if is_right else left.keys

    @classmethod
    def describe(cls, value: Any) -> str:
        """An interval, a knot's number, or what is known of the number."""
        if isinstance(value, Scale):
            return f"a number (mean {value.mean:g}, deviation {value.std:g})"
        return f"{value[0]:g} to {value[1]:g}" if isinstance(value, tuple) else f"{value:g}"

    @classmethod
    def quote(cls, value: Any) -> str:
        """An interval, or that it is a number."""
        return "a number" if isinstance(value, Scale) else cls.describe(value)

    def state(self) -> tuple[str, Any] | None:
        """The edges, the scale or the knots."""
        return None if self.measure is None else (self.measure.state, self.measure.to_json())

    def restore(self, name: str, state: Any) -> Self | None:
        """The same with edges, a scale or knots."""
        if name != self._measure_type.state:
            return None
        measure = self._measure_type.from_json(self.field, state)
        return None if measure is None else replace(self, measure=measure)

    def find_odd(self, keys: pl.Series) -> Any:
        """A number that is no bucket's and no knot's."""
        n_buckets = 0 if self.measure is None else self.measure.n_buckets
        return next((key for key in keys if not 0 <= key < n_buckets), None)


# ---- dates ---------------------------------------------------------------------------------------

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# All values that a datetime field can have, in the order of their ids.
_ALL_PARTS: tuple[str, ...] = (
    *(f"hour {hour}" for hour in range(24)),
    *(f"weekday {day}" for day in _DAYS),
    *(f"month {month}" for month in range(1, 13)),
)
_ZONE = r"^(.*\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(?:[Zz]|[+-]\d{2}(?::?\d{2})?)$"
_T_BETWEEN = r"^(\d{4}-\d{2}-\d{2})[Tt]"


class Date(Kind):
    """The hour, the weekday and the month are features: a bounded vocabulary, no timestamp is new.

    The clock is the one on the wall of the value's own time zone.  A date has no hour and a time
    only an hour.  Text must be in ISO form.

    Examples
    --------
    >>> table = Table(1, {"seen": pl.Series(["2024-03-05T07:30+02:00"])})
    >>> [part.keys.to_list() for part in Date(Field("seen", "datetime")).read(table)]
    [['hour 7'], ['weekday Tue'], ['month 3']]
    """

    name = "datetime"

    @classmethod
    def takes(cls, dtype: pl.DataType) -> bool:
        """Dates, times, and both in one."""
        return dtype.base_type() in _PARTS_OF

    def _read(self, table: Table) -> tuple[Cells, ...]:
        return tuple(read_texts(part) for part in self._parts(table.columns[self.field.name]))

    def order(self, distinct: pl.Series) -> pl.Series:
        """Hours, weekdays, months, each as the clock and the calendar have them."""
        there = set(distinct.to_list())
        return pl.Series([part for part in _ALL_PARTS if part in there], dtype=pl.String)

    def find_odd(self, keys: pl.Series) -> Any:
        """What is no hour, weekday or month."""
        return next((key for key in keys if key not in _ALL_PARTS), None)

    def _parts(self, column: pl.Series) -> list[pl.Series]:
        """The texts of each part; null where a cell has none."""
        dtype = column.dtype
        if column.null_count() == len(column):
            return [pl.Series([None], dtype=pl.String).new_from_index(0, len(column))]
        if self.takes(dtype):
            return [part(column) for part in _PARTS_OF[dtype.base_type()]]
        if dtype in (pl.String, pl.Categorical, pl.Enum):
            return self._parts_of_text(column.cast(pl.String))
        raise InputError(
            f"datetime field {self.field.name!r} holds values of type {dtype}; give dates, times "
            "or ISO text, or declare it numeric."
        )

    def _parts_of_text(self, text: pl.Series) -> list[pl.Series]:
        # WHY: polars would turn "07:00+02:00" into 05:00 UTC; the wall shows 7.
        bare = text.str.strip_chars().str.replace(_ZONE, "${1}").str.replace(_T_BETWEEN, "${1} ")
        moment = times_of(bare, pl.Datetime("us"), "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
        date = times_of(bare, pl.Date(), "%Y-%m-%d")
        clock = times_of(bare, pl.Time(), "%H:%M:%S%.f", "%H:%M")
        bad = text.is_not_null() & moment.is_null() & date.is_null() & clock.is_null()
        if bad.any():
            raise InputError(
                f"datetime field {self.field.name!r} holds {text.filter(bad)[0]!r}; give dates and "
                "times in ISO form, e.g. 2024-03-05 or 2024-03-05T07:30, or declare it categorical."
            )
        day = moment.cast(pl.Date).zip_with(moment.is_not_null(), date)
        hour = _hour(moment).zip_with(moment.is_not_null(), _hour(clock))
        return [hour, _weekday(day), _month(day)]


def _hour(column: pl.Series) -> pl.Series:
    return "hour " + column.dt.hour().cast(pl.String)


def _weekday(column: pl.Series) -> pl.Series:
    numbers = column.dt.weekday()  # 1 is Monday
    return "weekday " + numbers.replace_strict(range(1, 8), _DAYS, return_dtype=pl.String)


def _month(column: pl.Series) -> pl.Series:
    return "month " + column.dt.month().cast(pl.String)


_PARTS_OF: dict[type[pl.DataType], tuple[Callable[[pl.Series], pl.Series], ...]] = {
    pl.Time: (_hour,),
    pl.Date: (_weekday, _month),
    pl.Datetime: (_hour, _weekday, _month),
}


# Every kind of field; the last ones are asked first whether a column is theirs.
KINDS: LazyDict[type[Kind]] = LazyDict(
    {
        "categorical": "openfate.table.fields:Text",
        "numeric": "openfate.table.fields:Number",
        "multivalued": "openfate.table.fields:List",
        "datetime": "openfate.table.fields:Date",
    }
)
