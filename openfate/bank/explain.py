"""Explaining: what pushed a prediction, what a bank knows of a feature, what the bank is.

N rows, E entries (a row's feature each), C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.bank.bank import FeatureBank, Graph, Options
from openfate.bank.network import Network
from openfate.errors import InputError, check_integer
from openfate.openworld import Floats, Task
from openfate.table import MultiHot


def contributions(
    bank: FeatureBank,
    rows: Any,
    graph: Graph = "auto",
    at: Sequence[int] | None = None,
    **options: Unpack[Options],
) -> dict[str, list[Any]]:
    """How much each feature of each row moved its output.

    The effect is that of leaving the feature out: the log-odds of the predicted class (of the
    second one for a binary target; of each label; the number itself in regression) with it minus
    without it.  Of a wrapped model only new features can be told.

    Parameters
    ----------
    rows, graph, options
        See `FeatureBank.predict`.
    at
        Places of the rows to explain; all by default.

    Returns
    -------
        Columns of equal length: row, output, field, value, new, effect.
    """
    bank = bank.copy()  # of one moment
    call = bank.run(rows, graph, **options)
    places = np.arange(call.X.n_rows) if at is None else np.asarray(at, dtype=np.intp)
    X, whole = call.X.select_rows(places), _scores(call.outputs[places], bank.task)
    left, of = _leave_one_out(X), places[X.row_of]  # (E, D'), (E,)
    entries, P0 = np.arange(X.nnz), call.P0[of]
    embedded = P0
    if isinstance(call.model, Network):
        P0 = embedded = call.model.predict(left, call.encoder.field_at)
        if bank.embeddings:
            embedded = call.model.predict(left, call.encoder.field_at, drop_new=False)
    elif bank.mixture is None or not bank.mixture.n_labels:
        entries = np.flatnonzero(X.ids >= bank.n_observed)
    less = bank.weigh(call, left, P0, embedded, of)
    effect = whole[X.row_of] - _scores(less, bank.task)  # (E, C)
    entry, output = _explained(bank.task, whole, X.row_of, entries)
    named = [call.encoder.describe(int(feature)) for feature in X.ids[entry]]
    names = bank.classes or ["prediction"]
    return {
        "row": of[entry].tolist(),
        "output": [names[at] for at in output],
        "field": [field for field, _ in named],
        "value": [value for _, value in named],
        "new": (X.ids[entry] >= bank.n_observed).tolist(),
        "effect": effect[entry, output].tolist(),
    }


def _explained(
    task: Task, scores: Floats, row_of: NDArray[np.int64], entries: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs (entry, output) to tell of: one output for each entry, or every label."""
    if task == "multilabel":
        n_labels = scores.shape[1]
        return np.repeat(entries, n_labels), np.tile(np.arange(n_labels), len(entries))
    if task == "multiclass":
        return entries, scores.argmax(axis=1)[row_of[entries]]
    return entries, np.full(len(entries), int(task == "binary"))


def nearest(bank: FeatureBank, field: str, value: str | float | None, k: int = 5) -> dict[str, Any]:
    """Tell what the bank knows of one feature.

    Parameters
    ----------
    field, value
        The feature; of a bucketed field any number in the bucket, None for a missing cell.
    k
        How many of the observed features nearest to it (by the cosine of their embeddings).

    Returns
    -------
        Its id, whether it is new, its number of rows, its neighbours (of a network), and its
        effect: the change of the outputs of an average row that gets the feature.
    """
    check_integer("k", k, 0)
    bank = bank.copy()  # of one moment
    feature = bank.encoder.find(field, value)
    if feature is None:
        raise InputError(
            f"field {field!r} has no value {value!r} in this bank: observe rows that have it."
        )
    network = bank.model if isinstance(bank.model, Network) else None
    return {
        **_named(bank, feature),
        "id": feature,
        "new": feature >= bank.n_observed,
        "nearest": [] if network is None else _neighbours(bank, network, feature, k),
        "effect": _average_effect(bank, feature),
    }


def _named(bank: FeatureBank, feature: int) -> dict[str, Any]:
    field, value = bank.encoder.describe(feature)
    return {"field": field, "value": value, "rows": bank.count_rows(feature)}


