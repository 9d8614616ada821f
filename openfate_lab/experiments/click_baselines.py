"""What the click experiment compares with: new features pooled from their batch, or hashed."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.models import FATE
from openfate.openworld import Floats
from openfate.training import Batch, Batches
from openfate_lab.experiments.feature_baselines import pooling


@torch.no_grad()
def pooled_logits(model: FATE, batches: Batches) -> Floats:
    """Logits of a plain network whose new features are pooled from the rows of their batch.

    Linear weights of new features stay zero: only embeddings are pooled.
    """
    model.eval()
    parts = []
    for batch in itertools.starmap(Batch.of, batches):
        observed = batch.ids[batch.ids < len(model.W)]  # ids increase: these come first
        W, H = model.W[observed], model.backbone.width
        embedding = pooling(W[:, :H], batch.X)
        own = torch.cat([W[:, H:], W.new_zeros(len(batch.ids) - len(W), W.size(1) - H)])
        W_hat = torch.cat([embedding, own], 1)
        parts.append(model.backbone.logits(batch.X, W_hat)[:, 0].float().numpy())
    return np.concatenate(parts)


def buckets(field_of: NDArray[np.int32], n_observed: int) -> NDArray[np.int32]:
    """(D',) the bucket of each feature: a field has as many as it has observed features.

    Examples
    --------
    >>> field_of = np.array([0, 0, 1, 0, 1], np.int32)
    >>> np.isin(buckets(field_of, 3)[[0, 1, 3]], [0, 1]).all(), buckets(field_of, 3)[[2, 4]]
    (np.True_, array([2, 2], dtype=int32))
    """
    n_fields = int(field_of.max()) + 1
    size = np.bincount(field_of[:n_observed], minlength=n_fields)
    first = np.cumsum(size) - size
    # A multiplication by a large odd number mixes ids as a hash mixes values.
    mixed = (np.arange(len(field_of), dtype=np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    at = mixed % np.maximum(size, 1).astype(np.uint64)[field_of]
    return (first[field_of] + at.astype(np.int64)).astype(np.int32)
