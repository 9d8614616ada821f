"""Knots on lines: the steps between them are what Adam moves, by touched rows."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from openfate.graph import Bipartite
from openfate.models import FATE, MLP, Members
from openfate.table import MultiHot
from openfate.training import Lines, Settings, log_loss, train
from openfate.training.optim import rate_at

# Two lines of knots, 0-3 and 5-6; the features 4 and 7-9 are on none.
FIELDS = np.array([0, 0, 0, 0, 0, 1, 1, 2, 2, 2])
KNOTS, D = ([0, 1, 2, 3], [5, 6]), 10
ON_LINES = {0, 1, 2, 3, 5, 6}
IS_KNOT = np.isin(np.arange(D), list(ON_LINES))


def make_rows(n: int = 12) -> tuple[MultiHot, np.ndarray]:
    rng, rows, values = np.random.default_rng(0), [], []
    for i in range(n):
        left, t = int(rng.integers(3)), round(float(rng.random()), 3)
        rows.append([4, 5, 7 + i % 3] if i % 4 == 0 else [left, left + 1, 5, 6, 7 + i % 2])
        values.append([1, 1, 1] if i % 4 == 0 else [1 - t, t, 0.25, 0.75, 1])
    row = np.repeat(np.arange(n), [len(ids) for ids in rows])
    X = MultiHot.from_entries(row, np.concatenate(rows), n, D, np.concatenate(values))
    return X, np.arange(n) % 2


def slow(model: FATE, X: MultiHot, y: np.ndarray, s: Settings, seed: int) -> FATE:
    """The twin: Adam written out, on steps between knots, of the rows that a batch touches."""
    model = copy.deepcopy(model)
    moments = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in named(model)}
    order, t = np.random.default_rng([seed, 4]), 0
    n_steps = s.epochs * -(-X.n_rows // s.batch_size)
    for _ in range(s.epochs):
        places = order.permutation(X.n_rows)
        for at in range(0, X.n_rows, s.batch_size):
            part = X.select_rows(places[at : at + s.batch_size])
            labels = torch.from_numpy(y[places[at : at + s.batch_size]])
            model.zero_grad()
            log_loss(
                model.backbone.logits(Bipartite.from_multihot(part), model.W), labels
            ).backward()
            lr, t = s.lr * rate_at(t, n_steps), t + 1
            for name, p in named(model):
                move_slowly(p, moments[name], lr, t, s, part if name == "W" else None)
    return model


def named(model: FATE) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


@torch.no_grad()
def move_slowly(p, moments, lr, t, s, part) -> None:
    (m, v), grad = moments, p.grad.clone()
    rows = range(len(p)) if part is None else sorted({*part.ids.tolist(), *ON_LINES})
    if part is not None:
        for line in KNOTS:
            for place, knot in enumerate(line):
                grad[knot] = sum(p.grad[later] for later in line[place:])
    move = torch.zeros_like(p)
    for row in rows:
        m[row] = 0.9 * m[row] + 0.1 * grad[row]
        v[row] = s.beta2 * v[row] + (1 - s.beta2) * grad[row] ** 2
        root = (v[row] / (1 - s.beta2**t)).sqrt() + 1e-8
        move[row] = -lr * m[row] / (1 - 0.9**t) / root
        p[row] *= 1 - lr * s.weight_decay
    if part is not None:
        for line in KNOTS:
            for knot in reversed(line):
                move[knot] = sum(move[earlier] for earlier in line[: line.index(knot) + 1])
    p += move


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("activate_sum", [True, False])
def test_training_along_lines_is_what_the_twin_writes_out(activate_sum, told, device):
    torch.manual_seed(0)
    model = FATE(D, MLP(3, 2, (4,), activate_sum=activate_sum)).double()
    X, y = make_rows()
    settings = Settings.plain(epochs=3, batch_size=5, lr=0.05, weight_decay=0.1, averaging=False)
    expected = slow(model, X, y, settings, seed=7)
    is_knot = IS_KNOT if told else None
    train(model, X, y, settings, device=device, field_of=FIELDS, is_knot=is_knot, seed=7)
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, atol=1e-9, rtol=1e-9)


def test_a_run_goes_on_from_a_checkpoint_as_if_never_stopped():
    X, y = make_rows()
    settings = Settings.plain(
        epochs=4, batch_size=5, checkpoint_every=2, cell_dropout=0.3, schedule="constant"
    )
    torch.manual_seed(0)
    whole, rest = (FATE(D, MLP(3, 2, (4,))) for _ in range(2))
    kept = {}

    def keep(checkpoint):
        kept.update({k: v.clone() for k, v in checkpoint.items()} if not kept else {})

    train(whole, X, y, settings, field_of=FIELDS, on_checkpoint=keep)
    train(rest, X, y, settings, field_of=FIELDS, resume=kept)
    assert torch.equal(whole.W, rest.W)


def test_the_two_knots_of_a_cell_are_dropped_together():
    X, _ = make_rows()
    within = Lines.of(X, FIELDS).within_cells(X)
    expected = [j > 0 and FIELDS[X.ids[j]] == FIELDS[X.ids[j - 1]] for j in range(X.nnz)]
    first = set(X.row_ptr.tolist())
    assert within.tolist() == [same and j not in first for j, same in enumerate(expected)]


def test_a_table_without_numbers_has_no_lines():
    X = MultiHot.from_rows([[0, 1], [2, 3]], 4)
    assert Lines.of(X, np.zeros(4, int)) is None
    assert Lines.of(X, np.zeros(4, int), np.array([False, True, False, False])) is None
    assert Lines.of(X, None, np.ones(4, bool)) is None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4).filter(lambda sizes: max(sizes) > 1))
def test_gradients_of_steps_and_moves_of_knots_are_dual(sizes):
    """<to_steps(g), m> = <g, to_knots(m)> for lines of any length."""
    fields = np.repeat(np.arange(len(sizes)), sizes)
    X = MultiHot.from_rows([[0]], len(fields))
    lines = Lines.of(X, fields, np.ones(len(fields), bool))
    grad, move = torch.randn(len(fields) + 2, 3).double(), torch.randn(len(fields) + 2, 3).double()
    left = (lines.to_steps_(grad.clone()) * move).sum()
    right = (grad * lines.to_knots_(move.clone())).sum()
    assert torch.isclose(left, right)


def test_lines_start_as_far_from_zero_as_the_draws():
    torch.manual_seed(0)
    fields = np.repeat(np.arange(20), 16)
    W = torch.randn(len(fields), 50)
    Lines.of(MultiHot.from_rows([[0]], len(fields)), fields, np.ones(len(fields), bool)).start(W)
    assert 0.7 < float(W.std()) < 1.3 and abs(float(W.mean())) < 0.05
    steps = W.view(20, 16, 50).diff(dim=1)
    assert float(steps.std()) < 0.6  # neighbours are near one another


def test_members_trained_as_one_give_what_each_says():
    torch.manual_seed(0)
    nets = [MLP(3, 2, (4, 4), activate_sum=True) for _ in range(3)]
    for net in nets:
        nn.init.normal_(net.sum_bias)
    z = torch.randn(5, 9)
    joined = Members(nets)
    expected = torch.stack([net(part) for net, part in zip(nets, z.chunk(3, 1), strict=True)], 1)
    torch.testing.assert_close(joined(z), expected)
    again = torch.stack(
        [net(part) for net, part in zip(joined.split(), z.chunk(3, 1), strict=True)], 1
    )
    torch.testing.assert_close(again, expected)
