"""Dense Adam fed by tables of touched rows, against torch's Adam and a dense gradient."""

from __future__ import annotations

import pytest
import torch
from fused import DEVICE, as_good_as_plain, needs_kernels

from openfate.training import RowAdam


@needs_kernels
@pytest.mark.parametrize("width", [1, 3, 10])
def test_steps_are_those_of_torch(width):
    from openfate.training.fused.adam import DenseAdam

    torch.manual_seed(0)
    W = torch.randn(50, width, device=DEVICE)
    plain = W.clone().requires_grad_()
    exact = W.double().requires_grad_()
    adams = [torch.optim.Adam([p], lr=1e-2) for p in (plain, exact)]
    table = RowAdam(W.clone(), 1e-2)
    fused = DenseAdam(table)
    room = torch.full((20,), -1, dtype=torch.int32, device=DEVICE)  # larger than the batches
    for number in range(6):
        ids = torch.randperm(50, device=DEVICE)[:15].sort().values
        room[:15] = ids.int()
        fused.set_batch(room)
        one, two = (torch.randn(20, width + 2, device=DEVICE) for _ in range(2))
        if number == 3:
            one, two = one * 1e-9, two * 1e-9  # eps rules
        grad = torch.zeros_like(W)
        grad[ids] = (one + two)[:15, :width]
        for p, adam in zip((plain, exact), adams, strict=True):
            p.grad = grad.to(p.dtype)
            adam.step()
        fused.step(one, two)
    assert float(fused.t) == 6
    as_good_as_plain(table.table, plain.detach(), exact.detach())


@needs_kernels
def test_lazy_steps_are_those_of_the_plain_engines_table():
    """A row that is touched moves on without a gradient; others stand still."""
    from openfate.training.fused.adam import DenseAdam

    torch.manual_seed(0)
    W = torch.randn(50, 3, device=DEVICE)
    plain, exact = (RowAdam(w, 1e-2, mode="lazy") for w in (W.clone(), W.double()))
    table = RowAdam(W.clone(), 1e-2, mode="lazy")
    fused = DenseAdam(table)
    room = torch.full((20,), -1, dtype=torch.int32, device=DEVICE)
    for _ in range(6):
        ids = torch.randperm(50, device=DEVICE)[:15].sort().values
        room[:15] = ids.int()
        fused.set_batch(room)
        gradient = torch.randn(20, 4, device=DEVICE)
        gradient[::2] = 0
        for one in (plain, exact):
            one.touch(ids)
            one.step(gradient[:15, :3].to(one.table.dtype))
            one.release()
        fused.step(gradient)
    for name in ("table", "m", "v"):
        as_good_as_plain(getattr(table, name), getattr(plain, name), getattr(exact, name))


@needs_kernels
def test_rows_that_torch_stepped_are_up_to_date():
    from openfate.training.fused.adam import DenseAdam

    table = RowAdam(torch.zeros(6, 2, device=DEVICE), 0.1)
    fused = DenseAdam(table)
    ids = torch.tensor([1, 4], dtype=torch.int32, device=DEVICE)
    fused.set_batch(ids)
    gradient = torch.ones(2, 4, device=DEVICE)
    for _ in range(3):
        fused.step(gradient, gradient)
    table.note_steps(3)
    before = table.table.clone()
    table.settle()
    assert torch.equal(table.table, before) and table.t == 3
    assert table.last.tolist() == [0, 3, 0, 0, 3, 0] and table.upto.tolist() == [3] * 6
