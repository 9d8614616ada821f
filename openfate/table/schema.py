"""Field and Schema: what the raw columns of a table are.

A field is a raw column (the paper's "raw feature", d of them); its kind says how a cell becomes
0-1 features.  How values get their ids is the encoder's business, not the schema's.
"""

from __future__ import annotations

import difflib
import json
import math
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import polars as pl

from openfate.errors import InputError
from openfate.table.frame import Table, read_table
from openfate.table.kinds import Kind, guess_kind

__all__ = ["Field", "Kind", "Numeric", "Schema", "infer", "refuse_nameless"]

Numeric = Literal["buckets", "value"]
_KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Field:
    """A raw column.

    Parameters
    ----------
    name
        The column's name.
    kind
        "categorical": each value is a feature.  "numeric": each of `n_buckets` equal intervals is
        one, or the number itself is (see `numeric`).  "multivalued": a cell is a list, and each
        value in it is a feature.  "datetime": the hour, the weekday and the month are features.
    n_buckets
        The number of intervals of a numeric field; nothing else uses it.
    bounds
        The least and the greatest value of a numeric field's intervals where they are known
        beforehand; by default the encoder takes them from the rows it is fitted with.
    hashed
        Whether the vocabulary holds a keyed hash of each value of a categorical or multivalued
        field instead of the value, for names of people and the like.
    numeric
        "buckets", or "value": a numeric field is one feature, which carries the standardised
        number.
    scale
        The mean and the deviation that standardise a "value" where they are known beforehand.

    Examples
    --------
    >>> Field("age", "numeric", n_buckets=5).n_buckets
    5
    >>> Field("email", "categorical", hashed=True).hashed
    True
    """

    name: str
    kind: Kind
    n_buckets: int = 10
    bounds: tuple[float, float] | None = None
    hashed: bool = False
    numeric: Numeric = "buckets"
    scale: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"a field's name must be text that is not empty, not {self.name!r}.")
        if self.kind not in _KINDS:
            raise InputError(f"field {self.name!r}: unknown kind {_unknown(self.kind, _KINDS)}.")
        if not _is_int(self.n_buckets) or self.n_buckets < 1:
            raise InputError(
                f"field {self.name!r}: n_buckets must be a whole number from 1 up, "
                f"not {self.n_buckets!r}."
            )
        if self.bounds is not None:
            object.__setattr__(self, "bounds", _checked_bounds(self.name, self.bounds))
        self._check_hashed()
        self._check_numeric()

    def _check_hashed(self) -> None:
        if not isinstance(self.hashed, bool):
            raise InputError(
                f"field {self.name!r}: hashed must be True or False, not {self.hashed!r}."
            )
        if self.hashed and self.kind not in ("categorical", "multivalued"):
            raise InputError(
                f"field {self.name!r}: a {self.kind} field holds no values that could be hashed; "
                "declare it categorical or multivalued."
            )

    def _check_numeric(self) -> None:
        if self.numeric not in get_args(Numeric):
            raise InputError(
                f'field {self.name!r}: numeric must be "buckets" or "value", not {self.numeric!r}.'
            )
        if self.numeric == "value" and self.kind != "numeric":
            raise InputError(
                f'field {self.name!r}: a {self.kind} field cannot have numeric="value"; '
                "declare it numeric."
            )
        if self.scale is not None:
            object.__setattr__(self, "scale", _checked_scale(self.name, self.scale))


