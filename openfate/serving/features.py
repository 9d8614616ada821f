"""Features of a live bank, as its page and GET /features show them.

D observed features; those with an id from D on are new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.bank import FeatureBank, Floats, Network, average_effects, nearest
from openfate.errors import InputError

_MOST = 300  # features on the map: the most frequent observed ones, and the newest
_CELLS = 3_000_000  # an average row has a cell for each observed feature


def list_features(
    bank: FeatureBank,
    said: Mapping[int, Sequence[float]],
    *,
    new: bool,
    most: int,
    neighbours: int,
) -> list[dict[str, Any]]:
    """Features with their rows, effect and what labels said of them, the most frequent first.

    Parameters
    ----------
    said
        See `Worth.said`.
    new
        Whether only new ones are listed.
    neighbours
        How many of the nearest known features are told of each; 0 takes the least time.
    """
    bank = bank.copy()  # of one moment
    rows = bank.rows
    ids = np.arange(bank.n_observed if new else 0, len(rows))
    ids = ids[np.argsort(-rows[ids], kind="stable")][:most]
    found = _describe(bank, ids, rows)
    for j, told in zip(ids.tolist(), found, strict=True):
        count, happened, ignored = said.get(j, (0, 0.0, 0.0))
        told["labels"] = int(count)
        told["happened"] = happened / count if count else None
        told["ignored"] = ignored / count if count else None
        told["nearest"] = _nearest(bank, j, neighbours)
    return found


def _describe(bank: FeatureBank, ids: NDArray[Any], rows: Floats) -> list[dict[str, Any]]:
    if not len(ids):
        return []
    step = max(1, _CELLS // max(1, bank.n_observed))
    parts = [average_effects(bank, ids[at : at + step].tolist()) for at in range(0, len(ids), step)]
    effects = np.concatenate(parts)
    names = [str(name) for name in bank.classes] or ["prediction"]
    told = []
    for j, effect in zip(ids.tolist(), effects, strict=True):
        field, value = bank.encoder.describe(j)
        told.append(
            {
                "field": field,
                "value": value,
                "rows": int(rows[j]),
                "new": j >= bank.n_observed,
                "effect": dict(zip(names, map(float, effect), strict=True)),
            }
        )
    return told


def _nearest(bank: FeatureBank, feature: int, k: int) -> list[dict[str, Any]]:
    if not k:
        return []
    field, value = bank.encoder.decode(feature)
    if isinstance(value, tuple):  # a bucket: any number in it
        value = (value[0] + value[1]) / 2
    if not isinstance(value, str | float | int | None):  # a place on a scale
        return []
    try:
        found: list[dict[str, Any]] = nearest(bank, field, value, k)["nearest"]
    except InputError:
        return []
    return found


def map_features(bank: FeatureBank) -> dict[str, Any]:
    """Features as points: their embeddings in two dimensions, or what they do and how often.

    A network that computes embeddings of new features is shown by the first two principal
    components of the observed ones.  Where new features have none, a point is the effect of the
    feature on the last class and the logarithm of its rows.
    """
    bank = bank.copy()  # of one moment
    rows, first = bank.rows, bank.n_observed
    most = min(_MOST, max(10, _CELLS // max(1, first)))
    observed = np.argsort(-rows[:first], kind="stable")[:most]
    ids = np.concatenate([observed, np.arange(first, len(rows))[-most:]])
    told = _describe(bank, ids, rows)
    at, axes = None, ("embedding 1", "embedding 2")
    if isinstance(bank.model, Network) and bank.embeddings:
        at = _project(bank, bank.model, ids)
    if at is None:
        axes = ("effect", "rows")
        effect = [list(one["effect"].values())[-1] for one in told]
        at = np.stack([np.array(effect), np.log10(1 + rows[ids])], 1) if told else np.zeros((0, 2))
    points = [{**one, "x": float(x), "y": float(y)} for one, (x, y) in zip(told, at, strict=True)]
    return {"axes": axes, "points": points}


def _project(bank: FeatureBank, network: Network, ids: NDArray[Any]) -> Floats | None:
    """(J, 2) embeddings along the directions in which those of observed features differ most."""
    running = network.members[0]
    W = running.embeddings(ids.astype(np.int32), bank.encoder.field_of)
    Z = np.asarray(W[:, : running.backbone.width].detach().cpu().numpy(), np.float64)
    known = Z[ids < bank.n_observed]
    if len(known) < 2:
        return None
    middle = known.mean(0)
    _, _, directions = np.linalg.svd(known - middle, full_matrices=False)
    return np.asarray((Z - middle) @ directions[:2].T)
