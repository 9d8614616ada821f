"""The log: everything that a service was told, in order, durable before it is acknowledged.

    sqlite:FOLDER, FOLDER     log.sqlite (WAL, synchronous=FULL), snapshot-*.bin, bundle-*.bin
    postgresql://...          tables; in a schema by postgresql://...?options=-csearch_path%3DNAME

An entry is one commit: a list of operations, at the next position, with a checksum.  Positions have
no gaps, because the row that holds the last one is locked while an entry is written: an entry that
can be read is never followed by an older one.  How rows were cut into entries is part of the log,
so that replaying it gives the same state.

Operations are dicts for JSON, told apart by "kind":

    observe     rows, ids           rows that teach what is new; a row may have an id
    labelled    rows, ids, labels   rows that came with their labels
    label       places, labels      labels of rows that are in the log: [position, operation, row];
                                    of a row whose entry was dropped since: {"row", "served"}
    revise, forget                  the log itself was rewritten from "from" on: replay it
    rollback    to                  what lies between "to" and here does not count
    bundle      digest              from here on the state is that of another bundle

Two tables find rows by id and operations by idempotency key.  An id is looked up in the entry
itself, whose checksum is verified, before it is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from openfate.errors import DataFileError, InputError, OpenFATEError
from openfate.files import read_regular, write_whole

Operation = dict[str, Any]
_Place = tuple[int, ...]  # position, operation, row
BlobKind = Literal["snapshot", "bundle"]

FORMAT = 1
REWRITES = ("revise", "forget", "rollback", "bundle")  # what a state is replayed after
_TABLES = (
    "openfate_head (one INTEGER PRIMARY KEY, position BIGINT, at DOUBLE PRECISION, "
    "format INTEGER, first BIGINT)",
    "openfate_log (position BIGINT PRIMARY KEY, at DOUBLE PRECISION, body {blob}, checksum TEXT, "
    "rewrites INTEGER)",
    "openfate_keys (key TEXT PRIMARY KEY, position BIGINT)",
    "openfate_rows (id TEXT PRIMARY KEY, position BIGINT, operation INTEGER, place INTEGER, "
    "label_position BIGINT, label_operation INTEGER, label_place INTEGER)",
    "openfate_blobs (kind TEXT, name TEXT, position BIGINT, content {blob}, "
    "PRIMARY KEY (kind, name))",
)


class LogUnavailableError(OpenFATEError):
    """The log cannot be reached or written now; what was asked was not acknowledged."""


class LogDamagedError(DataFileError):
    """The log holds what was never written there."""


class RefusedError(InputError):
    """An operation that does not fit what is in the log.

    Parameters
    ----------
    field, remedy
        What was wrong, and what to do about it.
    status
        The HTTP status that says so.
    """

    def __init__(self, message: str, *, field: str, remedy: str, status: int = 422) -> None:
        super().__init__(f"{message}: {remedy}.")
        self.field, self.remedy, self.status, self.message = field, remedy, status, message


@dataclass(frozen=True)
class Entry:
    """What one commit wrote."""

    position: int
    at: float  # seconds since 1970, never before the entry's predecessor
    operations: tuple[Operation, ...]

    @property
    def rewrites(self) -> bool:
        """Whether a state must be replayed after it."""
        return any(told["kind"] in REWRITES for told in self.operations)


@dataclass(frozen=True)
class Receipt:
    """What became of an operation."""

    position: int
    repeated: int = 0  # of its rows or labels were there already
    is_repeated: bool = False  # the whole of it was: its key is known
    place: int | None = None  # among the operations of the entry; None: nothing was written


@dataclass
class _Tried:
    """A commit whose end is not known."""

    position: int = 0
    checksum: str = ""
    answers: list[Receipt | RefusedError] = field(default_factory=list)


@dataclass
class Damage:
    """What was found damaged when a log was opened, and what is left."""

    found: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # positions that were acknowledged once


def checksum(position: int, at: float, body: bytes) -> str:
    """Of an entry.

    Examples
    --------
    >>> checksum(1, 0.5, b"[]")
    '9ede1c8be369103cc5ea392951c3d471'
    """
    return hashlib.blake2b(f"{position} {at!r} ".encode() + body, digest_size=16).hexdigest()


def open_log(url: str, *, clock: Callable[[], float] | None = None, verify: bool = True) -> Log:
    """Open the log at a URL; makes it where there is none.

    Parameters
    ----------
    url
        A folder, ``sqlite:FOLDER`` or ``postgresql://...``.
    clock
        Seconds since 1970.  By default the time of day at the start and a clock that never jumps
        from there on.
    verify
        Whether to look at everything that is kept, and to repair what is damaged.

    Raises
    ------
    InputError, DataFileError
        Where there cannot be one.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, open_log(folder) as log:
    ...     [receipt] = log.append([{"kind": "observe", "rows": [{"job": "cook"}], "ids": ["r1"]}])
    ...     [entry] = log.read()
    ...     receipt.position, entry.operations[0]["ids"]
    (1, ['r1'])
    """
    if url.startswith(("postgresql://", "postgres://")):
        return Log(_Postgres(url), clock=clock, verify=verify)
    kind, is_url, _ = url.partition("://")  # the rest may hold a password
    if is_url or not url.removeprefix("sqlite:"):
        raise InputError(f"state {kind + is_url!r} is unknown: give a folder or postgresql://...")
    return Log(_Sqlite(Path(url.removeprefix("sqlite:"))), clock=clock, verify=verify)


class Log:
    """The log of a service, and the snapshots beside it: see the module.  Threads may share one.

    Attributes
    ----------
    damage
        What was repaired when it was opened.
    """

    def __init__(
        self, store: Store, *, clock: Callable[[], float] | None = None, verify: bool = True
    ) -> None:
        began = time.time() - time.monotonic()
        self._store, self.clock = store, clock or (lambda: began + time.monotonic())
        self._lock = threading.RLock()
        self.damage = Damage()
        if verify:
            self._verify()

    def __str__(self) -> str:
        return str(self._store)  # no password

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; everything acknowledged is on disk already."""
        with self._lock:
            self._store.close()

    # ---- reading -------------------------------------------------------------------------------

    def head(self) -> int:
        """The position of the last entry; 0 for none."""
        return self._head()[0]

    def _head(self) -> tuple[int, float, int]:
        """Position and time of the last entry, and the position before the first that is kept."""
        with self._lock:
            found = self._store.execute("SELECT position, at, first, format FROM openfate_head")
        if len(found) != 1:
            raise LogDamagedError(f"{self._store}: the head is missing.")
        position, at, first, version = found[0]
        if version != FORMAT:
            raise DataFileError(
                f"{self._store}: is of format {version}, this program reads {FORMAT}; update it."
            )
        return int(position), float(at), int(first)

    @property
    def first(self) -> int:
        """The position before the first entry that is kept: a snapshot stands for those."""
        return self._head()[2]

    def read(self, after: int = 0, until: int | None = None, most: int = 1 << 30) -> list[Entry]:
        """The entries behind a position, in order; those that are no longer kept are left out.

        Raises
        ------
        LogDamagedError
            Where one is missing or is not what was written.
        """
        with self._lock:
            found = self._store.execute(
                "SELECT position, at, body, checksum, rewrites FROM openfate_log "
                "WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
                (after, (1 << 62) if until is None else until, most),
            )
        entries = [self._decode(*row) for row in found]
        after = max(after, self.first) if entries and entries[0].position != after + 1 else after
        for wanted, entry in enumerate(entries, after + 1):
            if entry.position != wanted:
                raise LogDamagedError(f"{self._store}: entry {wanted} is missing.")
        return entries

    def stream(self, after: int, until: int) -> Iterator[Entry]:
        """The same, a few at a time in memory."""
        while entries := self.read(after, until, 500):
            yield from entries
            after = entries[-1].position

    def rewriting(self, until: int) -> list[Entry]:
        """Entries up to a position that hold one of REWRITES."""
        with self._lock:
            found = self._store.execute(
                "SELECT position, at, body, checksum, rewrites FROM openfate_log "
                "WHERE rewrites = 1 AND position <= ? ORDER BY position",
                (until,),
            )
        return [self._decode(*row) for row in found]

    def moment(self, at: float) -> int:
        """The position of the last entry that was written by a time, of those that are kept."""
        with self._lock:
            found = self._store.execute(
                "SELECT max(position) FROM openfate_log WHERE at <= ?", (at,)
            )
        return int(found[0][0] or self.first)

    def _decode(self, position: int, at: float, body: Any, wanted: str, rewrites: int) -> Entry:
        content = bytes(body)
        if checksum(int(position), float(at), content) != wanted:
            raise LogDamagedError(f"{self._store}: entry {position} is not what was written.")
        entry = Entry(int(position), float(at), tuple(json.loads(content)))
        if bool(rewrites) != entry.rewrites:
            raise LogDamagedError(f"{self._store}: entry {position} is not what was written.")
        return entry

    def rows_at(self, places: Sequence[Any]) -> list[tuple[dict[str, Any] | None, Any]]:
        """Cells of rows of the log, and what was served for them; None for those forgotten."""
        entries: dict[int, Entry] = {}
        found: list[tuple[dict[str, Any] | None, Any]] = []
        for place in places:
            if place is None:
                found.append((None, None))
                continue
            if isinstance(place, dict):
                found.append((place["row"], place["served"]))
                continue
            position, operation, row = place
            if position not in entries:
                entries[position] = self._entry(position)
            found.append(_row_at(entries[position], operation, row))
        return found

    def _entry(self, position: int) -> Entry:
        found = self.read(position - 1, position)
        if not found:
            raise LogDamagedError(f"{self._store}: entry {position} is missing.")
        return found[0]

    # ---- writing -------------------------------------------------------------------------------

    def append(
        self, operations: Sequence[Operation], *, patience_s: float = 0.0
    ) -> list[Receipt | RefusedError]:
        """Write operations as one entry, durable when this returns; some may be refused.

        Parameters
        ----------
        patience_s
            How long to try where the log cannot be reached.

        Raises
        ------
        LogUnavailableError
            Where nothing was written, as far as is known; a repetition with the same keys is safe.
        """
        deadline, tried = time.monotonic() + patience_s, _Tried()
        while True:
            try:
                # WHY: a connection that broke at the end of a commit does not say how it ended.
                if tried.position and self._holds(tried):
                    return tried.answers
                return self._append(operations, tried)
            except LogUnavailableError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def _holds(self, tried: _Tried) -> bool:
        with self._lock:
            found = self._store.execute(
                "SELECT checksum FROM openfate_log WHERE position = ?", (tried.position,)
            )
        return found == [(tried.checksum,)]

    def _append(
        self, operations: Sequence[Operation], tried: _Tried
    ) -> list[Receipt | RefusedError]:
        operations = [dict(operation) for operation in operations]
        with self._lock, self._store.writing():
            position, last, _ = self._head()
            position, at = position + 1, max(last, self.clock())
            kept: list[Operation] = []
            answers: list[Receipt | RefusedError] = []
            for operation in operations:
                try:
                    answers.append(self._take(operation, position, kept))
                except RefusedError as error:
                    answers.append(error)
            if kept:
                tried.checksum = self._write(position, at, kept)
                tried.position, tried.answers = position, answers
                self._store.execute(
                    "UPDATE openfate_head SET position = ?, at = ?", (position, at), reads=False
                )
                self._store.tell_others()
        if kept:
            self._store.acknowledge(position)
        return answers

    def _write(self, position: int, at: float, operations: Sequence[Operation]) -> str:
        """Write an entry; its checksum."""
        body = json.dumps(operations, separators=(",", ":"), allow_nan=False).encode()
        told = checksum(position, at, body)
        rewrites = int(Entry(position, at, tuple(operations)).rewrites)
        self._store.execute(
            "INSERT INTO openfate_log VALUES (?, ?, ?, ?, ?)",
            (position, at, body, told, rewrites),
            reads=False,
        )
        return told

    def _take(self, operation: Operation, position: int, kept: list[Operation]) -> Receipt:
        """Check an operation against the log, and add what is new of it to the entry."""
        key = operation.get("key")
        if key is not None:
            found = self._store.execute("SELECT position FROM openfate_keys WHERE key = ?", (key,))
            if found:
                return Receipt(int(found[0][0]), is_repeated=True)
        kind, n_kept = operation["kind"], len(kept)
        repeated = 0
        if kind in ("observe", "labelled"):
            repeated = self._take_rows(operation, position, kept)
        elif kind == "label":
            repeated = self._take_labels(operation, position, kept)
        elif kind == "forget":
            operation["from"] = self._forget(operation.pop("ids"), kept)
            kept.append(operation)
        elif kind == "rollback":
            self._roll_back(operation["to"], position)
            operation["from"] = operation["to"] + 1
            kept.append(operation)
        else:
            kept.append(operation)
        position = position if kept else position - 1  # nothing of it was new: no entry is written
        if key is not None:
            self._store.execute("INSERT INTO openfate_keys VALUES (?, ?)", (key, position), False)
        return Receipt(position, repeated, place=n_kept if len(kept) > n_kept else None)

    def _take_rows(self, operation: Operation, position: int, kept: list[Operation]) -> int:
        rows, ids = operation["rows"], operation["ids"]
        named = [name for name in ids if name is not None]
        if len(set(named)) < len(named):
            twice = Counter(named).most_common(1)[0][0]
            raise RefusedError(
                f"the id {twice!r} is there twice", field="ids", remedy="give each row its own id"
            )
        found, labels = self._find(named), operation.get("labels")
        rows_there = self._look("rows", (at[:3] for at in found.values()), kept, position)
        of = found.values() if labels is not None else ()
        labels_there = self._look("labels", (at[3:] for at in of), kept, position)
        repeated = set()
        for at, name in enumerate(ids):
            if name not in found:
                continue
            place, label = found[name][:3], found[name][3:]
            same = rows_there[place] == rows[at]
            if labels is not None:
                same = same and label in labels_there and labels_there[label] == labels[at]
            if not same:
                raise RefusedError(
                    f"the id {name!r} is that of another row",
                    field="ids",
                    remedy="give each row its own id; to change a label, send it with revise=true",
                    status=409,
                )
            repeated.add(at)
        left = [at for at in range(len(rows)) if at not in repeated]
        if not left and rows:
            return len(rows)
        for name in ("rows", "ids", "labels", "served"):
            if operation.get(name) is not None:
                operation[name] = [operation[name][at] for at in left]
        is_labelled = operation["kind"] == "labelled"
        for at, name in enumerate(operation["ids"]):
            if name is not None:
                label = (position, len(kept), at) if is_labelled else (None, None, None)
                self._store.execute(
                    "INSERT INTO openfate_rows VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (name, position, len(kept), at, *label),
                    False,
                )
        kept.append(operation)
        return len(repeated)

    def _take_labels(self, operation: Operation, position: int, kept: list[Operation]) -> int:
        ids, labels = operation.pop("ids"), operation["labels"]
        given: dict[str, Any] = {}
        for name, label in zip(ids, labels, strict=True):
            if given.setdefault(name, label) != label:
                raise RefusedError(
                    f"the id {name!r} has two labels", field="ids", remedy="give one label a row"
                )
        found = self._find(list(given))
        if unknown := [name for name in given if name not in found]:
            raise RefusedError(
                f"no row with the id {unknown[0]!r} is kept ({len(unknown)} of {len(given)})",
                field="ids",
                remedy="observe the row with that id first, or send it with its label",
                status=404,
            )
        new, revised, repeated = [], [], 0
        there = self._look("labels", (found[name][3:] for name in given), kept, position)
        for name, label in given.items():
            place = found[name][3:]
            if place not in there:
                new.append((name, label))
            elif there[place] == label:
                repeated += 1
            elif operation.get("revise"):
                revised.append((place, label))
            else:
                raise RefusedError(
                    f"the row {name!r} has another label already",
                    field="labels",
                    remedy="send it with revise=true to replace it",
                    status=409,
                )
        operation.pop("revise", None)
        if new:
            operation["places"] = [list(found[name][:3]) for name, _ in new]
            operation["labels"] = [label for _, label in new]
            for at, (name, _) in enumerate(new):
                self._store.execute(
                    "UPDATE openfate_rows SET label_position = ?, label_operation = ?, "
                    "label_place = ? WHERE id = ?",
                    (position, len(kept), at, name),
                    False,
                )
            kept.append(operation)
        if revised:
            for place, label in revised:
                if place[0] == position:  # of the entry that is being written
                    labels = list(kept[place[1]]["labels"])
                    labels[place[2]] = label
                    kept[place[1]]["labels"] = labels
            self._rewrite((at, {"labels": label}) for at, label in revised if at[0] < position)
            least = min(place[0] for place, _ in revised)
            kept.append({"kind": "revise", "from": least})
        return repeated

    def _forget(self, ids: Sequence[str], kept: list[Operation]) -> int:
        """Take rows out of the entries; the first position that this changes."""
        assert not kept, "what rewrites the log has an entry of its own"
        found = self._find(ids)
        if unknown := [name for name in ids if name not in found]:
            raise RefusedError(
                f"no row with the id {unknown[0]!r} is kept",
                field="ids",
                remedy="leave it out: there is nothing to forget",
                status=404,
            )
        row, label = dict.fromkeys(("rows", "ids", "served")), dict.fromkeys(("labels", "places"))
        changes = [(places[:3], row) for places in found.values()]
        changes += [(places[3:], label) for places in found.values() if places[3] is not None]
        self._rewrite(changes)
        for name in found:
            self._store.execute("DELETE FROM openfate_rows WHERE id = ?", (name,), False)
        return min(int(places[0]) for places in found.values())

    def _roll_back(self, to: int, position: int) -> None:
        first = self.first
        if not first <= to < position:
            raise RefusedError(
                f"position {to} is not kept",
                field="to",
                remedy=f"choose one from {first} to {position - 1}",
            )
        # WHY: it may lead to before another rollback, and then what that took back counts again
        self._store.execute("DELETE FROM openfate_rows", (), False)
        self._index(self.read(first, to))

    def _find(self, ids: Iterable[str]) -> dict[str, tuple[Any, ...]]:
        """Places of rows and of their labels by id, of those that are kept."""
        found: dict[str, tuple[Any, ...]] = {}
        names = list(dict.fromkeys(ids))
        for start in range(0, len(names), 500):
            some = names[start : start + 500]
            marks = ",".join("?" * len(some))
            for row in self._store.execute(
                "SELECT id, position, operation, place, label_position, label_operation, "
                f"label_place FROM openfate_rows WHERE id IN ({marks})",
                tuple(some),
            ):
                found[row[0]] = tuple(row[1:])
        return found

    def _look(
        self, column: str, places: Iterable[_Place], kept: list[Operation], position: int
    ) -> dict[_Place, Any]:
        """What operations hold at places, in the log or in the entry that is being written.

        WHY in order: each entry is read and verified once, however many of its rows are asked for.
        """
        found: dict[_Place, Any] = {}
        entry = None
        for place in sorted({place for place in places if place[0] is not None}):
            if place[0] == position:
                told = kept[place[1]]
            else:
                if entry is None or entry.position != place[0]:
                    entry = self._entry(place[0])
                told = entry.operations[place[1]]
            found[place] = told[column][place[2]]
        return found

    def _rewrite(self, changes: Iterable[tuple[_Place, dict[str, Any]]]) -> None:
        """Change rows of entries that are in the log; each entry is written anew once."""
        by_entry: dict[int, list[tuple[_Place, dict[str, Any]]]] = {}
        for place, cells in changes:
            by_entry.setdefault(place[0], []).append((place, cells))
        for position, changed in by_entry.items():
            entry = self._entry(position)
            for (_, operation, row), cells in changed:
                for name, cell in cells.items():
                    column = entry.operations[operation].get(name)
                    if column is not None:
                        column[row] = cell
            self._replace(entry)

    def _replace(self, entry: Entry) -> None:
        """Write an entry that is in the log anew."""
        self._store.execute("DELETE FROM openfate_log WHERE position = ?", (entry.position,), False)
        self._write(entry.position, entry.at, entry.operations)

    # ---- snapshots and bundles -----------------------------------------------------------------

    def begin(self, digest: str, content: bytes) -> None:
        """Keep the first bundle, where there is none: of processes that begin at once, one does."""
        with self.alone():
            if not self.blobs("bundle"):
                self.put_blob("bundle", digest, 0, content)

    def put_blob(self, kind: BlobKind, name: str, position: int, content: bytes) -> None:
        """Keep a snapshot or a bundle, whole or not at all, with its checksum."""
        digest = hashlib.sha256(content).digest()
        with self._lock:
            self._store.put_blob(kind, name, position, digest + content)

    def get_blob(self, kind: BlobKind, name: str) -> bytes | None:
        """What `put_blob` kept; None where it is not there or damaged."""
        with self._lock:
            content = self._store.get_blob(kind, name)
        if content is None:
            return None
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            self._note_damaged(kind, name)
            return None
        return content[32:]

    def blobs(self, kind: BlobKind) -> dict[str, int]:
        """Names and positions, the newest first; those that are damaged are left out."""
        with self._lock:
            found = self._store.list_blobs(kind)
        for name, position in found.items():
            if position is None:
                self._note_damaged(kind, name)
        good = {name: position for name, position in found.items() if position is not None}
        return dict(sorted(good.items(), key=lambda item: -item[1]))

    def _note_damaged(self, kind: BlobKind, name: str) -> None:
        note = f"{kind} {name} is not what was written"
        if note not in self.damage.found:
            self.damage.found.append(note)

    def drop_blob(self, kind: BlobKind, name: str) -> None:
        """Remove a snapshot that is no longer needed."""
        with self._lock:
            self._store.drop_blob(kind, name)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let nobody else write, in whichever process: what is done within is done at once."""
        with self._lock, self._store.writing():
            yield

    def compact(self, until: int) -> None:
        """Drop the entries up to a position, for which a snapshot stands; within `alone`."""
        if until <= self.first:
            return
        for at in self._labelled_later(until):
            entry = self._entry(at)
            _take_rows_in(entry, until, self._entry)
            self._replace(entry)
        for table in ("log", "keys", "rows"):
            self._store.execute(
                f"DELETE FROM openfate_{table} WHERE position <= ?", (until,), False
            )
        self._store.execute("UPDATE openfate_head SET first = ?", (until,), False)

    def _labelled_later(self, until: int) -> list[int]:
        """Entries behind a position that label rows up to there; some may label none."""
        found = self._store.execute(
            "SELECT DISTINCT label_position FROM openfate_rows "
            "WHERE position <= ? AND label_position > ?",
            (until, until),
        )
        places = {int(at) for (at,) in found}
        # WHY: a rollback to before a rollback makes count again what no table knows of now.
        for taken_back in voided(self.rewriting(self.head())):
            last = taken_back.stop - 1
            places |= {
                entry.position for entry in self.stream(max(taken_back.start - 1, until), last)
            }
        return sorted(places)

    # ---- news of other processes ---------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Whether somebody listens, and will be told of every entry at once."""
        return self._store.is_listening

    def listen(self, on_news: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Call `on_news` whenever an entry was written, by whichever process, until it is over.

        Returns at once where the store tells nobody: a folder has to be looked at.
        """
        self._store.listen(on_news, is_over)

    # ---- damage --------------------------------------------------------------------------------

    def _verify(self) -> None:
        """Look at everything that is kept; where something is damaged, save what is good."""
        try:
            position, _, first = self._head()
            self._store.check()
            if sum(1 for _ in self.stream(first, position)) != position - first:
                raise LogDamagedError(f"{self._store}: entries are missing.")
            # WHY: the next entries would get positions for which the snapshot stands already, and a
            # replay would leave them out.
            found = self.blobs("snapshot").items()
            later = [at for name, at in found if at > position and self._is_whole(name)]
            if later:
                raise LogDamagedError(
                    f"{self._store}: ends at entry {position}, before the snapshot of "
                    f"{max(later)}, which stands for it: ids up to there are no longer known."
                )
        except LogDamagedError as error:
            self.damage.found.append(str(error))
            self._salvage()
            position = self.head()
            first = self.first
        if first and not any(map(self._is_whole, self.blobs("snapshot"))):
            self.damage.found.append(f"{self._store}: entries 1 to {first} have no snapshot left")
            self.damage.lost += list(range(1, first + 1))
        acknowledged = self._store.acknowledged()
        if acknowledged is None:
            what = "the note of the last entry is not what was written: later ones may be gone"
            self.damage.found.append(f"{self._store}: {what}.")
            self._store.acknowledge(position)
        elif acknowledged > position:
            self.damage.found.append(f"entries {position + 1} to {acknowledged} are gone")
            self.damage.lost += list(range(position + 1, acknowledged + 1))

    def _salvage(self) -> None:
        """Make a new file of the entries that are good, up to the first that a state needs."""
        good = dict(self._good_entries())
        # A snapshot that is whole stands for all before it.
        starts = [0, *(at for n, at in self.blobs("snapshot").items() if self._is_whole(n))]
        runs = {start: _run(good, start) for start in starts}
        if min(good, default=1) > 1:  # compacted: a state cannot begin at nothing
            runs.pop(0, None)
        start = max(runs, key=lambda at: (runs[at], -at), default=0)
        end = runs.get(start, 0)
        self.damage.lost += [at for at in good if at > end]
        self._store.start_anew()
        with self._store.writing():
            at = max((good[n].at for n in range(start + 1, end + 1)), default=0.0)
            self._store.execute(
                "UPDATE openfate_head SET position = ?, first = ?, at = ?", (end, start, at), False
            )
            kept = [good[n] for n in range(start + 1, end + 1)]
            n_lost = sum(_take_rows_in(entry, start, good.get) for entry in kept)
            if n_lost:
                what = "labels that are left out, because their rows are gone"
                self.damage.found.append(f"{self._store}: {what}: {n_lost}.")
            for entry in kept:
                self._write(entry.position, entry.at, entry.operations)
                for told in entry.operations:
                    if told.get("key") is not None:
                        key = (told["key"], entry.position)
                        self._store.execute("INSERT INTO openfate_keys VALUES (?, ?)", key, False)
            self._index(kept)

    def _is_whole(self, snapshot: str) -> bool:
        return self.get_blob("snapshot", snapshot) is not None

    def _good_entries(self) -> Iterator[tuple[int, Entry]]:
        for row in self._store.readable():
            with suppress(LogDamagedError, ValueError, TypeError):
                entry = self._decode(*row)
                yield entry.position, entry

    def _index(self, entries: Sequence[Entry]) -> None:
        """Fill the table of rows from the entries that count."""
        rows: dict[str, tuple[Any, ...]] = {}
        by_place: dict[tuple[int, ...], str] = {}
        void = voided(entries)
        for entry in entries:
            if any(entry.position in taken_back for taken_back in void):
                continue
            for number, told in enumerate(entry.operations):
                here = (entry.position, number)
                for at, name in enumerate(told.get("ids", ())):
                    if name is not None:
                        is_labelled = told["kind"] == "labelled"
                        label = (*here, at) if is_labelled else (None, None, None)
                        rows[name], by_place[*here, at] = (*here, at, *label), name
                for at, place in enumerate(told.get("places", ())):
                    name = by_place.get(tuple(place)) if isinstance(place, list) else None
                    if name in rows:
                        rows[name] = (*rows[name][:3], *here, at)
        for name, row in rows.items():
            self._store.execute(
                "INSERT INTO openfate_rows VALUES (?, ?, ?, ?, ?, ?, ?)", (name, *row), False
            )


def _row_at(entry: Entry, operation: int, row: int) -> tuple[dict[str, Any] | None, Any]:
    """Cells of a row of an entry, and what was served for them; None for one forgotten."""
    told = entry.operations[operation]
    served = told.get("served")
    return told["rows"][row], None if served is None else served[row]


def _take_rows_in(entry: Entry, until: int, entry_of: Callable[[int], Entry | None]) -> int:
    """Let an entry hold the rows of its labels that are in entries up to a position.

    Returns
    -------
        How many of these are gone.
    """
    n_gone, at, whence = 0, 0, None
    places = [
        (place, told["places"], number)
        for told in entry.operations
        for number, place in enumerate(told.get("places") or ())
        if isinstance(place, list) and place[0] <= until
    ]
    for place, column, number in sorted(places, key=lambda one: one[0]):
        if place[0] != at:  # WHY in order: each entry is read once
            at, whence = place[0], entry_of(place[0])
        row, served = (None, None) if whence is None else _row_at(whence, *place[1:])
        column[number] = None if row is None else {"row": row, "served": served}
        n_gone += whence is None
    return n_gone


def _run(good: dict[int, Entry], start: int) -> int:
    """The last position that can be reached from one without a gap."""
    while start + 1 in good:
        start += 1
    return start


def voided(rewriting: Sequence[Entry]) -> list[range]:
    """The positions that rollbacks have taken back.

    Parameters
    ----------
    rewriting
        Entries of which some may be rollbacks, in order.

    Examples
    --------
    >>> say = lambda position, to: Entry(position, 0.0, ({"kind": "rollback", "to": to},))
    >>> voided([say(3, 1), say(9, 7)])
    [range(8, 9), range(2, 3)]
    >>> voided([say(3, 1), say(9, 2)])  # back to before the first rollback
    [range(3, 9)]
    """
    found: list[range] = []
    for entry in reversed(rewriting):
        if any(entry.position in taken_back for taken_back in found):
            continue
        for told in entry.operations:
            if told["kind"] == "rollback":
                found.append(range(told["to"] + 1, entry.position))
    return found


# ---- where it is kept ----------------------------------------------------------------------------


class Store(Protocol):
    """A place for a log: SQL with "?" for values, blobs, and one writer at a time."""

    is_listening: bool  # whether `listen` is in touch with those who write

    def execute(
        self, sql: str, values: Sequence[Any] = (), reads: bool = True
    ) -> list[tuple[Any, ...]]:
        """Run a statement; its rows where it reads."""

    def writing(self) -> Any:
        """A transaction that no other writer's overlaps; durable when it ends."""

    def tell_others(self) -> None:
        """Within `writing`: let those who `listen` know when it has ended."""

    def listen(self, on_news: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """See `Log.listen`."""

    def put_blob(self, kind: str, name: str, position: int, content: bytes) -> None:
        """Keep bytes."""

    def get_blob(self, kind: str, name: str) -> bytes | None:
        """Give them back."""

    def list_blobs(self, kind: str) -> dict[str, int | None]:
        """Their names and positions; None for one that is not what was written."""

    def drop_blob(self, kind: str, name: str) -> None:
        """Remove them."""

    def acknowledge(self, position: int) -> None:
        """Remember, outside the log, how far it went."""

    def acknowledged(self) -> int | None:
        """What `acknowledge` was told last; 0 where nobody was, None where it is damaged."""

    def check(self) -> None:
        """Raise LogDamagedError where the files are."""

    def readable(self) -> Iterator[tuple[Any, ...]]:
        """Rows of the log that can be read, whatever else cannot."""

    def start_anew(self) -> None:
        """Put the damaged files aside and begin empty ones."""

    def close(self) -> None:
        """Let go of it."""


_CHANNEL = "openfate"  # of a database: those of another schema are told too, and find nothing
_LISTEN_S = 0.2  # between two looks at whether it is over
_BEGIN_HEAD = "INSERT INTO openfate_head VALUES (1, 0, 0, {}, 0) ON CONFLICT DO NOTHING"


_HEAD_BYTES = 52


def _blob_head(name: str, position: int) -> bytes:
    """What a file of a blob begins with: its position, and a checksum of that.

    WHY: entries are replayed from there on, and those before it are dropped.
    """
    return f"{position:020}{checksum(position, 0.0, name.encode())}".encode()


# WHY the second: SQLite quotes what it cannot read, and its message may be no UTF-8.
_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)


def _tells_damage(error: sqlite3.OperationalError) -> bool:
    """Whether what seems an error of the machine, or of SQL, is one of the file."""
    words = ("no such table", "no such column", "malformed", "unsupported file format")
    return any(text in str(error) for text in words)


class _Sqlite:
    """A folder with log.sqlite and one file for each snapshot and bundle."""

    is_listening = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # WHY: kill -9 keeps what was written here, synced or not; a lost disk loses the log too
            self._mark = os.open(folder / "acknowledged", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DataFileError(
                f"{folder}: cannot be written ({error.strerror or error}); give another state."
            ) from None
        self._open()

    def __str__(self) -> str:
        return str(self.folder / "log.sqlite")

    def _open(self) -> None:
        try:
            self._connect()
        except sqlite3.OperationalError as error:
            if not _tells_damage(error):
                raise DataFileError(f"{self}: cannot be opened ({error}).") from None
        except _UNREADABLE:
            pass  # found out, and repaired, when the log is verified

    def _connect(self) -> None:
        self._db = sqlite3.connect(
            self.folder / "log.sqlite", timeout=10, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        with self._db:
            for table in _TABLES:
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {table.format(blob='BLOB')}")
            self._db.execute(_BEGIN_HEAD.format(FORMAT))

    def execute(
        self, sql: str, values: Sequence[Any] = (), reads: bool = True
    ) -> list[tuple[Any, ...]]:
        try:
            return list(self._db.execute(sql, values))
        except sqlite3.OperationalError as error:
            if _tells_damage(error):
                raise LogDamagedError(f"{self}: is damaged ({error}).") from None
            raise LogUnavailableError(f"{self}: cannot be used now ({error}).") from None
        except (*_UNREADABLE, OverflowError) as error:
            raise LogDamagedError(f"{self}: is damaged ({error}).") from None

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def tell_others(self) -> None:
        """Others look."""

    def listen(self, on_news: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """There is nothing to listen to."""

    def acknowledge(self, position: int) -> None:
        with suppress(OSError):
            os.pwrite(self._mark, _mark_of(position), 0)

    def acknowledged(self) -> int | None:
        text = os.pread(self._mark, 100, 0)
        position = int(text[:20]) if text[:20].isdigit() else 0
        return position if text in (b"", _mark_of(position)) else None

    def check(self) -> None:
        found = self.execute("PRAGMA quick_check(1)")
        if found != [("ok",)]:
            raise LogDamagedError(f"{self}: is damaged ({found[0][0]}).")
        told = self.execute("SELECT sql FROM sqlite_master WHERE sql LIKE 'CREATE TABLE openfate%'")
        wanted = {(f"CREATE TABLE {table.format(blob='BLOB')}",) for table in _TABLES}
        if not wanted <= set(told):
            raise LogDamagedError(f"{self}: its tables are not those that were made.")

    def readable(self) -> Iterator[tuple[Any, ...]]:
        try:
            (last,) = self._db.execute("SELECT max(position) FROM openfate_log").fetchone()
            (first,) = self._db.execute("SELECT min(position) FROM openfate_log").fetchone()
        except _UNREADABLE:
            first, last = 1, 0
        last = max(last or 0, self.acknowledged() or 0)
        for position in range(first or 1, min(last, (first or 1) + 10**8) + 1):
            with suppress(*_UNREADABLE):
                yield from self._db.execute(
                    "SELECT position, at, body, checksum, rewrites FROM openfate_log "
                    "WHERE position = ?",
                    (position,),
                ).fetchall()

    def start_anew(self) -> None:
        self._db.close()
        aside = self.folder / f"damaged-{time.time_ns()}"
        aside.mkdir()
        for file in self.folder.glob("log.sqlite*"):
            file.rename(aside / file.name)
        self._connect()

    def _path(self, kind: str, name: str) -> Path:
        return self.folder / f"{kind}-{name}.bin"

    def put_blob(self, kind: str, name: str, position: int, content: bytes) -> None:
        try:
            write_whole(self._path(kind, name), _blob_head(name, position) + content)
        except (DataFileError, OSError) as error:
            raise LogUnavailableError(str(error)) from None

    def get_blob(self, kind: str, name: str) -> bytes | None:
        path = self._path(kind, name)
        with suppress(FileNotFoundError):
            return read_regular(path, path.stat().st_size)[_HEAD_BYTES:]
        return None

    def list_blobs(self, kind: str) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for path in self.folder.glob(f"{kind}-*.bin"):
            name = path.stem.removeprefix(f"{kind}-")
            with suppress(OSError), path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
                position = int(head[:20]) if head[:20].isdigit() else -1
                found[name] = position if head == _blob_head(name, position) else None
        return found

    def drop_blob(self, kind: str, name: str) -> None:
        self._path(kind, name).unlink(missing_ok=True)

    def close(self) -> None:
        self._db.close()
        os.close(self._mark)


def _mark_of(position: int) -> bytes:
    """The note of the last entry: a position that one bit has changed would be believed."""
    return f"{position:020} {checksum(position, 0.0, b'')}".encode()


class _Postgres:
    """Tables of a PostgreSQL database, which several processes may share."""

    is_listening = False

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise InputError(
                "a state at postgresql:// needs psycopg: pip install 'openfate[serve]'."
            ) from None
        self._psycopg, self._url = psycopg, url
        self._db: Any = None
        try:
            self._connect()
        except LogUnavailableError as error:
            raise DataFileError(f"{error} Start the database, or give another state.") from None

    def __str__(self) -> str:
        try:
            told = self._psycopg.conninfo.conninfo_to_dict(self._url)
        except self._psycopg.Error:
            return "postgresql://..."
        return f"postgresql://{told.get('host', '')}/{told.get('dbname', '')}"

    def _connect(self) -> None:
        try:
            self._db = self._psycopg.connect(self._url, autocommit=True, connect_timeout=5)
            with self._db.transaction():
                self._db.execute("SELECT pg_advisory_xact_lock(7231)")  # of those who make tables
                self._db.execute("SET LOCAL client_min_messages = warning")
                for table in _TABLES:
                    self._db.execute(f"CREATE TABLE IF NOT EXISTS {table.format(blob='BYTEA')}")
                self._db.execute(_BEGIN_HEAD.format(FORMAT))
        except self._psycopg.Error as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> LogUnavailableError:
        text = " ".join(str(error).replace(self._url, str(self)).split())  # no password
        return LogUnavailableError(f"{self}: cannot be used now ({text}).")

    def execute(
        self, sql: str, values: Sequence[Any] = (), reads: bool = True
    ) -> list[tuple[Any, ...]]:
        try:
            if self._db.closed or self._db.broken:
                self._connect()
            cursor = self._db.execute(sql.replace("?", "%s"), values)
            return list(cursor.fetchall()) if reads else []
        except self._psycopg.Error as error:
            raise self._unavailable(error) from None

    @contextmanager
    def writing(self) -> Iterator[None]:
        if self._db.closed or self._db.broken:
            self._connect()
        try:
            with self._db.transaction():
                self._db.execute("SELECT position FROM openfate_head FOR UPDATE")
                yield
        except self._psycopg.Error as error:
            raise self._unavailable(error) from None

    def tell_others(self) -> None:
        self.execute(f"NOTIFY {_CHANNEL}", (), False)

    def listen(self, on_news: Callable[[], None], is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                with self._psycopg.connect(self._url, autocommit=True, connect_timeout=5) as db:
                    db.execute(f"LISTEN {_CHANNEL}")
                    self.is_listening = True
                    on_news()  # of what was written before
                    while not is_over():
                        for _ in db.notifies(timeout=_LISTEN_S, stop_after=1):
                            on_news()
            except self._psycopg.Error:
                self.is_listening = False
                time.sleep(_LISTEN_S)
        self.is_listening = False

    def acknowledge(self, position: int) -> None:
        """The server knows."""

    def acknowledged(self) -> int | None:
        return 0

    def check(self) -> None:
        """The server does."""

    def readable(self) -> Iterator[tuple[Any, ...]]:
        yield from self.execute("SELECT position, at, body, checksum, rewrites FROM openfate_log")

    def start_anew(self) -> None:
        raise DataFileError(f"{self}: is damaged; restore the database from a backup.")

    def put_blob(self, kind: str, name: str, position: int, content: bytes) -> None:
        self.execute(
            "INSERT INTO openfate_blobs VALUES (?, ?, ?, ?) ON CONFLICT (kind, name) DO UPDATE "
            "SET position = excluded.position, content = excluded.content",
            (kind, name, position, content),
            False,
        )

    def get_blob(self, kind: str, name: str) -> bytes | None:
        found = self.execute(
            "SELECT content FROM openfate_blobs WHERE kind = ? AND name = ?", (kind, name)
        )
        return bytes(found[0][0]) if found else None

    def list_blobs(self, kind: str) -> dict[str, int | None]:
        found = self.execute("SELECT name, position FROM openfate_blobs WHERE kind = ?", (kind,))
        return {name: int(position) for name, position in found}

    def drop_blob(self, kind: str, name: str) -> None:
        self.execute("DELETE FROM openfate_blobs WHERE kind = ? AND name = ?", (kind, name), False)

    def close(self) -> None:
        self._db.close()
