"""Faces whose names are loaded on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    face: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a module that loads its names on first use.

    Parameters
    ----------
    face
        The module's name.
    homes
        The names that it offers, with spaces between them, by the module that defines them.

    Examples
    --------
    >>> getattr_, dir_ = lazy_names("numbers", {"math": "pi tau", "cmath": "phase"})
    >>> round(getattr_("pi"), 2), dir_()
    (3.14, ['phase', 'pi', 'tau'])
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load_name(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return load_name, lambda: sorted(home_of)
