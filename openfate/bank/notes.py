"""Notes: what rows teach, kept apart from the bank that they will teach.

Many processes can observe at once: each makes notes of its rows with a copy of the bank
(`FeatureBank.note`), and one of them adds the notes up, in order (`FeatureBank.add`).  What comes
of it is what one process would know that had observed the rows in that order:

- Unlabelled rows are sums (`Counted`), which are added to the bank's; exact up to rounding.
- Labelled rows are kept as they are, with what the model predicts for them (`Told`), and learned
  from when they are added: the weights of experts follow the order of labels, by design.

A bank that was forked keeps the notes of all that it observes (`Fork`), so that two of them, saved
and loaded again, can still be merged.

Everything is small: the features that rows touch, n of them, not all that the bank knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openfate.bank.network import Arrays, under
from openfate.errors import InputError
from openfate.models import More
from openfate.openworld import Evidence, Floats, Sample, Task, Voters
from openfate.table import Growth, MultiHot

Ids = NDArray[np.int32]


class Numbers(NamedTuple):
    """Other ids of features: those below `first` stay, the next ones become `later`."""

    first: int
    later: Ids
    n_features: int

    def __call__(self, ids: Ids) -> Ids:
        """(n,) the ids that features have now."""
        found, is_later = ids.copy(), ids >= self.first
        found[is_later] = self.later[ids[is_later] - self.first]
        return found

    def rename(self, X: MultiHot) -> MultiHot:
        """Rows with the ids that features have now."""
        return MultiHot(X.row_ptr, self(X.ids), self.n_features, X.values)


class Shown(NamedTuple):
    """What rows show of J new features, numbered from 0."""

    evidence: Evidence
    sample: Sample

    def renumber(self, places: NDArray[np.integer], n_features: int) -> Shown:
        """The same where feature j is called ``places[j]``, among `n_features`."""
        evidence = self.evidence.blank().merge(self.evidence, places)
        return Shown(evidence, replace(self.sample, X=self.sample.X.renumber(places, n_features)))

    def merge(self, other: Shown) -> Shown:
        """Both, over the same features."""
        evidence = self.evidence.copy().merge(other.evidence)
        return Shown(evidence, self.sample.merge(other.sample))


@dataclass(frozen=True, eq=False)
class Counted:
    """What unlabelled rows add to the sums of the features that they have.

    Parameters
    ----------
    n_rows
        How many rows.
    ids, rows
        (n,) the features, ascending, and the rows of each.
    sums
        Of each member of a network with an extrapolator; their ids are `ids`.
    shown
        Evidence of those of `ids` that training did not know; None where a bank keeps none.
    """

    n_rows: int
    ids: Ids
    rows: Floats
    sums: tuple[More, ...] = ()
    shown: Shown | None = None

    def renumber(self, numbers: Numbers) -> Counted:
        """The same with other ids."""
        ids = numbers(self.ids)
        at = np.argsort(ids, kind="stable")
        sums = tuple(More(ids[at], more.counts[at], more.messages[at]) for more in self.sums)
        found = replace(self, ids=ids[at], rows=self.rows[at], sums=sums)
        if self.shown is None:
            return found
        new = ids[len(ids) - self.shown.evidence.n_features :]  # in the order of the evidence
        places = np.searchsorted(np.sort(new), new)
        return replace(found, shown=self.shown.renumber(places, len(new)))

    def __add__(self, other: Counted) -> Counted:
        """Both."""
        ids = np.union1d(self.ids, other.ids).astype(np.int32)
        rows = np.zeros(len(ids))
        for part in (self, other):
            rows[np.searchsorted(ids, part.ids)] += part.rows
        pairs = zip(self.sums, other.sums, strict=True)
        sums = tuple(More.stack(pair, pair[0].messages.shape[1]) for pair in pairs)
        found = Counted(self.n_rows + other.n_rows, ids, rows, sums)
        if self.shown is None or other.shown is None:
            return found
        # Features that are new are the last ones of each part, and of both.
        n_new = [shown.evidence.n_features for shown in (self.shown, other.shown)]
        new = [part.ids[len(part.ids) - n :] for part, n in zip((self, other), n_new, strict=True)]
        every = np.union1d(*new)
        one, two = (
            shown.renumber(np.searchsorted(every, part), len(every))
            for shown, part in zip((self.shown, other.shown), new, strict=True)
        )
        return replace(found, shown=one.merge(two))

    def to_arrays(self) -> Arrays:
        """As plain arrays, for a safetensors file."""
        arrays: Arrays = {"n_rows": np.array([self.n_rows]), "ids": self.ids, "rows": self.rows}
        for at, more in enumerate(self.sums):
            arrays |= {f"{at}.counts": more.counts, f"{at}.messages": more.messages}
        if self.shown is not None:
            own = {**self.shown.evidence.to_arrays(), **self.shown.sample.to_arrays()}
            arrays |= {f"evidence.{name}": array for name, array in own.items()}
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], task: Task, n_observed: int
    ) -> Counted:
        """What `to_arrays` gave; raises InputError where it is something else."""
        ids, n_rows = arrays["ids"], int(arrays["n_rows"][0])
        if (np.diff(ids) <= 0).any():
            raise InputError("the features of notes are not ascending")
        n_members = sum(name.removesuffix(".counts").isdigit() for name in arrays)
        sums = tuple(
            More(ids, arrays[f"{at}.counts"], arrays[f"{at}.messages"]) for at in range(n_members)
        )
        if any(len(part) != len(ids) for more in sums for part in more[1:]):
            raise InputError("the sums of notes are of another number of features")
        found = cls(n_rows, ids, arrays["rows"], sums)
        own = under(arrays, "evidence.")
        if not own:
            return found
        evidence = Evidence.from_arrays(own, task)
        if evidence.n_features != int((ids >= n_observed).sum()):
            raise InputError("the evidence of notes is of another number of features")
        sample = Sample.from_arrays(own, evidence.n_features, task)
        return replace(found, shown=Shown(evidence, sample))


@dataclass(frozen=True, eq=False)
class Told:
    """Rows whose labels have come, and what does not depend on the rows before them.

    Parameters
    ----------
    X
        (N, D') their features.
    P0
        (N, C) predictions of the model, new features ignored.
    y, weight
        As `openfate.openworld.Labelled` has them.
    seen
        Whether these rows were observed before, without labels.
    again
        (N, C) of the model that was trained again; None where there is none.
    voter
        (N,) who votes, in a bank that tells sources apart; notes have none.
    """

    X: MultiHot
    P0: Floats
    y: NDArray[Any]
    weight: Floats
    seen: bool
    again: Floats | None = None
    voter: Voters | None = None

    def renumber(self, numbers: Numbers) -> Told:
        """The same with other ids."""
        return replace(self, X=numbers.rename(self.X))

    def to_arrays(self) -> Arrays:
        """As plain arrays, for a safetensors file."""
        optional = {"values": self.X.values, "again": self.again}
        return {
            "seen": np.array([self.seen]),
            **{"row_ptr": self.X.row_ptr, "ids": self.X.ids, "P0": self.P0},
            **{"y": self.y, "weight": self.weight},
            **{name: array for name, array in optional.items() if array is not None},
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], n_features: int) -> Told:
        """What `to_arrays` gave; raises InputError where it is something else."""
        X = MultiHot(arrays["row_ptr"], arrays["ids"], n_features, arrays.get("values"))
        P0, y, weight, again = (arrays.get(name) for name in ("P0", "y", "weight", "again"))
        if P0 is None or y is None or weight is None:
            raise InputError("labelled rows of notes lack an array")
        if any(
            len(part) != X.n_rows for part in (P0, y, weight, *([] if again is None else [again]))
        ):
            raise InputError("labelled rows of notes have different lengths")
        return cls(X, P0, y, weight, bool(arrays["seen"][0]), again)


Call = Counted | Told


class Note(NamedTuple):
    """What one call of `FeatureBank.note`, or several, have to tell."""

    first: int  # features that the bank knew; those from there on are what has `grown`
    grown: tuple[Growth, ...]
    calls: tuple[Call, ...]  # ids are those of the encoder that has grown


class Fork(NamedTuple):
    """Since when a bank keeps notes, and the notes."""

    base: bytes  # the hash of the bank that was forked
    first: int  # features that it knew
    calls: tuple[Call, ...] = ()

    def plus(self, calls: Sequence[Call]) -> Fork:
        """The same with more notes; unlabelled rows that follow one another become one."""
        found = list(self.calls)
        for call in calls:
            if found and isinstance(call, Counted) and isinstance(found[-1], Counted):
                found[-1] += call
            else:
                found.append(call)
        return self._replace(calls=tuple(found))

    def to_arrays(self) -> Arrays:
        """As plain arrays, for a safetensors file."""
        base = np.frombuffer(self.base, np.uint8)
        arrays: Arrays = {"base": base, "first": np.array([self.first])}
        for at, call in enumerate(self.calls):
            arrays |= {f"{at}.{name}": array for name, array in call.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], task: Task, n_observed: int, n_features: int
    ) -> Fork:
        """What `to_arrays` gave; raises InputError where it is something else."""
        first = int(arrays["first"][0])
        if not n_observed <= first <= n_features:
            raise InputError(f"notes begin at {first} features of {n_features}")
        numbers = {name.partition(".")[0] for name in arrays} - {"base", "first"}
        if numbers != {str(at) for at in range(len(numbers))}:
            raise InputError("notes are not numbered from 0 on")
        calls = list[Call]()
        for at in range(len(numbers)):
            own = under(arrays, f"{at}.")
            if np.max(own["ids"], initial=0) >= n_features:
                raise InputError("notes are of features that the vocabulary has not")
            if "seen" in own:
                calls.append(Told.from_arrays(own, n_features))
            else:
                calls.append(Counted.from_arrays(own, task, n_observed))
        return cls(arrays["base"].tobytes(), first, tuple(calls))
