import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openfate.errors import InputError, OpenFATEError
from openfate.graph import Bipartite, Edges
from openfate.table import MultiHot
from openfate_lab.experiments import gaps
from openfate_lab.experiments import generalization as study
from openfate_lab.experiments.generalization import CELLS, sub_matrices
from openfate_lab.experiments.theory_model import theory_model, train_theory_model


def plans(out, **changes):
    arguments = {"model": "fate", "kept": [0.5], "folds": [2], "datasets": ["digits"], "trials": 1}
    return study.make_plans(**(arguments | {"out": out, "changes": {"epochs": 1}} | changes))


def table(n_rows=40, n_fields=6, seed=0):
    """Rows of one feature of each of `n_fields` fields of two values; the class is field 0's."""
    values = np.random.default_rng(seed).integers(0, 2, (n_rows, n_fields))
    X = MultiHot.from_rows((values + 2 * np.arange(n_fields)).tolist(), n_features=2 * n_fields)
    return X, torch.from_numpy(values[:, 0]), torch.arange(2 * n_fields) // 2


# ---- sub-matrices --------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 8), st.data(), st.booleans(), st.integers(0, 99))
def test_new_units_take_the_place_of_as_many_hidden_ones(n_units, data, columns, seed):
    n_kept = data.draw(st.integers(1, n_units))
    unit_of = torch.arange(4 * n_units) // 2  # as many new units as observed ones
    kept = torch.arange(2 * n_units) // 2 < n_kept
    generator = torch.Generator().manual_seed(seed)
    (shown, known), (swapped, still) = sub_matrices(kept, unit_of, columns, generator)
    assert len(torch.unique(unit_of[shown])) == len(torch.unique(unit_of[swapped]))
    assert shown.sum() == swapped.sum()
    assert not known[2 * n_units :].any() and not still[2 * n_units :].any()
    if columns:
        assert torch.equal(shown, known)
        assert torch.equal(still, swapped & (torch.arange(4 * n_units) < 2 * n_units))
    else:
        assert torch.equal(known[: 2 * n_units], kept) and torch.equal(still, known)
        assert not (swapped[: 2 * n_units] & ~kept).any()  # hidden ones are gone


def test_risks_are_the_mean_over_sub_matrices_of_a_plain_forward():
    X, y, fields = table()
    observed = X.select_features(np.arange(6))
    model = train_theory_model(
        observed, y.numpy(), fields[:6].numpy(), n_kept=2, steps=5, lr=0.1, seed=0
    )
    kept = torch.tensor([True, True, False, False, True, True])
    pair = sub_matrices(kept, fields, False, torch.Generator().manual_seed(0))
    graph = Bipartite.from_multihot(X)
    found = study.risks(model, graph, {"train": (graph, y), "test": (graph, y)}, iter([pair, pair]))
    assert set(found) == set(CELLS)
    assert found["train_new"] == found["test_new"]
    dense = np.zeros((40, 12))
    for i in range(40):
        dense[i, X.ids[X.row_ptr[i] : X.row_ptr[i + 1]]] = 1
    shown, known = (mask.numpy() for mask in pair[1])
    A = dense * shown
    W = np.concatenate([model.W.detach().numpy(), np.zeros((6, 8))]) * known[:, None]
    rows = A @ W / A.sum(1, keepdims=True)
    W_hat = A.T @ rows / np.maximum(A.sum(0), 1)[:, None]
    logits = A @ W_hat @ model.backbone.layers[0].weight.detach().numpy().T
    right = (logits[:, 0] > 0) == y.numpy().astype(bool)
    assert found["train_new"]["accuracy"] == pytest.approx(right.mean())
    p = 1 / (1 + np.exp(-logits[:, 0]))
    loss = -np.log(np.where(y.numpy() == 1, p, 1 - p)).mean()
    assert found["train_new"]["log_loss"] == pytest.approx(loss, rel=1e-5)


# ---- the theory's model --------------------------------------------------------------------------


def test_the_theorys_model_has_an_embedding_and_one_layer_and_no_other_weights():
    model = theory_model(5)
    trained = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"W": (5, 8), "backbone.layers.0.weight": (1, 8)}
    assert model.recompose == "all"


def test_sgd_learns_and_a_seed_repeats_it():
    X, y, fields = table()
    graph = Bipartite.from_multihot(X)
    all_kept = torch.ones(12, dtype=torch.bool)

    def loss(steps):
        model = train_theory_model(
            X, y.numpy(), fields.numpy(), n_kept=4, steps=steps, lr=0.5, seed=3
        )
        logits = model(graph, all_kept, Edges.of(graph)).detach()[:, 0]
        return float(torch.nn.functional.binary_cross_entropy_with_logits(logits, y.float()))

    assert loss(300) < loss(1)
    assert loss(20) == loss(20)


def test_a_step_size_that_diverges_is_said():
    X, y, fields = table()
    with pytest.raises(OpenFATEError, match="training diverged: the loss of epoch"):
        train_theory_model(X, y.numpy(), fields.numpy(), n_kept=6, steps=50, lr=1e12, seed=0)


# ---- trials and summary --------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["fate", "theory"])
def test_a_trial_has_four_cells_for_each_way_of_hiding(tmp_path, model):
    (plan,) = plans(tmp_path, model=model, steps=3)
    record = study.run_trial(plan)
    assert list(record["results"]) == ["k_shot/16", "n_fold/2"][: 2 if model == "fate" else 1]
    result = record["results"]["k_shot/16"]
    assert result["n_units"] == 32
    assert result["score"] == result["cells"]["test_new"]["accuracy"]
    assert plan.finished() is not None
    paths = gaps.write_summary([plan])
    content = json.loads(paths[0].read_text())
    assert [path.name for path in paths[1:]] == ["generalization.png", "generalization.svg"]
    assert {row["gap"] for row in content["rows"]} == {"rows", "features", "both"}
    (bound,) = content["bounds"]
    assert (bound["d"], bound["k"]) == (32, 16)
    assert (bound["T"], bound["lr"]) == ((5, 0.01) if model == "fate" else (3, 0.1))
    assert any("not a guarantee" in sentence for sentence in content["about"])


def test_a_gap_is_positive_where_the_model_does_worse():
    cells = {cell: {"log_loss": 0.5, "accuracy": 0.8} for cell in CELLS}
    cells["test_new"] = {"log_loss": 0.9, "accuracy": 0.6}
    result = {"n_units": 4, "hidden_share": 0.5, "cells": cells, "seconds": 1.0}
    record = {"dataset": "gene", "observed": 0.5, "model": "fate"}
    records = [record | {"seed": seed, "results": {"k_shot/2": result}} for seed in range(3)]
    rows = {(row["gap"], row["metric"]): row for row in gaps.gap_rows(records)}
    assert rows["both", "log_loss"]["mean"] == pytest.approx(0.4)
    assert rows["both", "accuracy"]["mean"] == pytest.approx(0.2)
    assert rows["rows", "accuracy"]["mean"] == 0
    assert rows["both", "log_loss"]["low"] == pytest.approx(0.4)  # no spread, no width


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "theories"}, "Did you mean theory?"),
        ({"kept": [0.0]}, "--kept 0.0: a share lies above 0 and up to 1, such as 0.5."),
        ({"kept": [], "folds": []}, "--kept and --folds is empty"),
        ({"lr": 0.0}, "--lr 0.0: choose a number above 0."),
    ],
)
def test_senseless_studies_are_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        plans(tmp_path, **changes)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []
