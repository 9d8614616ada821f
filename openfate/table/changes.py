"""What a frame holds that an encoder does not know, what it lacks, and what the policies say.

`enforce` runs before each prediction and looks only where a policy asks for it; `compare` makes
the full report.  "extrapolate" uses what is new, "ignore" leaves it out, "warn" goes on with a
warning, "error" refuses the frame.  A column that is missing can only be ignored, warned of or
refused.  Missing is never confused with unknown: a missing cell is a new value only where
no cell of its field was missing before.
"""

from __future__ import annotations

import html
import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

import polars as pl

from openfate.errors import InputError, OpenWorldWarning, check_choice, shorten
from openfate.table.encoder import Encoder, RowIds, Unseen
from openfate.table.fields import KINDS, Field, Numeric
from openfate.table.frame import Table, is_unicode, read_table
from openfate.table.newcomers import Meeting
from openfate.table.schema import Schema, refuse_nameless
from openfate.table.wide import read_wide

Overrides = Schema | Iterable[Field] | None
Situation = Literal["new_columns", "new_values", "missing_columns"]
Policy = str | Mapping[str, str]

# The words of each policy, and what they do.
_NEW = {
    "extrapolate": "extrapolated from {its} rows.",
    "ignore": "ignored.",
    "warn": "extrapolated from {its} rows, with a warning.",
    "error": "the frame is refused.",
}
_MISSING = {
    "ignore": "it gives no feature.",
    "warn": "it gives no feature, with a warning.",
    "error": "the frame is refused.",
}
_WORDS = {"new_columns": _NEW, "new_values": _NEW, "missing_columns": _MISSING}
_HEADINGS = ("column", "status", "kind", "new values", "unseen", "missing", "action", "examples")


@dataclass(frozen=True)
class Policies:
    """What to do when a frame differs from the training rows.

    Each is a word for all fields, or a mapping from fields to words; in a mapping "*" stands for
    the fields that it does not name, which take the default without it.

    Parameters
    ----------
    new_columns
        Columns that were not there: "extrapolate" | "ignore" | "warn" | "error".
    new_values
        Values of known fields that were not there: the same words.  A missing cell is such a value
        where no cell of the field was missing before.
    missing_columns
        Known fields that are not among the columns: "ignore" | "warn" | "error".

    Examples
    --------
    >>> policies = Policies(new_columns="ignore", new_values={"country": "error", "*": "warn"})
    >>> policies.of("new_values", "country"), policies.of("new_values", "job")
    ('error', 'warn')
    >>> Policies.from_dict(policies.to_dict()) == policies
    True
    """

    new_columns: Policy = "extrapolate"
    new_values: Policy = "extrapolate"
    missing_columns: Policy = "ignore"

    def __post_init__(self) -> None:
        for situation, words in _WORDS.items():
            policy = getattr(self, situation)
            if not isinstance(policy, Mapping):
                check_choice(situation, policy, words)
                continue
            for field, word in policy.items():
                if not isinstance(field, str):
                    raise InputError(
                        f"{situation}: the key {field!r} is not a field's name; give text."
                    )
                check_choice(f"{situation}[{field!r}]", word, words)
            object.__setattr__(self, situation, dict(policy))

    def of(self, situation: Situation, field: str) -> str:
        """Give the word for one field.

        Examples
        --------
        >>> Policies(missing_columns={"age": "error"}).of("missing_columns", "job")
        'ignore'
        """
        policy: Policy = getattr(self, situation)
        if isinstance(policy, str):
            return policy
        default: str = getattr(Policies, situation)
        return policy.get(field, policy.get("*", default))

    def to_dict(self) -> dict[str, Any]:
        """Write them as a plain dict, for JSON.

        Examples
        --------
        >>> Policies().to_dict()["missing_columns"]
        'ignore'
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policies:
        """Read what `to_dict` wrote; raises InputError where it is something else.

        Examples
        --------
        >>> Policies.from_dict({"new_values": "ignore"}).new_values
        'ignore'
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(data, Mapping) or not set(data) <= set(known):
            raise InputError(f"policies are a mapping with {', '.join(known)}, not {data!r}.")
        return cls(**data)


