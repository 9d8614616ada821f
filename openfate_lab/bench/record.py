"""What stands beside a measured number: machine, load, commit, versions and command.

A result goes into a file of its own, so that a folder of them is a history.  Torch and numpy alone.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.files import check_place, writing
from openfate.records import versions
from openfate.training import roc_auc
from openfate_lab.arguments import typed_command


def use_device(device: str) -> None:
    """Refuse a device that is not one of ours or not there; a GPU may use tf32, on both sides."""
    if device not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} is not known: choose cpu or cuda.")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"device {device!r}: there is no GPU that torch can use; choose cpu.")
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True


def tell(text: str) -> None:
    """A line of progress, apart from the result: on stderr."""
    print(text, file=sys.stderr, flush=True)


def megabytes(n_bytes: int | None) -> str:
    """As people read it.

    Examples
    --------
    >>> megabytes(2_000_000), megabytes(None)
    ('2 MB', '?')
    """
    return "?" if n_bytes is None else f"{n_bytes / 1e6:.0f} MB"


def now(device: str) -> float:
    """Seconds on a clock, when all work on the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def score_chances(chance: NDArray[np.floating], y: NDArray[np.integer]) -> dict[str, float]:
    """ROC-AUC and log-loss of chances (n,) of the second class, to four digits.

    Examples
    --------
    >>> score_chances(np.array([0.1, 0.8]), np.array([0, 1]))
    {'auc': 1.0, 'log_loss': 0.1643}
    """
    clipped = np.clip(np.asarray(chance, np.float64), 1e-7, 1 - 1e-7)
    loss = -np.log(np.where(y == 1, clipped, 1 - clipped)).mean()
    return {"auc": round(roc_auc(clipped, y), 4), "log_loss": round(float(loss), 4)}


def about(device: str) -> dict[str, Any]:
    """The machine, how busy it is, the commit of a source checkout, versions and the command."""
    return {
        "device": device,
        "machine": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit_of_checkout() or os.environ.get("OPENFATE_COMMIT") or None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "versions": versions("openfate", "numpy", "torch", "triton", "torch_geometric"),
        "command": typed_command(),
    }


def _processor() -> str:
    """The name of the processor where Linux tells, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


def _commit_of_checkout() -> str | None:
    """With a plus where it was changed; a copy on a machine without git has OPENFATE_COMMIT."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if git("ls-files", __file__) == "":
            return None  # installed inside some other project's checkout
        # WHY: results are written into the checkout; a new one is no change of what was measured.
        packages = ("openfate", "openfate_lab")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *packages)
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def check_out(out: Path | None) -> None:
    """Refuse, before anything is measured, a place where no result can be written."""
    if out is None:
        return
    if out.suffix == ".json":
        if out.is_dir():
            raise InputError(f"{out} is a folder: name a file.")
        check_place(out)
    elif out.is_dir():
        check_place(out / "result.json")
    else:
        raise InputError(f"{out}: give a .json file, or a folder that is there.")


def write_result(result: dict[str, Any], out: Path) -> Path:
    """Write a result to a .json file, or into a folder under a name of its own."""
    if out.suffix != ".json":
        names = (result["bench"], result["device"], result["date"], result["commit"] or "release")
        folder, name = out, "-".join(names)
        out = folder / f"{name}.json"
        numbers = itertools.count(2)
        while out.exists():  # a history loses nothing
            out = folder / f"{name}-{next(numbers)}.json"
    with writing(out) as file:
        file.write((json.dumps(result, indent=1) + "\n").encode())
    return out
