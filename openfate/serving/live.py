"""LiveBank: a bank and its log.  What is told is durable first, and then learned, in log order.

    submit -> committer (one thread; many operations, one entry, one fsync) -> the log
    the log -> follower (one thread; its own entries and other processes') -> the bank
    PostgreSQL -> listener (one thread; told of what other processes wrote) -> wakes the follower

The state is a function of the log: a bundle, and the entries behind it applied one by one.  After a
crash it is replayed from the newest snapshot that still holds.  Labels that are revised, rows that
are forgotten, a rollback and a new bundle are replays too, beside the bank that serves meanwhile.
"""

from __future__ import annotations

import io
import json
import queue
import re
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.bank import FeatureBank, Wrapped, read_bundle
from openfate.errors import DataFileError, InputError, OpenFATEError
from openfate.estimators import from_bank
from openfate.serving.log import (
    REWRITES,
    Entry,
    Log,
    LogDamagedError,
    LogUnavailableError,
    Operation,
    Receipt,
    RefusedError,
    open_log,
    voided,
)
from openfate.serving.worth import Worth
from openfate.table import Encoder, MultiHot, Policies, Table, column_of

Cells = dict[str, Any]
_FILE = re.compile(r"[a-z]+(-[0-9a-f]{16})?\.[a-z]+")
_DAY = 86_400.0
_LISTENING_POLL_S = 1.0  # how often to look all the same where other processes tell what they wrote
# Errors that another replay would not have: the entry is tried again, whole.
_OF_THE_MACHINE = (MemoryError, OSError, LogUnavailableError)
ERRORS = (Exception, pl.exceptions.PanicException)  # polars' panic is no Exception


class BusyError(OpenFATEError):
    """More waits to be written or learned than may wait: try again soon."""


@dataclass(frozen=True)
class Ticket:
    """A submitted operation: when it is durable, and when this process has learned from it."""

    durable: Future[Receipt]
    applied: Future[str | None]  # why it was not taken, or None


# ---- entries -> bank -----------------------------------------------------------------------------


def make_table(rows: Sequence[Cells]) -> Table:
    """Rows with the same columns, as one table.

    Examples
    --------
    >>> make_table([{"age": 31}, {"age": 40}]).columns["age"].to_list()
    [31, 40]
    """
    columns = {name: column_of(name, [row[name] for row in rows]) for name in rows[0]}
    return Table(len(rows), columns, pl.DataFrame(columns))


Watch = Callable[[FeatureBank, Table, NDArray[Any], Sequence[Any]], Callable[[], None]]
# What `FeatureBank.observe` is given so that labelled rows train the model again.
Retraining = Callable[[FeatureBank, Table, NDArray[Any]], dict[str, Any]]


@dataclass(frozen=True)
class _Row:
    operation: int
    cells: Cells
    label: Any = None
    served: Any = None


