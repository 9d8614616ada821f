import numpy as np
import pytest
import torch

from openfate.errors import InputError
from openfate.openworld import View
from openfate.table import MultiHot
from openfate_lab.experiments.auto import AutoSettings, UseEmbeddings, auto_candidates, fit_auto
from openfate_lab.experiments.embed import ALPHA, learn_map, new_part

SMALL = AutoSettings(width=8, hidden=(8,), epochs=12, batch_size=32)


def rows(seed, n_rows=120, n_classes=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n_rows)
    ids = np.stack([y + n_classes * f for f in range(3)], 1)  # three fields, each the class
    noise = rng.random(ids.shape) < 0.3
    ids = np.where(noise, rng.integers(n_classes, size=ids.shape) + n_classes * np.arange(3), ids)
    return MultiHot.from_fixed(ids, 3 * n_classes), y


X, Y = rows(0)
VALIDATION = rows(1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_it_learns_and_gives_probabilities_of_all_classes(n_classes):
    X, y = rows(0, n_classes=n_classes)
    model = fit_auto(X, y, n_classes, SMALL, validation=rows(1, n_classes=n_classes))
    P = model(X)
    assert P.shape == (120, n_classes)
    np.testing.assert_allclose(P.sum(1), 1)
    assert (P.argmax(1) == y).mean() > 0.7


def test_the_same_seed_gives_the_same_model_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    one, two = (fit_auto(X, Y, 3, SMALL, validation=VALIDATION, seed=4)(X) for _ in range(2))
    assert np.array_equal(one, two)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not np.array_equal(one, fit_auto(X, Y, 3, SMALL, validation=VALIDATION, seed=5)(X))


def test_early_stopping_keeps_the_best_epoch():
    model = fit_auto(X, Y, 3, SMALL, validation=VALIDATION)
    again = fit_auto(X, Y, 3, SMALL, epochs=model.best_epochs)
    assert all(1 <= epoch <= SMALL.epochs for epoch in model.best_epochs)
    assert np.array_equal(model(X), again(X))  # validation rows change nothing but the end


def test_a_feature_without_training_rows_counts_for_nothing():
    wide = X.widen(11)
    model = fit_auto(wide, Y, 3, SMALL, epochs=[2, 2])
    extra = MultiHot.from_rows([[0], [0, 10]], 11)
    one, two = model(extra)
    np.testing.assert_allclose(one, two)


def test_embeddings_move_only_rows_with_new_features():
    model = fit_auto(X, Y, 3, SMALL, validation=VALIDATION)
    X_new = MultiHot.from_rows([[0] if y == 1 else [] for y in Y], 1)
    view = View(model, X, X_new)
    P = UseEmbeddings(0.5)(view)
    assert np.array_equal(P[Y != 1], view.P0[Y != 1])
    assert P[Y == 1, 1].mean() > view.P0[Y == 1, 1].mean()  # the feature stands for class 1


def test_auto_candidates_go_from_simple_to_elaborate():
    simple, elaborate = auto_candidates()
    assert all(name.startswith("evidence") for name in simple)
    assert all(name.startswith("embeddings") for name in elaborate)
    view = View(fit_auto(X, Y, 3, SMALL, epochs=[1, 1]), X, X)
    assert all(np.isfinite(use(view)).all() for use in {**simple, **elaborate}.values())


@pytest.mark.parametrize("seed", range(3))
def test_new_part_agrees_with_its_slow_twin(seed):
    rng = np.random.default_rng(seed)
    old, new = rng.random((6, 4)) < 0.5, rng.random((6, 3)) < 0.5
    W, M = rng.normal(size=(4, 2)), rng.normal(size=(2, 2))
    z = old @ W
    expected = np.zeros((6, 2))
    for i, j in zip(*np.nonzero(new), strict=True):
        others = [r for r in range(6) if new[r, j] and r != i]
        total = sum((z[r] - z.mean(0) for r in others), np.zeros(2))
        expected[i] += total / (len(others) + ALPHA) @ M
    tables = (MultiHot.from_entries(*np.nonzero(t), *t.shape) for t in (old, new))
    np.testing.assert_allclose(new_part(W, M, *tables), expected, atol=1e-12)


def test_equal_embeddings_leave_nothing_to_learn():
    assert not learn_map(np.zeros((9, 2)), X).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_auto(X, Y[1:], 3), "120 rows and 119 labels"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
