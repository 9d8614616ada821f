"""How new features will be used: what a probe's decision means for a bank."""

from __future__ import annotations

from openfate.openworld import Pooling

__all__ = ["CAUTIOUS", "LABELS_ONLY"]

CAUTIOUS = Pooling(strength=0.5, alpha=10.0, relative=True)  # where no probe is asked
LABELS_ONLY = Pooling(strength=0.0)  # unlabelled rows say nothing
