"""Beyond the paper: extrapolation in the space of predictions, for any fitted model."""

from openfate.openworld.candidates import Candidate, Predict, UseEvidence, View, evidence_candidates
from openfate.openworld.evidence import Evidence, Floats, Kind
from openfate.openworld.labels import best_label_alpha, label_candidates
from openfate.openworld.live import LiveEvidence
from openfate.openworld.pooling import Pooling, combine, pooled_evidence, reference_strength, score
from openfate.openworld.probe import (
    NONE,
    Decision,
    Novelty,
    hidden_shares,
    judge,
    new_share,
    probe,
    row_losses,
)

__all__ = [
    "NONE",
    "Candidate",
    "Decision",
    "Evidence",
    "Floats",
    "Kind",
    "LiveEvidence",
    "Novelty",
    "Pooling",
    "Predict",
    "UseEvidence",
    "View",
    "best_label_alpha",
    "combine",
    "evidence_candidates",
    "hidden_shares",
    "judge",
    "label_candidates",
    "new_share",
    "pooled_evidence",
    "probe",
    "reference_strength",
    "row_losses",
    "score",
]
