"""Adam on touched rows and on small models against torch's own optimizers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import assert_near
from torch import Tensor, nn

from openfate.errors import InputError
from openfate.training import LeanAdam, RowAdam
from openfate.training.checkpoint import load_optimizer, optimizer_state

D, C, LR = 30, 3, 1e-2


def touches(seed: int, n_batches: int, scale: float) -> list[tuple[Tensor, list[Tensor]]]:
    """Batches of rows, the first ones touched often and the last hardly ever, and gradients."""
    rng = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(n_batches):
        ids = (torch.rand(4, generator=rng) ** 3 * D).long().unique()
        shape = len(ids), C
        grads = [torch.randn(shape, generator=rng, dtype=torch.float64) * scale for _ in range(3)]
        for grad in grads:
            grad[:, 0] = 0  # a column that never has a gradient
        batches.append((ids, grads))
    return batches


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(D, C, generator=torch.Generator().manual_seed(9), dtype=dtype)


def run_ours(table: Tensor, batches, mode: str = "exact", settle_every: int = 0) -> RowAdam:
    adam = RowAdam(table, LR, mode=mode)
    for number, (ids, grads) in enumerate(batches, 1):
        adam.touch(ids)
        for grad in grads:
            adam.rows.grad = grad.to(table.dtype)
            adam.step()
        adam.release()
        if settle_every and number % settle_every == 0:
            adam.settle()
    adam.settle()
    return adam


def run_torch(table: Tensor, batches, kind: type[torch.optim.Optimizer] = torch.optim.Adam):
    W = nn.Parameter(table.clone())
    optimizer = kind([W], lr=LR)
    for ids, grads in batches:
        for grad in grads:
            W.grad = torch.zeros_like(W).index_copy_(0, ids, grad.to(W.dtype))
            if kind is torch.optim.SparseAdam:
                W.grad = torch.sparse_coo_tensor(
                    ids[None], grad.to(W.dtype), W.shape, is_coalesced=True, check_invariants=False
                )
            optimizer.step()
    return W.detach()


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-6, 3e-8, 1e-9, 1e-11], ids=str)
@pytest.mark.parametrize("n_batches", [1, 3, 40, 200])
def test_touched_rows_equal_dense_adam_whatever_the_size_of_gradients(n_batches, scale):
    """Where gradients are tiny eps rules, and a closed form that neglects it is wrong."""
    table, batches = start(), touches(0, n_batches, scale)
    expected = run_torch(table, batches)
    run_ours(table, batches)
    assert_near(table, expected, 1e-7 * LR)


@settings(max_examples=30)
@given(seed=st.integers(0, 999), settle_every=st.integers(0, 5))
def test_any_pattern_of_touches_and_settling_equals_dense_adam(seed, settle_every):
    batches = touches(seed, 30, 10.0 ** (-(seed % 10)))
    table = start()
    expected = run_torch(table, batches)
    run_ours(table, batches, settle_every=settle_every)
    assert_near(table, expected, 1e-7 * LR)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_single_precision_stays_within_rounding(scale):
    table, batches = start(torch.float32), touches(1, 100, scale)
    exact = run_torch(table.double(), batches)
    dense_error = (run_torch(table, batches) - exact).abs().max()
    run_ours(table, batches)
    assert (table - exact).abs().max() <= 2 * dense_error + 1e-7


def test_rows_are_handed_out_as_they_are_after_all_steps():
    table, batches = start(), touches(2, 20, 1.0)
    expected = run_torch(table, batches)
    adam = RowAdam(table, LR)
    for ids, grads in batches:
        adam.touch(ids)
        for grad in grads:
            adam.rows.grad = grad
            adam.step()
        adam.release()
    assert_near(adam.touch(torch.arange(D)), expected, 1e-7 * LR)


def test_a_row_that_never_had_a_gradient_stays_bit_by_bit():
    table = start()
    before = table.clone()
    run_ours(table, [(torch.tensor([3]), [torch.ones(1, C).double()])] * 30)
    others = torch.arange(D) != 3
    assert torch.equal(table[others], before[others])


def test_dense_mode_is_torchs_adam():
    table, batches = start(), touches(3, 20, 1.0)
    expected = run_torch(table, batches)
    run_ours(table, batches, "dense")
    assert_near(table, expected, 1e-13)


# torch 2.11 warns of a check of sparse tensors that its own optimizer leaves open.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_lazy_mode_is_torchs_sparse_adam():
    table, batches = start(), touches(3, 20, 1.0)
    expected = run_torch(table, batches, torch.optim.SparseAdam)
    run_ours(table, batches, "lazy")
    assert_near(table, expected, 1e-6)  # SparseAdam adds eps before the bias correction
    assert (expected - run_torch(start(), batches)).abs().max() > 1e-3  # and not dense Adam


@pytest.mark.parametrize("mode", ["exact", "lazy", "dense"])
def test_a_saved_state_goes_on_bit_by_bit(mode):
    batches, whole = touches(4, 30, 1e-5), start()
    run_ours(whole, batches, mode)
    table = start()
    adam = RowAdam(table, LR, mode=mode)
    for number, (ids, grads) in enumerate(batches):
        if number == 13:
            state = {name: value.clone() for name, value in adam.state().items()}
            table = table.clone()
            adam = RowAdam(table, LR, mode=mode)
            adam.load_state(state)
        adam.touch(ids)
        for grad in grads:
            adam.rows.grad = grad
            adam.step()
        adam.release()
    adam.settle()
    assert torch.equal(table, whole)


def test_steps_without_a_gradient_still_count():
    table, ids = start(), torch.tensor([2])
    adam = RowAdam(table, LR)
    adam.touch(ids)
    adam.rows.grad = torch.ones(1, C, dtype=torch.float64)
    adam.step()
    adam.step()
    adam.settle()
    ones = torch.ones(1, C, dtype=torch.float64)
    expected = run_torch(start(), [(ids, [ones, torch.zeros_like(ones)])])
    assert_near(table, expected, 1e-12)


def test_touching_twice_is_refused():
    adam = RowAdam(start(), LR)
    adam.touch(torch.tensor([1]))
    with pytest.raises(InputError, match="rows are touched already"):
        adam.touch(torch.tensor([2]))


def test_an_unknown_mode_is_named():
    with pytest.raises(InputError) as error:
        RowAdam(start(), LR, mode="sparse")
    assert str(error.value) == ("adam='sparse' is unknown: choose 'exact', 'lazy' or 'dense'.")


def test_moments_can_be_brought_forward_too():
    """Also those of a row that has arrived: only its moments still change."""
    batches = touches(3, 20, 1.0)
    still = torch.tensor([0])
    batches += [(still, [torch.ones(1, C, dtype=torch.float64)] * 3)] * 100
    ours = run_ours(start(), batches)
    ours.settle(moments=True)
    W = nn.Parameter(start())
    dense = torch.optim.Adam([W], lr=LR)
    for ids, grads in batches:
        for grad in grads:
            W.grad = torch.zeros_like(W).index_copy_(0, ids, grad)
            dense.step()
    state = dense.state[W]
    assert_near(ours.m, state["exp_avg"], 1e-12)
    assert_near(ours.v, state["exp_avg_sq"], 1e-12)
    assert_near(ours.table, W.detach(), 1e-7)


# ---- small models ----------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [None, 0.0, 0.1])
def test_lean_adam_is_torch_s_bit_for_bit_and_goes_on_from_its_state(decay):
    """Also where a tensor has no gradient in some of the steps."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(*shape)) for shape in [(5, 3), (3,), (1, 1)]]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    lean, adam = LeanAdam(ours, 1e-2, decay), torch.optim.Adam(theirs, 1e-2, fused=True)
    if decay is not None:
        adam = torch.optim.AdamW(theirs, 1e-2, weight_decay=decay, fused=True)
    for number in range(20):
        if number == 10:  # each goes on from the state of the other
            states = [optimizer_state(adam), optimizer_state(lean)]
            lean = LeanAdam(ours, 1e-2, decay)
            load_optimizer(lean, states[0])
            load_optimizer(adam, states[1])
        lean.zero_grad()
        adam.zero_grad()
        for place, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            if number % (place + 1) == 0:
                mine.grad = torch.randn_like(mine)
                other.grad = mine.grad.clone()
        lean.step()
        adam.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


def test_lean_adam_of_nothing_does_nothing():
    adam = LeanAdam([], 1e-2)
    adam.zero_grad()
    adam.step()
