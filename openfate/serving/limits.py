"""Limits: what a request may hold, who may send it, and how fast it may bring new features.

Bad input is refused here, before anything is written: every refusal names the field and the remedy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from openfate.errors import DataFileError
from openfate.serving.log import RefusedError

SCOPES = ("predict", "observe", "admin")
_MOST_CLIENTS = 10_000


@dataclass(frozen=True)
class Limits:
    """How much a request may hold.

    Parameters
    ----------
    body_bytes
        Of a request of JSON; one of Arrow may have sixteen times as many.
    rows, columns
        Of a request, and of a row.
    value_length
        Characters of a text, of a column's name and of an id; elements of a list.
    new_features
        A minute and client.
    """

    body_bytes: int = 16 << 20
    rows: int = 10_000
    columns: int = 2_000
    value_length: int = 1_000
    new_features: int = 10_000


def refuse(message: str, field: str, remedy: str, status: int = 422) -> NoReturn:
    """Refuse a request."""
    raise RefusedError(message, field=field, remedy=remedy, status=status)


# ---- what a request holds ------------------------------------------------------------------------


def read_json(body: bytes) -> dict[str, Any]:
    """Read a JSON object; NaN and numbers without end are none.

    Examples
    --------
    >>> read_json(b'{"row": {"age": 31}}')
    {'row': {'age': 31}}
    >>> read_json(b'{"row": {"age": NaN}}')
    Traceback (most recent call last):
    openfate.serving.log.RefusedError: NaN is no JSON: give null for what is missing.
    """
    try:
        found = json.loads(body, parse_constant=_refuse_constant)
    except RefusedError:
        raise
    except (ValueError, RecursionError) as error:
        text = str(error) or type(error).__name__
        refuse(f"the body is no JSON ({text[:200]})", "body", "send a JSON object", 400)
    if not isinstance(found, dict):
        refuse(f"the body is a JSON {type(found).__name__}", "body", "send a JSON object", 400)
    return found


def _refuse_constant(name: str) -> NoReturn:
    refuse(f"{name} is no JSON", "body", "give null for what is missing", 400)


def check_fields(told: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse fields that a request does not have: one that is misspelt would be ignored."""
    for name in told:
        if name not in known:
            refuse(f"{name[:80]!r} is no field of it", "body", f"choose among {', '.join(known)}")


def read_rows(told: Mapping[str, Any], limits: Limits) -> list[dict[str, Any]]:
    """The rows of a request: "rows", or the one of "row".

    Examples
    --------
    >>> read_rows({"row": {"age": 31, "tags": ["a"]}}, Limits())
    [{'age': 31, 'tags': ['a']}]
    >>> read_rows({"rows": [{"age": {}}]}, Limits())
    Traceback (most recent call last):
    openfate.serving.log.RefusedError: row 0 holds an object in 'age': give texts, numbers, \
booleans, null, or a list of them.
    """
    if ("row" in told) == ("rows" in told):
        what = "there are a row and rows" if "row" in told else "there is no row"
        refuse(what, "rows", 'give "row", an object, or "rows", a list of them')
    rows = [told["row"]] if "row" in told else told["rows"]
    if not isinstance(rows, list) or not rows:
        refuse("rows is no list of rows", "rows", "give a list of at least one object")
    if len(rows) > limits.rows:
        refuse(f"{len(rows)} rows at once", "rows", f"give at most {limits.rows}", 413)
    for at, row in enumerate(rows):
        _check_row(row, at, limits)
    return rows


def _check_row(row: Any, at: int, limits: Limits) -> None:
    if type(row) is not dict:
        refuse(f"row {at} is no object", "rows", "give each row as an object of its cells")
    if len(row) > limits.columns:
        refuse(f"row {at} has {len(row)} columns", "rows", f"give at most {limits.columns}", 413)
    longest = limits.value_length
    for name, cell in row.items():
        kind = type(cell)
        if kind is str:
            if len(cell) > longest or "\0" in cell:
                _refuse_text(cell, f"row {at} holds in {name[:80]!r}", name[:80], longest)
        elif kind is float:
            if not math.isfinite(cell):
                refuse(
                    f"row {at} holds a number without end in {name[:80]!r}",
                    name[:80],
                    "give null, or a number below 1e308",
                )
        elif kind is list:
            if len(cell) > longest:
                refuse(
                    f"row {at} holds {len(cell)} values in {name[:80]!r}",
                    name[:80],
                    f"give at most {longest}",
                    413,
                )
            for value in cell:
                if type(value) not in (str, int, float, bool, type(None)):
                    refuse(
                        f"row {at} holds a nested list in {name[:80]!r}",
                        name[:80],
                        "give a list of texts or numbers",
                    )
                _check_row({name: value}, at, limits)
        elif kind is dict:
            refuse(
                f"row {at} holds an object in {name[:80]!r}",
                name[:80],
                "give texts, numbers, booleans, null, or a list of them",
            )
        if not 0 < len(name) <= longest or "\0" in name:
            _refuse_text(name, f"row {at} has as a column's name", "rows", longest)


def _refuse_text(text: str, where: str, field: str, longest: int) -> NoReturn:
    if not text:
        refuse(f"{where} an empty text", field, "give it one")
    if "\0" in text:
        refuse(f"{where} a character NUL", field, "leave it out")
    status = 413 if len(text) > longest else 422
    refuse(f"{where} a text of {len(text)} characters", field, f"give at most {longest}", status)


