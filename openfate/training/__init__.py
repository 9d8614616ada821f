"""Algorithm 1: masking, DropEdge, optimisers, the loop and its two engines."""

from openfate.training.batches import Batch, Batches, array_batches
from openfate.training.dropedge import drop_edges
from openfate.training.engine import Seeds
from openfate.training.loop import Epoch, History, train
from openfate.training.losses import Loss
from openfate.training.masking import k_shot, n_fold
from openfate.training.members import AutoSettings, logits_of, sums_of, train_members
from openfate.training.metrics import StreamingAUC, accuracy, log_loss, probabilities, roc_auc
from openfate.training.optim import LeanAdam, RowAdam
from openfate.training.settings import Compat, Settings, StreamSettings, usable_device
from openfate.training.stream import Step, predict_stream, train_stream

__all__ = [
    "AutoSettings",
    "Batch",
    "Batches",
    "Compat",
    "Epoch",
    "History",
    "LeanAdam",
    "Loss",
    "RowAdam",
    "Seeds",
    "Settings",
    "Step",
    "StreamSettings",
    "StreamingAUC",
    "accuracy",
    "array_batches",
    "drop_edges",
    "k_shot",
    "log_loss",
    "logits_of",
    "n_fold",
    "predict_stream",
    "probabilities",
    "roc_auc",
    "sums_of",
    "train",
    "train_members",
    "train_stream",
    "usable_device",
]
