"""Compile openfate/native.c where there is a C compiler; without one the package does it in torch.

`CC` names another compiler than `cc`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O3", "-fPIC", "-shared")


class Native(BuildHookInterface):
    """Before a wheel, or what `pip install -e .` makes, is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to the package."""
        source = Path(self.root, "openfate", "native.c")
        library = source.with_name("libnative.so")
        library.unlink(missing_ok=True)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        try:
            subprocess.run([*compiler, *FLAGS, "-o", library, source, "-lm"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"{source.name} is not compiled ({error}): slower, no less.")
        if library.exists():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["artifacts"].append("openfate/libnative.so")
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