def _neighbours(bank: FeatureBank, network: Network, feature: int, k: int) -> list[dict[str, Any]]:
    running, at = network.members[0], np.array([feature], dtype=np.int32)
    own = running.embeddings(at, bank.encoder.field_of)
    H = running.backbone.width  # without what no extrapolator computes
    own, known = own[:, :H], running.W[:, :H].double()
    cosine = torch.nn.functional.cosine_similarity(known, own, dim=1).cpu().numpy()
    others = np.flatnonzero(np.arange(len(cosine)) != feature)
    if not bool(own.any()):  # nothing is known of it, and so no neighbour either
        return []
    order = others[np.argsort(-cosine[others], kind="stable")][:k]
    return [{**_named(bank, int(j)), "cosine": float(cosine[j])} for j in order]


def _average_effect(bank: FeatureBank, feature: int) -> dict[str, float]:
    """What the outputs of an average row change by when it gets the feature."""
    names = bank.classes or ["prediction"]
    (change,) = average_effects(bank, [feature])
    return {str(name): float(by) for name, by in zip(names, change, strict=True)}


def average_effects(bank: FeatureBank, features: Sequence[int]) -> Floats:
    """(J, C) what the outputs of an average row change by when it gets each of J features."""
    bank = bank.copy()  # of one moment
    X = MultiHot.from_rows([[feature] for feature in features], bank.encoder.n_features)
    evidence = bank.evidence
    if isinstance(bank.model, Network):
        before, P = _average_outputs(bank, bank.model, X)
    else:
        before = P = np.zeros((1, 1)) if evidence is None else evidence.state.mean[None]
        P = np.repeat(P, len(features), 0)
    after = P if evidence is None else evidence.move(P, bank.new_part(X))
    if bank.mixture is not None and bank.mixture.n_labels:
        after = bank.mixture.predict(X, P, after)
        without = MultiHot.from_rows([[]], bank.encoder.n_features)
        before = bank.mixture.predict(without, before, before)
    return np.asarray(after - before)


def _average_outputs(bank: FeatureBank, network: Network, X: MultiHot) -> tuple[Floats, Floats]:
    """Outputs of the average training row (1, C), and (J, C) with each of the features of X."""
    share = bank.rows[: bank.n_observed] / max(1.0, bank.n_rows)  # of the rows that have each
    usual = np.flatnonzero(share)
    row = np.concatenate([np.repeat(np.arange(X.n_rows + 1), len(usual)), X.row_of + 1])
    feature = np.concatenate([np.tile(usual, X.n_rows + 1), X.ids])
    part = np.concatenate([np.tile(share[usual], X.n_rows + 1), np.ones(X.nnz)])
    at, of = np.unique(row * np.int64(X.n_features) + feature, return_inverse=True)
    part = np.bincount(of, part)
    row, feature = np.divmod(at, X.n_features)
    rows = MultiHot.from_entries(row, feature, X.n_rows + 1, X.n_features, part)
    P = network.predict(rows, bank.encoder.field_at, drop_new=not bank.embeddings)
    return P[:1], P[1:]


def describe(bank: FeatureBank) -> dict[str, Any]:
    """What the bank is, for people and programs: fields, sizes, settings, metrics."""
    bank = bank.copy()  # of one moment
    encoder = bank.encoder
    field_of = encoder.field_of
    new = np.arange(len(field_of)) >= bank.n_observed
    fields = [
        {
            "name": field.name,
            "kind": field.kind,
            "observed_features": int(np.sum((field_of == index) & ~new)),
            "new_features": int(np.sum((field_of == index) & new)),
        }
        for index, field in enumerate(encoder.schema)
    ]
    return {
        "task": bank.task,
        "classes": [str(name) for name in bank.classes],
        "observed_features": bank.n_observed,
        "new_features": int(new.sum()),
        "fields": fields,
        "exclude": list(bank.exclude),
        "policies": bank.policies.to_dict(),
        "labels": 0 if bank.mixture is None else bank.mixture.n_labels,
        "weights": {} if bank.mixture is None else bank.mixture.describe(),
        "meta": bank.meta,
    }


def _scores(outputs: Floats, task: Task) -> Floats:
    """Log-odds of probabilities; numbers as they are."""
    if task == "regression":
        return outputs
    p = np.clip(outputs, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def _leave_one_out(X: MultiHot) -> MultiHot:
    """(E, D): for each entry of X its row without it."""
    degree = X.row_degree
    repeated = X.select_rows(np.repeat(np.arange(X.n_rows), degree))
    place = np.arange(X.nnz) - np.repeat(X.row_ptr[:-1], degree)  # of the entry within its row
    left_out = repeated.row_ptr[:-1] + place
    keep = np.ones(repeated.nnz, dtype=bool)
    keep[left_out] = False
    return repeated.select_cells(keep)
