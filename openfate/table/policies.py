"""Policies: what to do with new columns, new values and missing columns.

"extrapolate" uses what is new, "ignore" leaves it out, "warn" goes on with a warning, "error"
refuses the frame.  A column that is missing can only be ignored, warned of or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from openfate.errors import InputError

__all__ = ["Policies", "Policy", "Situation"]

Situation = Literal["new_columns", "new_values", "missing_columns"]
Policy = str | Mapping[str, str]

_NEW = ("extrapolate", "ignore", "warn", "error")
_WORDS: dict[str, tuple[str, ...]] = {
    "new_columns": _NEW,
    "new_values": _NEW,
    "missing_columns": ("ignore", "warn", "error"),
}
_DEFAULTS = {
    "new_columns": "extrapolate",
    "new_values": "extrapolate",
    "missing_columns": "ignore",
}


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
                _check(situation, policy, words)
                continue
            for field, word in policy.items():
                if not isinstance(field, str):
                    raise InputError(f"{situation}: the key {field!r} is not a field's name.")
                _check(f"{situation}[{field!r}]", word, words)
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
        return policy.get(field, policy.get("*", _DEFAULTS[situation]))

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


def _check(what: str, word: Any, words: tuple[str, ...]) -> None:
    if not isinstance(word, str) or word not in words:
        some = ", ".join(f'"{known}"' for known in words[:-1])
        also = "" if "[" in what else ", or a mapping from fields to those words"
        raise InputError(f'{what} must be {some} or "{words[-1]}"{also}, not {word!r}.')
