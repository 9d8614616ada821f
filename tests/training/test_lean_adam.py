"""The lean Adam of small models against torch's own."""

from __future__ import annotations

import torch
from torch import nn

from openfate.training import LeanAdam


def test_lean_adam_is_torch_s_adam_bit_for_bit():
    """Also where a tensor has no gradient in some of the steps."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(*shape)) for shape in [(5, 3), (3,), (1, 1)]]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    lean, adam = LeanAdam(ours, 1e-2), torch.optim.Adam(theirs, 1e-2, fused=True)
    for number in range(20):
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