def read_ids(told: Mapping[str, Any], n_rows: int | None, limits: Limits) -> list[str | None]:
    """The ids of rows: strings or integers; none for None, where there are rows."""
    if "id" in told and "ids" in told:
        refuse("there are an id and ids", "ids", 'give "id", or "ids", a list of them')
    ids = [told["id"]] if "id" in told else told.get("ids")
    if ids is None and n_rows is not None:
        return [None] * n_rows
    if not isinstance(ids, list) or not ids:
        refuse("ids is no list", "ids", "give a list of the rows' ids")
    if n_rows is not None and len(ids) != n_rows:
        refuse(f"{n_rows} rows but {len(ids)} ids", "ids", "give one id for each row")
    if len(ids) > limits.rows:
        refuse(f"{len(ids)} ids at once", "ids", f"give at most {limits.rows}", 413)
    return [_read_id(name, n_rows is not None, limits) for name in ids]


def _read_id(name: Any, may_lack: bool, limits: Limits) -> str | None:
    if name is None and may_lack:
        return None
    if type(name) is int:
        name = str(name) if abs(name) < 1 << 63 else ""
    good = isinstance(name, str) and 0 < len(name) <= limits.value_length and "\0" not in name
    if not good or name != name.encode(errors="ignore").decode():
        refuse(
            f"{str(name)[:40]!r} is no id",
            "ids",
            f"give a text of 1 to {limits.value_length} characters or an integer",
        )
    return str(name)


def read_labels(told: Mapping[str, Any], n_rows: int) -> list[Any]:
    """As many labels as rows: numbers, texts, booleans; lists of 0 and 1 for several labels."""
    if "label" in told and "labels" in told:
        refuse("there are a label and labels", "labels", 'give "label", or "labels", a list')
    labels = [told["label"]] if "label" in told else told.get("labels")
    if not isinstance(labels, list) or len(labels) != n_rows:
        found = f"{len(labels)} labels" if isinstance(labels, list) else "no list of labels"
        refuse(f"{n_rows} rows but {found}", "labels", "give one label for each row")
    for label in labels:
        values = label if isinstance(label, list) else [label]
        for value in values:
            if type(value) not in (int, float, bool, str) or value != value:
                refuse(f"{str(value)[:40]!r} is no label", "labels", "give numbers or texts")
            if type(value) is float and not math.isfinite(value):
                refuse("a label is without end", "labels", "give a number below 1e308")
    return labels


# ---- who sends it --------------------------------------------------------------------------------


class Clients:
    """Who may do what, and how many new features each has brought within a minute.

    Parameters
    ----------
    tokens
        Names, and for each a token and its scopes; none: everybody may do everything.

    Examples
    --------
    >>> clients = Clients({"shop": ("s3cret-of-the-shop", ("predict",))})
    >>> clients.identify("Bearer s3cret-of-the-shop", "10.0.0.7", "predict")
    'shop'
    """

    def __init__(self, tokens: Mapping[str, tuple[str, Sequence[str]]] | None = None) -> None:
        self._tokens = {
            name: (hashlib.sha256(token.encode()).digest(), frozenset(scopes))
            for name, (token, scopes) in (tokens or {}).items()
        }
        self._brought: OrderedDict[str, tuple[float, int]] = OrderedDict()

    @classmethod
    def from_file(cls, path: Path) -> Clients:
        """Read a JSON file: {"shop": {"token": "...", "scopes": ["predict", "observe"]}}."""
        try:
            told = json.loads(path.read_text())
            tokens = {name: (one["token"], tuple(one["scopes"])) for name, one in told.items()}
            wrong = [s for _, scopes in tokens.values() for s in scopes if s not in SCOPES]
            short = [name for name, (token, _) in tokens.items() if len(token) < 16]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataFileError(
                f"{path}: no file of tokens ({error!r}); write a JSON object of names, each with "
                '"token" and "scopes".'
            ) from None
        if wrong or short or not tokens:
            what = f"the token of {short[0]!r} is too short" if short else ""
            what = f"the scope {wrong[0]!r} is unknown" if wrong else what
            raise DataFileError(
                f"{path}: {what if tokens else 'it holds no token'}; scopes are "
                f"{', '.join(SCOPES)}, tokens have 16 characters or more."
            )
        return cls(tokens)

    def identify(self, authorization: str | None, address: str, scope: str) -> str:
        """The client's name, for whom a scope is open; its address where no token is asked for."""
        if not self._tokens:
            return address
        kind, _, token = (authorization or "").partition(" ")
        given = hashlib.sha256(token.strip().encode(errors="replace")).digest()
        found = None
        for name, (digest, scopes) in self._tokens.items():  # all of them: constant time
            if hmac.compare_digest(digest, given):
                found = (name, scopes)
        if found is None or kind.lower() != "bearer":
            refuse("the token is missing or unknown", "Authorization", "send Bearer TOKEN", 401)
        if scope not in found[1]:
            refuse(
                f"the token of {found[0]!r} is not for {scope!r}",
                "Authorization",
                f"use one with the scope {scope!r}",
                403,
            )
        return found[0]

    def count_new(self, client: str, n_new: int, most: int) -> None:
        """Count new features that a client brings; refuse more than so many a minute."""
        if not n_new:
            return
        now = time.monotonic()
        began, brought = self._brought.pop(client, (now, 0))
        if now - began >= 60:
            began, brought = now, 0
        is_too_much = brought + n_new > most
        self._brought[client] = (began, brought if is_too_much else brought + n_new)
        while len(self._brought) > _MOST_CLIENTS:
            self._brought.popitem(last=False)
        if is_too_much:
            refuse(
                f"{n_new} new features, {brought} within this minute before",
                "rows",
                f"bring at most {most} a minute",
                429 if n_new <= most else 413,
            )