@dataclass(frozen=True)
class Schema:
    """The fields of a table, in order, each name once.

    Parameters
    ----------
    fields
        The fields; any iterable.

    Examples
    --------
    >>> import polars as pl
    >>> schema = Schema.from_frame(pl.DataFrame({"age": [31.0], "job": ["cook"], "tags": [["a"]]}))
    >>> [(field.name, field.kind) for field in schema]
    [('age', 'numeric'), ('job', 'categorical'), ('tags', 'multivalued')]
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    fields: tuple[Field, ...]

    def __init__(self, fields: Iterable[Field]) -> None:
        checked = tuple(fields)
        seen: set[str] = set()
        for field in checked:
            if not isinstance(field, Field):
                raise InputError(f"a schema is made of Field objects, not {field!r}.")
            if field.name in seen:
                raise InputError(f"field {field.name!r} appears twice; names must be unique.")
            seen.add(field.name)
        object.__setattr__(self, "fields", checked)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        overrides: Schema | Iterable[Field] | None = None,
        numeric: Numeric = "buckets",
    ) -> Schema:
        """Guess each column's kind, in any pandas, polars or pyarrow frame.

        Truth values, text and categories are categorical, floats and durations numeric, dates and
        times datetime, lists multivalued.  Integers are categorical where they are few (at most 32
        distinct values) or look like ids, else numeric: see `openfate.table.kinds.guess_kind`.

        Parameters
        ----------
        frame
            The frame.
        overrides
            Fields that are known better: a column that one of them names takes that field.
        numeric
            What the guessed numeric fields have as `Field.numeric`.

        Examples
        --------
        >>> import polars as pl
        >>> rows = pl.DataFrame({"city": ["Rome"], "floor": [3]})
        >>> [field.kind for field in Schema.from_frame(rows)]
        ['categorical', 'categorical']
        >>> [field.kind for field in Schema.from_frame(rows, [Field("floor", "numeric")])]
        ['categorical', 'numeric']
        """
        return infer(read_table(frame), overrides, numeric)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields' names, in order."""
        return tuple(field.name for field in self.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, item: object) -> bool:
        """Whether a field, or a field of that name, is in the schema."""
        if isinstance(item, Field):
            return self._by_name.get(item.name) == item
        return item in self._by_name

    def __getitem__(self, name: str) -> Field:
        if name not in self._by_name:
            raise InputError(f"the schema has no field {_unknown(name, self.names)}.")
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    def to_json(self) -> str:
        """Write it as JSON text.

        Examples
        --------
        >>> Schema([Field("job", "categorical")]).to_json()
        '{"fields": [{"name": "job", "kind": "categorical"}]}'
        """
        return json.dumps({"fields": [_field_to_dict(field) for field in self.fields]})

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what `to_json` wrote; raises InputError where it is something else.

        Examples
        --------
        >>> Schema.from_json('{"fields": [{"name": "job", "kind": "categorical"}]}').names
        ('job',)
        """
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the schema is not JSON: {error}.") from None
        if not isinstance(data, dict) or not isinstance(data.get("fields"), list):
            raise InputError('the schema must be a JSON object with a list "fields".')
        return cls(_field_from_dict(entry) for entry in data["fields"])


def infer(
    table: Table,
    overrides: Schema | Iterable[Field] | None = None,
    numeric: Numeric = "buckets",
) -> Schema:
    """Guess the kind of every column, as `Schema.from_frame` does, of a frame read already.

    Examples
    --------
    >>> infer(read_table(pl.DataFrame({"city": ["Rome"]}))).names
    ('city',)
    """
    refuse_nameless(table)
    if numeric not in get_args(Numeric):
        raise InputError(f'numeric must be "buckets" or "value", not {numeric!r}.')
    given = Schema(overrides or ())
    return Schema(
        given[name] if name in given else _guess(name, column, numeric)
        for name, column in table.columns.items()
    )


def refuse_nameless(table: Table) -> None:
    """Refuse a column with the empty name, which no field can have."""
    if "" in table.columns:
        at = list(table.columns).index("") + 1
        raise InputError(f"column {at} has the empty name ''; rename it or drop it.")


def _guess(name: str, column: pl.Series, numeric: Numeric) -> Field:
    kind = guess_kind(name, column)
    return Field(name, kind, numeric=numeric) if kind == "numeric" else Field(name, kind)


def _field_to_dict(field: Field) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": field.name, "kind": field.kind}
    if field.kind == "numeric":
        entry["n_buckets"] = field.n_buckets
        if field.bounds is not None:
            entry["bounds"] = list(field.bounds)
        if field.numeric != "buckets":
            entry["numeric"] = field.numeric
        if field.scale is not None:
            entry["scale"] = list(field.scale)
    if field.hashed:
        entry["hashed"] = True
    return entry


def _field_from_dict(entry: Any) -> Field:
    known = {"name", "kind", "n_buckets", "bounds", "hashed", "numeric", "scale"}
    if not isinstance(entry, dict) or not {"name", "kind"} <= entry.keys() <= known:
        raise InputError(
            "a field needs name and kind (and n_buckets, bounds, hashed, numeric, scale), "
            f"not {reprlib.repr(entry)}."
        )
    return Field(**entry)


def _checked_bounds(name: str, bounds: Any) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in bounds)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise InputError(
            f"field {name!r}: bounds must be two finite numbers, the lower first, not {bounds!r}."
        )
    return low, high


def _checked_scale(name: str, scale: Any) -> tuple[float, float]:
    try:
        mean, std = (float(value) for value in scale)
    except (TypeError, ValueError):
        mean, std = math.nan, math.nan
    if not (math.isfinite(mean) and 0 < std < math.inf):
        raise InputError(
            f"field {name!r}: scale must be a finite mean and a deviation above 0, not {scale!r}."
        )
    return mean, std


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _unknown(name: Any, known: tuple[str, ...]) -> str:
    """Give the name, a close one if there is any, and all the known ones."""
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{name!r}{hint} (known: {', '.join(known[:20]) or 'none'})"
