"""Algorithm 1: one loop over a table or a stream, two engines; masking, DropEdge, optimizers."""

from openfate.training.batches import Batch, Batches, array_batches
from openfate.training.checkpoint import Checkpoint
from openfate.training.history import History, Step
from openfate.training.lines import Lines
from openfate.training.loop import train
from openfate.training.masking import drop_edges, k_shot, n_fold
from openfate.training.metrics import StreamingAUC, accuracy, log_loss, probabilities, roc_auc
from openfate.training.optim import LeanAdam, RowAdam
from openfate.training.prediction import predict_batches
from openfate.training.settings import Compat, EngineName, Settings, check_device

__all__ = [
    "Batch",
    "Batches",
    "Checkpoint",
    "Compat",
    "EngineName",
    "History",
    "LeanAdam",
    "Lines",
    "RowAdam",
    "Settings",
    "Step",
    "StreamingAUC",
    "accuracy",
    "array_batches",
    "check_device",
    "drop_edges",
    "k_shot",
    "log_loss",
    "n_fold",
    "predict_batches",
    "probabilities",
    "roc_auc",
    "train",
]