# ---- the report ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnChange:
    """One column of a frame, or one that it lacks.

    Parameters
    ----------
    name
        The column's name.
    status
        "known", "new" or "missing".
    kind
        The kind of its field; of a new column, as it is inferred or declared.
    n_values
        The number of distinct values that have no id; "missing" counts as one.
    share_unseen
        Of the cells that are not missing, how much has a value without an id.
    share_missing
        Of all cells, how many are missing; of a missing column, all.
    examples
        Up to three of the new values.
    action
        What the policies make of it: "use" where nothing is new, else "extrapolate", "ignore",
        "warn" or "error".
    why
        The reason, in a sentence.
    """

    name: str
    status: Literal["known", "new", "missing"]
    kind: str
    n_values: int
    share_unseen: float
    share_missing: float
    examples: tuple[str, ...]
    action: str
    why: str


@dataclass(frozen=True)
class SchemaReport:
    """What is known, new and missing in a frame, column by column.

    Parameters
    ----------
    columns
        First the known and missing fields in the encoder's order, then the new columns.
    n_rows
        The number of rows.
    note
        What else there is to say: how the model uses what is new, and why.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({"job": ["cook", "pilot"], "city": ["Rome", "Oslo"]})
    >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
    >>> later = pl.DataFrame({"job": ["judge", "cook"], "shift": ["day", "day"]})
    >>> print(compare(encoder, later, Policies(new_columns="ignore")))
    2 rows; 1 column known, 1 new, 1 missing
    column  status   kind         new values  unseen  missing  action       examples
    job     known    categorical           1     50%       0%  extrapolate  'judge'
    city    missing  categorical           0      0%     100%  ignore
    shift   new      categorical           1    100%       0%  ignore       'day'
    """

    columns: tuple[ColumnChange, ...]
    n_rows: int
    note: str = ""

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the known columns that are there."""
        return self._names("known")

    @property
    def new(self) -> tuple[str, ...]:
        """The names of the new columns."""
        return self._names("new")

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the known columns that are not there."""
        return self._names("missing")

    def _names(self, status: str) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.status == status)

    def to_dict(self) -> dict[str, Any]:
        """Write it as plain values."""
        columns = [{**asdict(column), "examples": [*column.examples]} for column in self.columns]
        return {"n_rows": self.n_rows, "columns": columns, "note": self.note}

    def to_json(self) -> str:
        """Write it as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __str__(self) -> str:
        lines = [list(_HEADINGS), *(_cells(column) for column in self._worth_a_line())]
        widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADINGS))]
        table = [
            "  ".join(
                cell.rjust(width) if 3 <= i <= 5 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        note = [self.note] if self.note else []
        return "\n".join([self._summary(), *(table if len(table) > 1 else ()), *note])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{heading}</th>" for heading in (*_HEADINGS, "why"))
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
            for cells in ([*_cells(column), column.why] for column in self._worth_a_line())
        )
        return (
            f"<p>{html.escape(self._summary())}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(self.note)}</p>"
        )

    def _worth_a_line(self) -> list[ColumnChange]:
        return [column for column in self.columns if column.action != "use"]

    def _summary(self) -> str:
        unchanged = len(self.columns) - len(self._worth_a_line())
        known = f"{_count(len(self.known), 'column')} known"
        if unchanged:
            known += f" ({unchanged} with nothing new)"
        rest = f"{len(self.new)} new, {len(self.missing)} missing"
        return f"{_count(self.n_rows, 'row')}; {known}, {rest}"


class Allowed(NamedTuple):
    """What the policies let an encoder learn from a frame: arguments of `Encoder.grow_copy`.

    Parameters
    ----------
    columns
        The new columns that may be added; one without a single value may not, unless declared.
    values
        The known fields that may take new values; None for all.
    """

    columns: tuple[str, ...]
    values: frozenset[str] | None

    def grow(
        self,
        encoder: Encoder,
        table: Table,
        overrides: Overrides,
        numeric: Numeric,
        *,
        lasting: bool = True,
        meeting: Meeting | None = None,
    ) -> Encoder:
        """The encoder with ids for what is new in the table and let in; see `grow_copy`."""
        if not overrides and meeting is None:
            wide = read_wide(table, self.columns, numeric, encoder.missing == "feature")
            if wide is not None:
                grown = encoder.grow_copy(table, Schema(()), (), self.values, lasting=lasting)
                return grown.with_columns(wide, lasting=lasting)
        new = Schema.from_frame(table.select(self.columns), overrides, numeric)
        return encoder.grow_copy(
            table, new, self.columns, self.values, lasting=lasting, meeting=meeting
        )


def enforce(
    encoder: Encoder, frame: Any, policies: Policies, schema_overrides: Overrides = None
) -> Allowed:
    """Refuse a frame or warn of it where the policies say so, before anything is changed.

    Parameters
    ----------
    encoder
        What is known.
    frame
        The frame to look at.
    policies
        What to do; nothing is computed for "extrapolate" and "ignore".
    schema_overrides
        Fields that new columns are declared to be.

    Returns
    -------
        What may be learned.

    Raises
    ------
    InputError
        Where something is met whose policy is "error"; it names all that is.

    Warns
    -----
    OpenWorldWarning
        Where something is met whose policy is "warn"; one warning names all that is.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({"job": ["cook", "pilot"]})
    >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
    >>> later = pl.DataFrame({"job": ["judge"], "city": ["Rome"]})
    >>> growth = enforce(encoder, later, Policies(new_values="ignore"))
    >>> growth
    Allowed(columns=('city',), values=frozenset())
    >>> encoder.grow_copy(later, columns=growth.columns, values=growth.values).fields
    ('job', 'city')
    """
    table, declared = read_table(frame), Schema(schema_overrides or ())
    known = frozenset(encoder.fields)
    new = [name for name in table.columns if name not in known]
    _act_on(_find_unwanted(encoder, table, policies, new))
    columns = tuple(
        name
        for name in new
        if policies.of("new_columns", name) in _USED
        and (name in declared or table.columns[name].null_count() < table.n_rows)
    )
    values = frozenset(n for n in encoder.fields if policies.of("new_values", n) in _USED)
    return Allowed(columns, None if len(values) == len(encoder.fields) else values)


_USED = ("extrapolate", "warn")


def _find_unwanted(
    encoder: Encoder, table: Table, policies: Policies, new: list[str]
) -> dict[str, list[str]]:
    """What the policies "error" and "warn" are to tell, by these words."""
    told: dict[str, list[str]] = {"error": [], "warn": []}

    def note(situation: Situation, name: str, what: str) -> None:
        word = policies.of(situation, name)
        if word in told:
            told[word].append(f"{what} ({situation}={word})")

    if policies.new_columns not in ("extrapolate", "ignore"):
        for name in new:
            note("new_columns", name, f"column {name!r} is new")
    for name in encoder.fields:
        if name not in table.columns:
            note("missing_columns", name, f"column {name!r} is missing")
    watched = [f for f in encoder.schema if policies.of("new_values", f.name) in told]
    unseen = encoder.unseen(table, watched) if watched else {}
    for field in watched:
        if field.name in unseen and unseen[field.name].n_new:
            what = _describe(unseen[field.name], field)
            note("new_values", field.name, f"field {field.name!r} has {what}")
    return told


def _act_on(unwanted: dict[str, list[str]]) -> None:
    if unwanted["error"]:
        raise InputError(
            f"the policies refuse this frame: {shorten(unwanted['error'], '; ')}; "
            "mend the frame, or choose another policy."
        )
    if unwanted["warn"]:
        text = f"this frame differs from the training rows: {shorten(unwanted['warn'], '; ')}."
        warnings.warn(text, OpenWorldWarning, stacklevel=3)


def new_in_row(
    encoder: Encoder, cells: Mapping[str, Any], row: RowIds, policies: Policies, declared: Schema
) -> list[int | None] | None:
    """What is new in one row and let in: `enforce` without a frame.

    Parameters
    ----------
    cells, row
        The row, and what `Encoder.look_up` found.
    declared
        Fields that new columns are declared to be.

    Returns
    -------
        The field of each new value: its index, from the number of fields on for a new column, or
        None for a new column of numbers, which may have several.  None in place of all that where
        it takes a frame: to warn, to refuse, or to say what a column is.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({"job": ["cook", "pilot"]})
    >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
    >>> later = {"job": "judge", "city": "Rome"}
    >>> new_in_row(encoder, later, encoder.look_up(later), Policies(), Schema([]))
    [0, 1]
    >>> new_in_row(encoder, later, encoder.look_up(later), Policies("error"), Schema([]))
    """
    names, known = encoder.schema.names, encoder.schema
    n_known, new = 0, []
    for name in cells:
        if name in known:
            n_known += 1
        else:
            new.append(name)
    if n_known < len(names) and policies.missing_columns != "ignore":
        if any(policies.of("missing_columns", n) != "ignore" for n in names if n not in cells):
            return None
    found: list[int | None] = []
    for name in row.unseen:
        if (word := policies.of("new_values", name)) not in ("extrapolate", "ignore"):
            return None
        cell = cells[name]
        if isinstance(cell, str) and not is_unicode(cell):
            return None
        if word == "extrapolate":
            found.append(names.index(name))
    for at, name in enumerate(new):
        cell = cells[name]
        if not isinstance(name, str) or not name or not is_unicode(name) or name in declared:
            return None
        if (word := policies.of("new_columns", name)) not in ("extrapolate", "ignore"):
            return None
        if not is_simple(cell):
            return None
        if word == "extrapolate" and cell is not None and cell == cell:
            found.append(None if isinstance(cell, float) else len(names) + at)
    return found


def is_simple(cell: Any) -> bool:
    """Whether a column of this cell would be one of text, booleans, integers or numbers.

    Examples
    --------
    >>> is_simple("Rome"), is_simple(["Rome"])
    (True, False)
    """
    if cell is None or isinstance(cell, bool):
        return True
    if type(cell) is str:
        return is_unicode(cell)
    if type(cell) is int:
        return -(2**63) <= cell < 2**63
    return type(cell) is float and not math.isinf(cell)


def compare(
    encoder: Encoder,
    frame: Any,
    policies: Policies,
    schema_overrides: Overrides = None,
    note: str = "",
) -> SchemaReport:
    """Report what is known, new and missing in a frame, and what the policies make of it.

    Parameters
    ----------
    encoder
        What is known.
    frame
        The frame to look at; cells that cannot be used are reported, not refused.
    policies
        What would be done.
    schema_overrides
        Fields that new columns are declared to be.
    note
        More to say of all of it.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({"job": ["cook", "pilot"]})
    >>> encoder = Encoder(Schema.from_frame(rows)).fit(rows)
    >>> report = compare(encoder, pl.DataFrame({"job": ["cook", None]}), Policies())
    >>> report.columns[0].examples, report.columns[0].share_missing
    (('missing',), 0.5)
    """
    table = read_table(frame)
    refuse_nameless(table)
    rest = table.select(name for name in table.columns if name not in encoder.schema)
    fields = [*encoder.schema, *Schema.from_frame(rest, schema_overrides)]
    columns = tuple(_change(encoder, table, policies, field) for field in fields)
    there = [table.columns[f.name] for f in fields if f.name in table.columns and _is_text(f)]
    named = [column.name for column in there if _names_rows(column)]
    return SchemaReport(columns, table.n_rows, " ".join(filter(None, [note, tell_names(named)])))


def names_rows(n_values: float, n_cells: float) -> bool:
    """Whether so many values in so many cells name rows: what is known of one tells of no other.

    Examples
    --------
    >>> names_rows(990, 1000), names_rows(60, 60), names_rows(500, 1000)
    (True, False, False)
    """
    return n_cells >= _MANY_CELLS and n_values >= _OF_ITS_OWN * n_cells


def tell_names(columns: list[str]) -> str:
    """Say which columns name rows; nothing where none does.

    Examples
    --------
    >>> tell_names(["order"]).partition(":")[2]
    ' such values teach nothing; exclude it.'
    """
    if not columns:
        return ""
    some = ", ".join(map(repr, columns[:5])) + (", ..." if len(columns) > 5 else "")
    many = len(columns) > 1
    return (
        f"Nearly every row has a value of its own in the column{'s' * many} {some}: such values "
        f"teach nothing; exclude {'them' if many else 'it'}."
    )


_MANY_CELLS, _OF_ITS_OWN = 100, 0.95


def _is_text(field: Field) -> bool:
    return field.kind == "categorical"


def _names_rows(column: pl.Series) -> bool:
    n_missing = column.null_count()
    if len(column) - n_missing < _MANY_CELLS or column.dtype.is_nested():
        return False
    return names_rows(column.n_unique() - (n_missing > 0), len(column) - n_missing)


def _change(encoder: Encoder, table: Table, policies: Policies, field: Field) -> ColumnChange:
    name, kind = field.name, field.kind
    if name not in table.columns:
        word = policies.of("missing_columns", name)
        why = f"not a column of this frame; {_MISSING[word]}"
        return ColumnChange(name, "missing", kind, 0, 0.0, 1.0, (), word, why)
    is_known = name in encoder.schema
    status: Literal["known", "new"] = "known" if is_known else "new"
    n_missing = table.columns[name].null_count()
    share_missing = n_missing / table.n_rows if table.n_rows else 0.0
    try:
        unseen = encoder.unseen(table, [field])[name]
    except InputError as error:
        return ColumnChange(name, status, kind, 0, 0.0, share_missing, (), "error", str(error))
    word = policies.of("new_values" if is_known else "new_columns", name)
    if not is_known:
        why = f"was not there in training; {_NEW[word].format(its='its')}"
        if n_missing == table.n_rows:
            why = "has no value yet, and stays new until one comes."
    elif unseen.n_new:
        why = f"has {_describe(unseen, field)}; {_NEW[word].format(its='their')}"
    else:
        word, why = "use", "every value is known."
    examples = _examples(unseen, field)
    return ColumnChange(
        name, status, kind, unseen.n_new, unseen.share, share_missing, examples, word, why
    )


# ---- words -------------------------------------------------------------------------------------


def _describe(unseen: Unseen, field: Field) -> str:
    examples = _examples(unseen, field)
    some = "" if unseen.n_new == len(examples) else "e.g. "
    return f"{_count(unseen.n_new, 'new value')} ({some}{', '.join(examples)})"


def _examples(unseen: Unseen, field: Field) -> tuple[str, ...]:
    """Up to three, "missing" among them where it is one; only texts are quoted."""
    quoted = tuple(map(KINDS[field.kind].quote, unseen.examples))
    return (*quoted[:2], "missing") if unseen.missing else quoted


def _cells(column: ColumnChange) -> list[str]:
    name = column.name if column.name.isprintable() else repr(column.name)
    shares = [f"{share:.0%}" for share in (column.share_unseen, column.share_missing)]
    examples = ", ".join(column.examples)
    start = [name, column.status, column.kind, str(column.n_values)]
    return [*start, *shares, column.action, examples]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
