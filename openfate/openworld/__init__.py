"""Beyond the paper: extrapolation in the space of predictions, for any fitted model."""

from openfate.openworld.candidates import (
    Candidate,
    Predict,
    UseEvidence,
    View,
    evidence_candidates,
    label_candidates,
)
from openfate.openworld.evidence import Evidence, Floats, Task
from openfate.openworld.pooling import (
    JointEvidence,
    LiveEvidence,
    Pooling,
    pooled_evidence,
    reference_strength,
    score,
)
from openfate.openworld.probe import (
    NONE,
    Decision,
    Novelty,
    choose_pooling,
    hidden_shares,
    hide_features,
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
    "JointEvidence",
    "LiveEvidence",
    "Novelty",
    "Pooling",
    "Predict",
    "Task",
    "UseEvidence",
    "View",
    "choose_pooling",
    "evidence_candidates",
    "hidden_shares",
    "hide_features",
    "judge",
    "label_candidates",
    "new_share",
    "pooled_evidence",
    "probe",
    "reference_strength",
    "row_losses",
    "score",
]
