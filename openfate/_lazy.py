"""What is loaded on first use: the names of a face (PEP 562), the entries of a list of things.

And how copies are made of what is computed on first use.
"""

from __future__ import annotations

import ast
from collections import UserDict
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


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


def read_homes(face: str) -> dict[str, str]:
    """Read what the file of a face imports for type checkers, as `lazy_names` takes it.

    WHY: the imports under TYPE_CHECKING are a list of names and homes already.
    """
    tree = ast.parse(Path(face).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {str(one.module): " ".join(name.name for name in one.names) for one in imports}


class LazyDict(UserDict[str, T]):
    """Things by name, each loaded from its home, "module:name", when it is first asked for.

    WHY: a file that defines one more of them imports what they have in common from the file that
    lists them, which therefore cannot import it.

    Examples
    --------
    >>> roots = LazyDict({"real": "math:sqrt", "complex": "cmath:sqrt"})
    >>> roots["complex"](-4), list(roots)
    (2j, ['real', 'complex'])
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        super().__init__()
        self.data.update(homes)  # type: ignore[arg-type]  # a home stands for what is not loaded

    def __getitem__(self, name: str) -> T:
        found = self.data[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self.data[name] = getattr(import_module(module), attribute)
        return found


class ComputesOnce:
    """With `cached_property`s.

    WHY: a pickle or a deep copy goes through the attributes while another thread may add one.
    """

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))  # at once