def apply_entry(
    bank: FeatureBank,
    entry: Entry,
    log: Log,
    watch: Watch | None = None,
    retraining: Retraining | None = None,
) -> dict[int, str]:
    """Let a bank learn from an entry: rows, then rows with labels, then labels of earlier rows.

    Rows of the same columns are learned together.  What a bank refuses (a column that another entry
    made one of numbers, a class that a new bundle does not have) is left out, the same way in every
    replay.

    Parameters
    ----------
    watch
        Called before labels are learned, with the rows, the labels and what was served for them;
        what it gives is called once the whole entry is learned, unless the rows were left out.
    retraining
        As `retraining` of an estimator that has the rows of `fit`.

    Returns
    -------
        Operations that were left out, by their places in the entry, and why.
    """
    refused: dict[int, str] = {}
    plain: list[_Row] = []
    labelled: list[_Row] = []
    late: list[_Row] = []
    for number, told in enumerate(entry.operations):
        kind = told["kind"]
        if kind == "label":
            for (cells, served), label in zip(
                log.rows_at(told["places"]), told["labels"], strict=True
            ):
                if cells is not None:
                    late.append(_Row(number, cells, label, served))
        elif kind in ("observe", "labelled"):
            labels = told.get("labels") or [None] * len(told["rows"])
            for cells, label in zip(told["rows"], labels, strict=True):
                if cells is not None:
                    (plain if kind == "observe" else labelled).append(_Row(number, cells, label))
    policies = quiet(bank.policies)
    noted: list[Callable[[], None]] = []

    def learn(rows: Sequence[_Row], has_labels: bool, seen: bool) -> None:
        table = make_table([row.cells for row in rows])
        y, note, again = None, None, dict[str, Any]()
        if has_labels:
            y = bank.read_labels([row.label for row in rows], len(rows))
            if watch is not None:
                note = watch(bank, table, y, [row.served for row in rows])
            if retraining is not None:
                again = retraining(bank, table, y)
        bank.observe(table, y, seen=seen, policies=policies, **again)
        if note is not None:
            noted.append(note)

    for rows, has_labels, seen in (
        (plain, False, False),
        (labelled, True, False),
        (late, True, True),
    ):
        for batch in _alike(rows):
            try:
                learn(batch, has_labels, seen)
            except _OF_THE_MACHINE:
                raise
            except ERRORS:
                for alone in _by_operation(batch):
                    try:
                        learn(alone, has_labels, seen)
                    except _OF_THE_MACHINE:
                        raise
                    except ERRORS as error:
                        refused[alone[0].operation] = str(error)
    for note in noted:
        note()
    return refused


def _rows_of(X: MultiHot) -> list[NDArray[Any]]:
    """The features of each row."""
    return np.split(X.ids, X.row_ptr[1:-1])


def _alike(rows: Iterable[_Row]) -> list[list[_Row]]:
    """Rows of the same columns together, in the order of the first of each."""
    groups: dict[frozenset[str], list[_Row]] = {}
    for row in rows:
        groups.setdefault(frozenset(row.cells), []).append(row)
    return list(groups.values())


def _by_operation(rows: Iterable[_Row]) -> list[list[_Row]]:
    groups: dict[int, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.operation, []).append(row)
    return list(groups.values())


def quiet(policies: Policies) -> Policies:
    """The same policies; what they would warn of is told by answers and metrics here."""

    def word(policy: Any, instead: str) -> Any:
        if isinstance(policy, Mapping):
            return {name: word(one, instead) for name, one in policy.items()}
        return instead if policy == "warn" else policy

    words = (policies.new_columns, policies.new_values, policies.missing_columns)
    if all(isinstance(one, str) and one != "warn" for one in words):
        return policies
    return Policies(
        word(policies.new_columns, "extrapolate"),
        word(policies.new_values, "extrapolate"),
        word(policies.missing_columns, "ignore"),
    )


# ---- bundles as bytes ----------------------------------------------------------------------------


def pack(folder: Path, **more: bytes) -> tuple[str, bytes]:
    """A bundle's hash, and its files as one piece; more files may go with them."""
    read_bundle(folder)  # verified
    meta = (folder / "meta.json").read_bytes()
    told = json.loads(meta)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("meta.json", meta)
        for entry in told["files"].values():
            archive.writestr(entry["name"], (folder / entry["name"]).read_bytes())
        for name, extra in more.items():
            archive.writestr(f"{name}.extra", extra)
    return told["digest"], content.getvalue()


def unpack(content: bytes, *, trusted: bool = False) -> tuple[FeatureBank, dict[str, bytes]]:
    """The bank that `pack` took in, and the files that went with it."""
    extra = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for name in archive.namelist():
                    if name.endswith(".extra"):
                        extra[name.removesuffix(".extra")] = archive.read(name)
                    elif _FILE.fullmatch(name):
                        (Path(folder) / name).write_bytes(archive.read(name))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise DataFileError(f"no packed bundle ({error}).") from None
        return FeatureBank.load(folder, trusted=trusted), extra


