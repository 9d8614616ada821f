"""Beyond the paper: extrapolation in the space of predictions, for any fitted model."""

from openfate.openworld.candidates import (
    Candidate,
    Predict,
    UseEvidence,
    View,
    evidence_candidates,
)
from openfate.openworld.corrections import Corrections, logits_of, to_logits, to_predictions
from openfate.openworld.evidence import (
    Evidence,
    Floats,
    JointEvidence,
    LiveEvidence,
    Pooling,
    Task,
    combine,
    pooled_evidence,
    reference_strength,
    score,
)
from openfate.openworld.mixture import EXPERTS, GROWTH, Labelled, Mixture
from openfate.openworld.probe import (
    NONE,
    Decision,
    Novelty,
    choose_pooling,
    hidden_shares,
    hide_features,
    judge,
    probe,
    row_losses,
)

__all__ = [
    "EXPERTS",
    "GROWTH",
    "NONE",
    "Candidate",
    "Corrections",
    "Decision",
    "Evidence",
    "Floats",
    "JointEvidence",
    "Labelled",
    "LiveEvidence",
    "Mixture",
    "Novelty",
    "Pooling",
    "Predict",
    "Task",
    "UseEvidence",
    "View",
    "choose_pooling",
    "combine",
    "evidence_candidates",
    "hidden_shares",
    "hide_features",
    "judge",
    "logits_of",
    "pooled_evidence",
    "probe",
    "reference_strength",
    "row_losses",
    "score",
    "to_logits",
    "to_predictions",
]
