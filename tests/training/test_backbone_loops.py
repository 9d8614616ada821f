"""Every backbone behind every extrapolator, trained by both loops under every masking."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from openfate.errors import InputError
from openfate.graph import Bipartite
from openfate.models import DCN, FATE, GCN, MLP, SGC, Backbone, DeepFM, GraphSAGE, WideDeep
from openfate.table import MultiHot
from openfate.training import Settings, array_batches, predict_batches, train

N_FIELDS, SIZE, H = 3, 4, 4
D = N_FIELDS * SIZE
FIELD_OF = np.arange(D) // SIZE
BY_FIELD = {"pool": "field_linear", "n_fields": N_FIELDS}
BACKBONES: dict[str, Callable[[], Backbone]] = {
    "mlp": lambda: MLP(H, 1, (5,), batch_norm=True, dropout=0.2),
    "mlp by field": lambda: MLP(H, 1, (5,), **BY_FIELD),
    "deepfm": lambda: DeepFM(H, hidden=(5,)),
    "deepfm, extrapolated": lambda: DeepFM(H, hidden=(5,), linear="extrapolated"),
    "deepfm, paper": lambda: DeepFM(H, hidden=(5,), fm="paper"),
    "deepfm, cross": lambda: DeepFM(H, hidden=(5,), fm="cross"),
    "wide and deep": lambda: WideDeep(H, hidden=(5,)),
    "wide and deep, extrapolated": lambda: WideDeep(H, hidden=(5,), linear="extrapolated"),
    "dcn": lambda: DCN(H, hidden=(5,)),
    "dcn by field": lambda: DCN(H, hidden=(5,), **BY_FIELD),
}
EXTRAPOLATORS = [GraphSAGE, GCN, SGC, None]
MASKINGS = {
    "k_shot": {"n_kept": 2, "n_draws": 2},
    "n_fold": {"n_folds": 2},
    "none": {},
}
VALUES = np.random.default_rng(0).integers(0, SIZE, (13, N_FIELDS))  # two mini-batches and a row
IDS = (VALUES + SIZE * np.arange(N_FIELDS)).astype(np.int32)
Y = (VALUES[:, 0] % 2).astype(np.int64)
X = MultiHot.from_rows(IDS.tolist(), D)


def make(name: str, extrapolator: type[nn.Module] | None) -> FATE:
    torch.manual_seed(0)
    backbone = BACKBONES[name]()
    g = None if extrapolator is None else extrapolator(backbone.width, 2)
    return FATE(D, backbone, g, recompose="all")


def moved(before: FATE, after: FATE) -> dict[str, bool]:
    old = before.state_dict()
    return {name: not torch.equal(new, old[name]) for name, new in after.state_dict().items()}


def check_trained(before: FATE, after: FATE) -> None:
    """W, the backbone and the extrapolator have moved, and everything is finite."""
    changed = moved(before, after)
    for part in ("W", "backbone.", "extrapolator."):
        names = [name for name in changed if name.startswith(part)]
        assert not names or any(changed[name] for name in names), part
    assert all(bool(value.isfinite().all()) for value in after.state_dict().values())


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("extrapolator", EXTRAPOLATORS)
@pytest.mark.parametrize("name", BACKBONES)
def test_the_loop_over_a_table_trains_and_predicts(name, extrapolator, masking):
    model = make(name, extrapolator)
    start = copy.deepcopy(model)
    unit = "field" if masking == "k_shot" else "feature"
    settings = Settings(masking=masking, **MASKINGS[masking], unit=unit, epochs=1, batch_size=6)
    history = train(model, X, Y, settings, validation=(X, Y), field_of=FIELD_OF)
    assert np.isfinite(history.steps[0].validation_loss)
    check_trained(start, model)
    later = MultiHot.from_rows([[0, 5, D], [1, D, D + 1]], D + 2)  # D is of field 2, D + 1 of 1
    fields = torch.from_numpy(np.concatenate([FIELD_OF, [2, 1]]))
    graph = Bipartite.from_multihot(later).with_fields(fields)
    assert model.predict(graph, model.extrapolate(graph, fields)).isfinite().all()


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("extrapolator", EXTRAPOLATORS)
@pytest.mark.parametrize("name", BACKBONES)
def test_the_loop_over_a_stream_trains_and_predicts(name, extrapolator, masking):
    model = make(name, extrapolator)
    start = copy.deepcopy(model)
    settings = Settings.clicks(masking=masking, **MASKINGS[masking], lr=1e-2, n_ahead=0)
    history = train(model, array_batches(IDS, Y, 6), settings=settings)
    assert len(history.steps) == 2
    check_trained(start, model)
    new = np.where(VALUES == 0, D + np.arange(N_FIELDS), IDS)
    for drop_new in (False, True):
        ((logits, _),) = predict_batches(model, [(new, Y)], drop_new=drop_new, n_ahead=0)
        assert np.isfinite(logits).all()


# ---- what the loop over a table must know ------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp by field", "dcn by field"])
@pytest.mark.parametrize("batch_size", [None, 50])
def test_fields_side_by_side_learn_what_only_a_field_tells(name, batch_size):
    """The label is whether field 0 and field 1 agree on a sign: each field's weights matter."""
    rng = np.random.default_rng(1)
    values = rng.integers(0, SIZE, (200, N_FIELDS))
    y = (values[:, 0] % 2 ^ values[:, 1] % 2).astype(np.int64)
    rows = MultiHot.from_rows((values + SIZE * np.arange(N_FIELDS)).tolist(), D)
    model = FATE(D, (MLP if "mlp" in name else DCN)(8, 1, (16,), batch_norm=False, dropout=0.0,
                 **BY_FIELD))  # fmt: skip
    settings = Settings(masking="none", epochs=60, lr=0.03, batch_size=batch_size)
    train(model, rows, y, settings, field_of=FIELD_OF)
    graph = Bipartite.from_multihot(rows).with_fields(torch.from_numpy(FIELD_OF))
    with torch.no_grad():
        right = (model.predict(graph, model.W)[:, 0] > 0).numpy() == y
    assert right.mean() > 0.95


def test_a_backbone_that_sums_fields_apart_needs_to_know_them():
    with pytest.raises(InputError) as error:
        train(make("dcn by field", None), X, Y)
    told = "this dcn sums fields apart: give field_of, the field of each feature."
    assert str(error.value) == told


def test_a_field_below_zero_is_refused():
    with pytest.raises(InputError, match="field_of has -1: fields are numbered from 0"):
        train(make("dcn by field", None), X, Y, field_of=FIELD_OF - 1)


def test_batch_norm_refuses_single_rows_and_passes_over_a_last_one():
    with pytest.raises(InputError, match="batch_size=1: BatchNorm needs two rows or more"):
        train(make("mlp", None), X, Y, Settings(masking="none", batch_size=1))
    one, number = X.select_rows(np.array([0])), np.array([0.5])
    for batch_size in (None, 2):
        settings = Settings(masking="none", batch_size=batch_size, loss="squared_error")
        with pytest.raises(InputError, match="one training row: BatchNorm needs two or more"):
            train(make("mlp", None), one, number, settings)
    model = make("mlp", None)
    train(model, X, Y, Settings(masking="none", batch_size=12, epochs=2))  # 12 rows, and one
    assert int(model.backbone.norms[0].num_batches_tracked) == 2