def pack_rows(kept: Sequence[tuple[Table, NDArray[Any], Any]]) -> dict[str, bytes]:
    """Labelled rows that a bank keeps to be trained on again, as files that go with a snapshot."""
    files = dict[str, bytes]()
    for number, (table, labels, _) in enumerate(kept):
        frame, y = io.BytesIO(), io.BytesIO()
        pl.DataFrame(dict(table.columns)).write_ipc(frame)
        np.save(y, labels, allow_pickle=False)
        files |= {f"rows{number}": frame.getvalue(), f"labels{number}": y.getvalue()}
    return files


def unpack_rows(files: Mapping[str, bytes]) -> tuple[tuple[Table, NDArray[Any], None], ...]:
    """What `pack_rows` wrote."""
    kept: list[tuple[Table, NDArray[Any], None]] = []
    while f"rows{len(kept)}" in files:
        frame = pl.read_ipc(io.BytesIO(files[f"rows{len(kept)}"]))
        y = np.load(io.BytesIO(files[f"labels{len(kept)}"]), allow_pickle=False)
        kept.append((Table(len(frame), {c.name: c for c in frame}, frame), y, None))
    return tuple(kept)


# ---- the bank that lives -------------------------------------------------------------------------


class LiveBank:
    """A bank that learns while it serves, and loses nothing that was acknowledged.

    Parameters
    ----------
    bundle
        The folder that `fit` wrote.
    state
        A folder or ``postgresql://...``: see `openfate.serving.log`.
    replay
        Whether a state of another bundle is taken over, its log replayed on this one; by default it
        is refused.
    keep_days
        How long rows are kept, so that labels find them, labels can be revised, rows forgotten, and
        the state rolled back.
    commit_s
        How long the committer waits for more to write at once, where several write.
    most_waiting
        Operations that may wait to be written, and entries to be learned.
    snapshot_entries
        Entries between two snapshots.
    poll_s
        How often to look for what other processes wrote, where nobody tells: PostgreSQL does.
    train
        Gives the rows that a bundle's bank was fitted on, and their labels: see `remind` of an
        estimator.  The model trained again is then one more way to predict, whenever labels have
        grown enough; see Notes.
    trusted
        See `FeatureBank.load`.

    Attributes
    ----------
    bank
        What predictions read; replaced as a whole by a replay.
    position
        Of the last entry that the bank has learned from.
    worth
        What labels said of it.
    trouble, unwritten, unkept
        Why the log cannot be followed, why what was told last could not be written, and why no
        snapshot of it could be; None where all is well.
    trainings, untrained
        How often this process has trained the model again, and why it failed at last; its
        predecessor is used on then.

    Notes
    -----
    A state that was made with the rows of `fit` is another one than without: it names them by their
    hash, and is refused to who does not give the same ones, unless it is to be replayed.  The model
    is trained by the thread that learns, at fixed counts of labels, from the rows of `fit` and the
    labelled rows in log order (the newest 100,000, which snapshots keep): the same log gives the
    same models.  Predictions go on meanwhile; what is observed is durable and waits to be learned.

    Examples
    --------
    >>> import tempfile
    >>> from openfate import FATEClassifier
    >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
    >>> folder = Path(tempfile.mkdtemp())
    >>> FATEClassifier(epochs=5).fit(rows, rows["job"] == "nurse").save(folder / "bundle")
    >>> with LiveBank(folder / "bundle", str(folder / "state")) as live:
    ...     ticket = live.submit({"kind": "observe", "rows": [{"job": "judge"}], "ids": ["r1"]})
    ...     why = ticket.applied.result()
    ...     live.position, live.bank.n_rows
    (1, 61)
    """

    bank: FeatureBank
    worth: Worth
    # Its hash; where the model is trained again, that of the rows of `fit` behind it.
    bundle: str = ""

    def __init__(
        self,
        bundle: str | Path,
        state: str,
        *,
        replay: bool = False,
        keep_days: float = 30.0,
        commit_s: float = 0.03,
        most_waiting: int = 2000,
        snapshot_entries: int = 5000,
        poll_s: float = 0.2,
        train: Callable[[FeatureBank], tuple[Any, Any]] | None = None,
        trusted: bool = False,
    ) -> None:
        if not keep_days >= 0:
            raise InputError(f"keep_days={keep_days}: give how many days rows are kept, 0 or more.")
        self.keep_s, self.commit_s, self.poll_s = keep_days * _DAY, commit_s, poll_s
        self.most_waiting, self.snapshot_entries = most_waiting, snapshot_entries
        self.trusted = trusted
        self.trainings = 0
        self.untrained: str | None = None  # why the last training failed
        self._read_training, self._trainers = train, dict[str, Any]()
        self._trainers_lock = threading.Lock()
        self._trainer: Any = None  # of the bank that serves: others may come and go meanwhile
        self._lacking: dict[str, str] = {}  # bundles whose rows of `fit` are not at hand, and why
        digest, content = self._pack(Path(bundle))
        self.log = open_log(state)  # of the committer
        self._reader = open_log(state, verify=False)  # of the follower
        self._reader.damage = self.log.damage
        self.refused = 0  # operations that were durable and could not be learned from
        self.trouble: str | None = None  # why the log cannot be followed now
        self.unwritten: str | None = None  # why the last operations could not be written
        self.unkept: str | None = None  # why there is no newer snapshot
        self.replays = 0
        self._tickets: dict[tuple[int, int], Future[str | None]] = {}
        self._tickets_lock = threading.Lock()
        self._refusals: dict[tuple[int, int], str] = {}  # the last of them
        self.position = 0
        self._stopping, self._is_closing = threading.Event(), False
        self._wake = threading.Event()
        self._queue: queue.Queue[tuple[Operation, Ticket] | None] = queue.Queue(most_waiting)
        self._snapshot_at, self._snapshot_thread = 0, threading.Thread()
        try:
            self._start(digest, content, replay)
        except BaseException:
            self._let_go()
            raise
        self._threads = [
            threading.Thread(target=self._commit_all, name="committer", daemon=True),
            threading.Thread(target=self._follow, name="follower", daemon=True),
            threading.Thread(target=self._listen, name="listener", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _start(self, digest: str, content: bytes, replay: bool) -> None:
        """Take over the state, or begin one."""
        if not self.log.blobs("bundle"):
            self.log.begin(digest, content)
        current = self._current_bundle(*self._rewritten(self.log.head()))
        if digest != current:
            if not replay:
                raise DataFileError(f"{self.log}: {_tell_apart(current, digest)}")
            self._keep_bundle(digest, content)
            self.log.append([{"kind": "bundle", "digest": digest, "from": 0}])
        elif self.log.get_blob("bundle", digest) is None:  # damaged, and here it is again
            self._keep_bundle(digest, content, 0)
        self._rebuild()

    def _keep_bundle(self, digest: str, content: bytes, position: int | None = None) -> None:
        """Have a bundle in the log; the position of one that was there before stays."""
        # WHY: the first of them is that of a state which is rolled back to its beginning.
        position = self.log.head() + 1 if position is None else position
        position = self.log.blobs("bundle").get(digest, position)
        self.log.put_blob("bundle", digest, position, content)

    def __enter__(self) -> LiveBank:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits, learn from it, leave a snapshot, and let go of the log."""
        if self._stopping.is_set():
            return
        self._is_closing = True
        self._queue.put(None)
        self._threads[0].join()
        self._stopping.set()
        self._wake.set()
        for thread in self._threads[1:]:
            thread.join()
        if self._snapshot_thread.is_alive():
            self._snapshot_thread.join()
        try:
            self._catch_up()
            if self.position > self._snapshot_at:
                bank, worth = self.bank.copy(), self.worth.to_json()
                self._keep_snapshot(bank, self.bundle, self.position, worth)
        except (OpenFATEError, OSError) as error:
            self.trouble = str(error)
        self._let_go()

    def _let_go(self) -> None:
        self.log.close()
        self._reader.close()

    # ---- telling it something ------------------------------------------------------------------

    def submit(self, operation: Operation) -> Ticket:
        """Hand in an operation of the log; returns at once.

        Raises
        ------
        BusyError
            Where too much waits already, or it was closed.
        """
        if self._is_closing:
            raise BusyError("this process is being stopped: try again when it is back.")
        ticket: Ticket = Ticket(Future(), Future())
        if operation["kind"] == "rollback":
            self._check_rollback(operation["to"])
        if self.lag > self.most_waiting:
            raise BusyError(f"{self.lag} entries wait to be learned from: try again soon.")
        try:
            self._queue.put_nowait((operation, ticket))
        except queue.Full:
            raise BusyError(
                f"{self.most_waiting} operations wait to be written: try again soon."
            ) from None
        return ticket

    def take_bundle(self, folder: str | Path) -> Ticket:
        """Go over to a new bundle: the log is replayed on it while the old one serves."""
        digest, content = self._pack(Path(folder))
        self._keep_bundle(digest, content)
        return self.submit({"kind": "bundle", "digest": digest, "from": 0})

    @property
    def trains(self) -> bool:
        """Whether it has rows of `fit` to train the model again on."""
        return self._read_training is not None

    @property
    def lag(self) -> int:
        """Entries that this process wrote and has not learned from."""
        return len(self._tickets)

    # ---- the committer -------------------------------------------------------------------------

    def _commit_all(self) -> None:
        stopping, n_last = False, 0
        while not stopping:
            waiting = [self._queue.get()]
            # WHY: who writes alone need not wait for others.  Where there are others, an entry of
            # many operations takes hardly longer to learn than one of a few.
            if self.commit_s and waiting[0] is not None and n_last > 1:
                time.sleep(self.commit_s)
            while len(waiting) < self.most_waiting:
                try:
                    waiting.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            stopping, n_last = None in waiting, len(waiting)
            group: list[tuple[Operation, Ticket]] = []
            for one in waiting:
                if one is None:
                    continue
                if one[0]["kind"] in REWRITES:  # an entry of its own
                    self._commit(group)
                    self._commit([one])
                    group = []
                else:
                    group.append(one)
            self._commit(group)

    def _commit(self, group: Sequence[tuple[Operation, Ticket]]) -> None:
        if not group:
            return
        try:
            answers = self.log.append([operation for operation, _ in group], patience_s=3.0)
        except Exception as error:
            known, self.unwritten = isinstance(error, OpenFATEError), str(error)
            for _, ticket in group:
                ticket.durable.set_exception(error if known else LogUnavailableError(repr(error)))
            return
        self.unwritten = None
        for (_, ticket), answer in zip(group, answers, strict=True):
            if isinstance(answer, RefusedError):
                ticket.durable.set_exception(answer)
                continue
            ticket.durable.set_result(answer)
            if answer.place is None:
                ticket.applied.set_result(None)
                continue
            at = (answer.position, answer.place)
            with self._tickets_lock:
                is_late = answer.position <= self.position  # the follower was faster
                if not is_late:
                    self._tickets[at] = ticket.applied
            if is_late:
                ticket.applied.set_result(self._refusals.get(at))
        self._wake.set()

    # ---- the follower --------------------------------------------------------------------------

    def _listen(self) -> None:
        self._reader.listen(self._wake.set, self._stopping.is_set)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(_LISTENING_POLL_S if self._reader.is_listening else self.poll_s)
            self._wake.clear()
            try:
                self._catch_up()
                self.trouble = None
            except OpenFATEError as error:
                self.trouble = str(error)
                self._stopping.wait(self.poll_s)
            except ERRORS as error:  # WHY: predictions go on, and /health tells
                self.trouble = repr(error)
                self._stopping.wait(self.poll_s)

    def _catch_up(self) -> None:
        while entries := self._reader.read(self.position, most=100):
            for entry in entries:
                is_gap = entry.position != self.position + 1
                if is_gap or entry.rewrites:
                    self._rebuild()
                    break
                bank = self.bank.copy()  # WHY: an entry counts whole or not at all
                refused = self._apply(bank, entry, self.worth, self._trainer)
                self.bank = bank
                self._settle(entry, refused)
            self._maintain()

    def _apply(self, bank: FeatureBank, entry: Entry, worth: Worth, trainer: Any) -> dict[int, str]:
        def watch(
            bank: FeatureBank, table: Table, y: NDArray[Any], served: Sequence[Any]
        ) -> Callable[[], None]:
            call = bank.run(table, "state", policies=quiet(bank.policies))
            used, ignored = call.outputs.copy(), call.P0.copy()
            new = [row[row >= bank.n_observed].tolist() for row in _rows_of(call.X)]
            for at, told in enumerate(served):
                if told is not None and len(told[0]) == used.shape[1]:
                    used[at], ignored[at] = told

            def note() -> None:
                worth.hear(new, call.P0, y)
                worth.add(entry.at, used, ignored, y)

            return note

        return apply_entry(bank, entry, self._reader, watch, self._retraining(trainer))

    def _settle(self, entry: Entry, refused: dict[int, str]) -> None:
        """Tell those who wait for an entry that the bank has learned from it."""
        self.refused += len(refused)
        for place, why in refused.items():
            self._refusals[entry.position, place] = why
            if len(self._refusals) > 1000:
                del self._refusals[next(iter(self._refusals))]
        with self._tickets_lock:
            self.position = entry.position
            mine = [key for key in self._tickets if key[0] <= entry.position]
            waiting = [(key, self._tickets.pop(key)) for key in mine]
        for at, applied in waiting:
            applied.set_result(self._refusals.get(at))

    # ---- replays -------------------------------------------------------------------------------

    def _rewritten(self, head: int) -> tuple[list[Entry], list[range]]:
        """What rewrote the log up to a position, and the positions that do not count."""
        rewriting = self._reader.rewriting(head)
        return rewriting, voided(rewriting)

    def _current_bundle(self, rewriting: Sequence[Entry], void: Sequence[range]) -> str:
        """The hash of the bundle that the state is of."""
        for entry in reversed(rewriting):
            for told in entry.operations:
                if told["kind"] == "bundle" and not any(entry.position in r for r in void):
                    return str(told["digest"])
        if first := self._reader.first:  # compacted: the snapshots know
            for name, at in reversed(self._reader.blobs("snapshot").items()):
                if at >= first and (found := self._reader.get_blob("snapshot", name)) is not None:
                    with zipfile.ZipFile(io.BytesIO(found)) as archive:
                        return str(json.loads(archive.read("live.extra"))["bundle"])
        bundles = self._reader.blobs("bundle")
        return min(bundles, key=lambda name: bundles[name])

    def _rebuild(self) -> None:
        """Replay the log, from the newest snapshot that holds or from the bundle, and swap."""
        while True:
            first = self._reader.first
            try:
                swap = self._replay(first)
            except LogDamagedError:
                if self._reader.first == first:
                    raise
            else:
                if self._reader.first == first:
                    swap()
                    return
            # WHY again: what was dropped meanwhile is not in the snapshot that it began with.

    def _replay(self, first: int) -> Callable[[], None]:
        """The same where the log begins at a position; what swaps."""
        log = self._reader
        head = log.head()
        rewriting, void = self._rewritten(head)
        digest = self._current_bundle(rewriting, void)
        trainer = self._find_trainer(digest)
        bank, position, worth = self._base(rewriting, void, digest)
        last = Entry(head, 0.0, ())
        refused: dict[int, str] = {}
        n_refused = 0
        for last in log.stream(max(position, first), head):
            n_refused, refused = n_refused + len(refused), {}
            if not any(last.position in taken_back for taken_back in void):
                refused = self._apply(bank, last, worth, trainer)

        def swap() -> None:
            self.bank, self.worth, self.bundle, self._trainer = bank, worth, digest, trainer
            if trainer is not None:
                with self._trainers_lock:
                    self._trainers = {**self._trainers, digest: trainer}
            self.replays += 1
            self.refused = n_refused
            self._settle(last, refused)

        return swap

    def _base(
        self, rewriting: Sequence[Entry], void: Sequence[range], digest: str
    ) -> tuple[FeatureBank, int, Worth]:
        """What a replay begins with: a bank, its position, and what labels had said of it."""
        for name, position in self._holding(rewriting, void).items():
            content = self._reader.get_blob("snapshot", name)
            if content is None:
                continue
            bank, extra = unpack(content, trusted=self.trusted)
            told = json.loads(extra["live"])
            if told["bundle"] == digest:
                bank.hold(unpack_rows(extra))
                self._snapshot_at = max(self._snapshot_at, position)
                return bank, position, Worth.from_json(bank.task, told["worth"])
        bank = self._first_bank(digest)
        return bank, 0, Worth(bank.task)

    def _first_bank(self, digest: str) -> FeatureBank:
        content = self._reader.get_blob("bundle", digest)
        if content is None:
            raise DataFileError(
                f"the state's bundle {digest[:12]} is missing or damaged; restore a backup."
            )
        return unpack(content, trusted=self.trusted)[0]

    def _holding(self, rewriting: Sequence[Entry], void: Sequence[range]) -> dict[str, int]:
        """Snapshots that what was rewritten since did not touch, the newest first."""
        changed = [
            (entry.position, told["from"])
            for entry in rewriting
            for told in entry.operations
            # A label revised or a row forgotten stays so, whatever is rolled back.
            if told["kind"] in ("revise", "forget")
            or (told["kind"] in REWRITES and not any(entry.position in r for r in void))
        ]
        least = self._reader.first  # a crash may have left older ones, which stand for nothing
        return {
            name: at
            for name, at in self._reader.blobs("snapshot").items()
            if at >= least and not any(position > at >= first for position, first in changed)
        }

    # ---- training again ------------------------------------------------------------------------

    def _pack(self, folder: Path) -> tuple[str, bytes]:
        """A bundle's name in the state, and its files as one piece; refuses what cannot serve."""
        digest, content = pack(folder)
        # WHY from these bytes: they are kept, and somebody may be writing to the folder.
        bank, _ = unpack(content, trusted=self.trusted)
        _check_servable(bank)
        return self._name(digest, bank), content

    def _name(self, digest: str, bank: FeatureBank) -> str:
        """What the state is a function of beside its log: the bundle, and the rows of `fit`.

        Reads the rows, and keeps what trains on them.
        """
        if self._read_training is None:
            return digest
        trainer = from_bank(bank).remind(*self._read_training(bank))
        name = f"{digest}-{trainer.training_hash[:16]}"
        with self._trainers_lock:
            before = [other for other in self._trainers if other not in (name, self.bundle)][-1:]
            kept = {n: self._trainers[n] for n in (*before, self.bundle) if n in self._trainers}
            self._trainers = {**kept, name: trainer}  # of the one before too: to roll back
        return name

    def _find_trainer(self, bundle: str) -> Any:
        """What has the rows of `fit` of a bundle, which another process may have brought.

        Returns
        -------
            None for a bundle whose model is not trained again.

        Raises
        ------
        DataFileError
            Where they are not at hand.
        """
        digest, _, rows = bundle.partition("-")
        if not rows:
            return None
        if (trainer := self._trainers.get(bundle)) is not None:
            return trainer
        if bundle not in self._lacking:
            why = "no rows are given"
            try:
                if self._read_training is not None:
                    if self._name(digest, self._first_bank(bundle)) == bundle:
                        return self._trainers[bundle]
                    why = "other rows are given"
            except (OpenFATEError, OSError) as error:
                why = str(error)
            self._lacking[bundle] = why  # WHY: to read them again at every look takes all the time
        raise DataFileError(
            f"the model of this state is trained again on the rows that bundle {digest[:12]} was "
            f"fitted on ({self._lacking[bundle].rstrip('.')}); start again with those (train)."
        )

    def _check_rollback(self, to: int) -> None:
        """Refuse to go back to a bundle whose rows of `fit` are not at hand."""
        if not 0 <= to <= self.log.head():
            return  # the log refuses it itself
        bundle = self._current_bundle(*self._rewritten(to))
        if "-" in bundle and bundle not in self._trainers:
            raise RefusedError(
                f"the bundle of then, {bundle[:12]}, is trained again on rows that this process "
                "does not have",
                field="to",
                remedy="start it with that bundle and its rows (train, replay)",
                status=409,
            )

    def _retraining(self, trainer: Any) -> Retraining | None:
        """What trains the model again; a training that fails is none."""
        if trainer is None:
            return None

        def retraining(bank: FeatureBank, table: Table, y: NDArray[Any]) -> dict[str, Any]:
            options = trainer.retraining(bank, table, y)
            if not options:
                return {}
            train = options["retrain"]

            def train_or_tell(n_rows: int, encoder: Encoder) -> Any:
                try:
                    model = train(n_rows, encoder)
                except _OF_THE_MACHINE:
                    raise
                except ERRORS as error:  # WHY: labels are learned from all the same
                    self.untrained = repr(error)
                    return None
                if model is not None:
                    self.trainings, self.untrained = self.trainings + 1, None
                return model

            return {**options, "retrain": train_or_tell}

        return retraining

    # ---- snapshots -----------------------------------------------------------------------------

    def _maintain(self) -> None:
        due = self.position - self._snapshot_at >= self.snapshot_entries
        if due and not self._snapshot_thread.is_alive():
            self._snapshot_at = self.position
            told = (self.bank.copy(), self.bundle, self.position, self.worth.to_json())
            self._snapshot_thread = threading.Thread(target=self._try_snapshot, args=told)
            self._snapshot_thread.start()

    def _try_snapshot(
        self, bank: FeatureBank, bundle: str, position: int, worth: dict[str, Any]
    ) -> None:
        try:
            self._keep_snapshot(bank, bundle, position, worth)
            self.unkept = None
        except ERRORS as error:  # WHY: the log has all of it; the next one is tried again
            self.unkept = f"no snapshot could be kept: {error}"

    def _keep_snapshot(
        self, bank: FeatureBank, bundle: str, position: int, worth: dict[str, Any]
    ) -> None:
        """Write a snapshot, and drop what it stands for and nobody needs any more."""
        told = json.dumps({"bundle": bundle, "worth": worth}).encode()
        with tempfile.TemporaryDirectory() as folder:
            bank.save(Path(folder) / "bank")
            _, content = pack(Path(folder) / "bank", live=told, **pack_rows(bank.kept))
        self.log.put_blob("snapshot", f"{position:015}", position, content)
        # WHY alone: what is rewritten meanwhile may need the entries, or not hold the snapshot.
        with self.log.alone():
            holding = self._holding(*self._rewritten(self._reader.head()))
            old = self.log.moment(self.log.clock() - self.keep_s)
            floor = max((at for at in holding.values() if at <= old), default=self.log.first)
            self.log.compact(floor)
        with self.log.alone():  # WHY again: a transaction that fails brings no file back
            holding = self._holding(*self._rewritten(self._reader.head()))
            first, found = self.log.first, self.log.blobs("snapshot")
            # WHY the first, though a new bundle may not use it: a rollback leads back to it.
            kept = {*list(holding)[:3], *(name for name, at in found.items() if at == first)}
            for name in found:
                if name not in kept:
                    self.log.drop_blob("snapshot", name)


def _tell_apart(current: str, given: str) -> str:
    """Why a state is refused to a bundle, by the names of both."""
    (of, _, rows), (digest, _, given_rows) = current.partition("-"), given.partition("-")
    if of != digest:
        return (
            f"is the state of another bundle ({current[:12]}, not {given[:12]}); start that one, "
            "give another state, or replay=True to replay its log on this bundle."
        )
    if not given_rows:
        return (
            "was made with the rows of fit at hand, on which its model is trained again; give them "
            "(train), or replay=True to replay its log without."
        )
    was = "other rows of fit" if rows else "no rows of fit at hand"
    return f"was made with {was}; start without train, or replay=True to replay its log with these."


def _check_servable(bank: FeatureBank) -> None:
    """Refuse a bank whose rows cannot be kept as the log keeps them."""
    hashed = [field.name for field in bank.encoder.schema if field.hashed]
    model = bank.model
    if hashed and isinstance(model, Wrapped) and model.texts is None:
        raise InputError(
            f"field {hashed[0]!r} is hashed and the wrapped model reads its text: a log would have "
            "to keep it; wrap a model that takes numbers, or fit without hashing."
        )
