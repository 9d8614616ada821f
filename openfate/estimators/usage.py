"""How new features will be used: what a probe's decision means for a bank."""

from __future__ import annotations

from dataclasses import replace

from openfate.openworld import (
    Decision,
    Pooling,
    UseEvidence,
    best_label_alpha,
    evidence_candidates,
)

__all__ = ["CAUTIOUS", "LABELS_ONLY", "pooling_of"]

CAUTIOUS = Pooling(strength=0.5, alpha=10.0, relative=True)  # where no probe is asked
LABELS_ONLY = Pooling(strength=0.0)  # unlabelled rows say nothing


def pooling_of(decision: Decision) -> Pooling:
    """The settings that a probe chose, of unlabelled rows and of labels."""
    chosen = evidence_candidates().get(decision.chosen)
    pooling = chosen.pooling if isinstance(chosen, UseEvidence) else LABELS_ONLY
    return replace(pooling, label_alpha=best_label_alpha(decision.gains))
