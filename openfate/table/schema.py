"""Schema: the fields of a table, and how their kinds are guessed from its columns.

The guess follows the column's type; integers alone need a look at their name and their values,
because an integer may be a quantity (age), a label (class 3) or a name (customer 1042).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import polars as pl

from openfate._lazy import ComputesOnce
from openfate.errors import InputError, check_choice, suggest
from openfate.table.fields import KINDS, Field, Kind, Numeric
from openfate.table.frame import Table, read_table

_FEW_VALUES = 32
_MANY_ROWS = 100
_ID_WORDS = frozenset("id uid uuid guid userid key code zip zipcode postcode number no nr".split())
# Between the words of snake_case, kebab-case, camelCase and ABBRCase names.
_BETWEEN_WORDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Schema(ComputesOnce):
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
                raise InputError(
                    f"a schema is made of Field objects, not {field!r}; give Field(name, kind)."
                )
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

        Booleans, text and categories are categorical, floats and durations numeric, dates and
        times datetime, lists multivalued.  Integers are categorical where they are few (at most 32
        distinct values) or look like ids, else numeric: see `guess_kind`.

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
        table, given = read_table(frame), Schema(overrides or ())
        refuse_nameless(table)
        check_choice("numeric", numeric, get_args(Numeric))
        few, usual = table.few, _UsualFields(numeric)
        fields = []
        for name, column in table.columns.items():
            if name in given:
                fields.append(given[name])
                continue
            kind = guess_few(name, *few[name]) if name in few else guess_kind(name, column)
            fields.append(usual[kind].unchecked(name=name))
        return cls(fields)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields' names, in order."""
        return tuple([field.name for field in self.fields])

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
            raise InputError(
                f"the schema has no field {name!r}{suggest(name, self.names)} "
                f"(known: {', '.join(self.names[:20]) or 'none'})."
            )
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
        return json.dumps({"fields": [_to_dict(field) for field in self.fields]})

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
            raise InputError(
                f"the schema is not JSON ({error}); give what `to_json` wrote."
            ) from None
        if not isinstance(data, dict) or not isinstance(data.get("fields"), list):
            raise InputError('the schema must be a JSON object with a list "fields".')
        return cls(_from_dict(entry) for entry in data["fields"])


class _UsualFields(dict[str, Field]):
    """A guessed field of each kind; fields of one kind differ in their names alone."""

    def __init__(self, numeric: Numeric) -> None:
        self._numeric = numeric

    def __missing__(self, kind: str) -> Field:
        numeric = self._numeric if "numeric" in KINDS[kind].settings else "buckets"
        field = self[kind] = Field("_", kind, numeric=numeric)
        return field


def refuse_nameless(table: Table) -> None:
    """Refuse a column with the empty name, which no field can have."""
    if "" in table.columns:
        at = list(table.columns).index("") + 1
        raise InputError(f"column {at} has the empty name ''; rename it or drop it.")


def _to_dict(field: Field) -> dict[str, Any]:
    settings = {name: getattr(field, name) for name in KINDS[field.kind].settings}
    told = {k: v for k, v in settings.items() if k == "n_buckets" or v != getattr(Field, k)}
    return {"name": field.name, "kind": field.kind, **told}


def _from_dict(entry: Any) -> Field:
    needed, known = {"name", "kind"}, [field.name for field in dataclasses.fields(Field)]
    if not isinstance(entry, dict) or not needed <= entry.keys() <= set(known):
        raise InputError(
            f"a field needs name and kind (and {', '.join(known[2:])}), not {reprlib.repr(entry)}."
        )
    return Field(**entry)


# ---- kinds ---------------------------------------------------------------------------------------


def guess_kind(name: str, column: pl.Series) -> str:
    """Guess the kind of a column.

    Booleans, text and categories are categorical, floats, decimals and durations numeric,
    dates and times datetime, lists multivalued.

    Integers are numeric, but categorical where they have at most 32 distinct values or look like
    ids: the last word of the name says so (id, key, code, zip, number, ...), or at least 100 cells
    are all distinct and fill half of their range or more, as serial numbers do.

    A float column of integers in which a cell is missing follows the rule of integers, for
    that is how pandas keeps integers with missing cells.  Numbers of which none is there are
    categorical.

    Examples
    --------
    >>> import polars as pl
    >>> guess_kind("age", pl.Series(range(18, 90))), guess_kind("shop_id", pl.Series(range(18, 90)))
    ('numeric', 'categorical')
    """
    kind = _kind_for(column.dtype)
    if kind.name != "numeric" or not (column.dtype.is_integer() or _may_be_integers(column)):
        return kind.name
    return "categorical" if _is_label(name, column) else "numeric"


def guess_few(name: str, dtype: type[pl.DataType], cells: Sequence[Any]) -> str:
    """What `guess_kind` gives of the plain cells of a few rows, as `Table.few` has them.

    WHY: of 100,000 columns each call of polars is a tenth of a second.

    Examples
    --------
    >>> guess_few("age", pl.Float64, [31.0, None]), guess_few("age", pl.Float64, [31.0, 2.0])
    ('categorical', 'numeric')
    """
    if dtype is pl.Int64 or (
        dtype is pl.Float64
        and None in cells
        and all([cell is None or cell.is_integer() for cell in cells])
    ):
        # WHY no look at ranges: what may be serial numbers are as many rows as are not few.
        is_label = len(set(cells) - {None}) <= _FEW_VALUES or _names_an_id(name)
        return "categorical" if is_label else "numeric"
    return _kind_of(dtype)


@functools.cache
def _kind_of(dtype: type[pl.DataType]) -> str:
    return _kind_for(dtype()).name


@functools.cache
def _kind_for(dtype: pl.DataType) -> type[Kind]:
    return next(kind for kind in reversed(list(KINDS.values())) if kind.takes(dtype))


def _may_be_integers(column: pl.Series) -> bool:
    """Whether integers with missing cells may have become these numbers, or none is there."""
    if not column.null_count():
        return False
    if column.null_count() == len(column):
        return True
    if not column.dtype.is_float():
        return False
    numbers = column.to_numpy()  # nan where it is null
    whole = np.isfinite(numbers) & (np.floor(numbers) == numbers)
    return int(np.count_nonzero(whole)) + column.null_count() == len(column)


def _is_label(name: str, numbers: pl.Series) -> bool:
    n_distinct = numbers.n_unique() - (numbers.null_count() > 0)
    if n_distinct <= _FEW_VALUES or _names_an_id(name):
        return True
    cells = numbers.drop_nulls()
    if n_distinct < len(cells) or n_distinct < _MANY_ROWS:
        return False
    return bool(float(cells.max()) - float(cells.min()) < 2 * n_distinct)  # type: ignore[arg-type]


def _names_an_id(name: str) -> bool:
    words = [word.lower() for word in _BETWEEN_WORDS.split(name) if word]
    return bool(words) and words[-1] in _ID_WORDS
