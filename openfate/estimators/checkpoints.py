"""Checkpoints of a fit in a folder, so that one that was killed goes on exactly."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from openfate import __version__
from openfate.errors import DataFileError, OpenWorldWarning
from openfate.files import write_whole
from openfate.training import Checkpoint

_SECONDS = 5.0  # between two checkpoints, at least: an epoch of a small table takes milliseconds


class Checkpoints:
    """The runs of one fit, each the training of one network.

    Parameters
    ----------
    folder
        Where they are kept, in a folder of their own; those of other settings are deleted.
    settings
        All that a run depends on but for the rows.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        about = {**settings, "openfate": __version__, "torch": torch.__version__}
        text = json.dumps(about, sort_keys=True, default=repr)
        self.folder = folder / f"training-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        others = [path for path in folder.glob("training-*") if path != self.folder]
        for path in others:
            shutil.rmtree(path, ignore_errors=True)
        if others:
            warnings.warn(
                f"{folder}: the settings are others than before: the encoded rows are used, and "
                "training begins anew.",
                OpenWorldWarning,
                stacklevel=2,
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._last = time.monotonic()

    def options(self, number: int) -> dict[str, Any]:
        """What `train` is given for the network of a number: where to go on, and what to write."""
        path = self.folder / f"{number}.safetensors"

        def write(checkpoint: Checkpoint) -> None:
            if time.monotonic() - self._last < _SECONDS:
                return
            plain = {name: value.detach().cpu().contiguous() for name, value in checkpoint.items()}
            write_whole(path, safetensors.torch.save(plain))
            self._last = time.monotonic()

        return {"resume": self._read(path), "on_checkpoint": write}

    @staticmethod
    def _read(path: Path) -> Checkpoint | None:
        if not path.exists():
            return None
        try:
            return dict(safetensors.torch.load_file(path))
        except (OSError, safetensors.SafetensorError) as error:
            raise DataFileError(f"{path}: cannot be read ({error}); delete it.") from None
