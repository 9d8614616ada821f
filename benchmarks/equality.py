"""What "equal results" means on a GPU: the fused engine, the PyG twin, and the twin against itself.

50 steps without DropEdge and Dropout from one start.  Rounding differs between any two orders of
summation, and Adam's first steps have the size of the learning rate whatever the gradient's: hence
the twin is also run with the rows of each mini-batch in another order, which changes nothing but
rounding.

Whose weights part, and why?  The embeddings start at about 1e-3 (Glorot with D = 2.65 million),
beside biases of GraphSAGE of about 0.3, and states are scaled to length one: the sums z that the
network reads are nearly the same in all rows, and BatchNorm takes away what is the same.  What is
left has lost digits.  If that is the reason, then
 - gradients of the first step have a relative error far above that of float32 (`first_gradient`);
 - weights whose gradient is below that error part more often (`apart_by_signal`), and so do those
   of rare features, which have few gradients (`apart_by_batches`);
 - with embeddings 30 and 300 times as large it goes away ("start times 30").
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from openfate.models import FATE
from openfate.training import Seeds, Settings, k_shot, predict_batches, train
from openfate_lab.bench.pyg_twin import CtrTwin

Batches = Sequence[tuple[Tensor, Tensor]]
End = tuple[dict[str, Tensor], Tensor]  # weights by name, logits of the last batch
FAR, N_KEPT = 1e-3, 24
# Before BatchNorm: no gradient but rounding's, which Adam scales up.
IDLE = ("layers.0.bias", "layers.1.bias")
BINS = (0.0, 1.0, 10.0, 100.0, 1000.0, float("inf"))


def as_twin(made: FATE, field_of: Tensor) -> tuple[CtrTwin, dict[str, Tensor]]:
    """A twin that starts from a model, and its weights by the model's names."""
    twin = CtrTwin(field_of, dropout=0.0, drop_edge=0.0)
    pairs = {"W": twin.W}
    for i, at in enumerate((0, 4, 8)):
        pairs[f"backbone.layers.{i}.weight"] = twin.net[at].weight
        pairs[f"backbone.layers.{i}.bias"] = twin.net[at].bias
    for i, at in enumerate((1, 5)):
        pairs[f"backbone.norms.{i}.weight"] = twin.net[at].weight
        pairs[f"backbone.norms.{i}.bias"] = twin.net[at].bias
    for i, conv in enumerate(twin.gnn):
        pairs[f"extrapolator.neighbour.{i}.weight"] = conv.lin_l.weight
        pairs[f"extrapolator.neighbour.{i}.bias"] = conv.lin_l.bias
        pairs[f"extrapolator.root.{i}.weight"] = conv.lin_r.weight
    with torch.no_grad():
        for name, value in pairs.items():
            value.copy_(made.state_dict()[name])
    return twin, pairs


def equality(
    start: FATE, batches: Batches, field_of: Tensor, n_draws: int = 5, times: float = 1.0
) -> dict[str, Any]:
    """Differences after training on all batches, W of the start being multiplied by `times`."""
    start = copy.deepcopy(start)
    start.W.data *= times
    ends = {
        "fused": _engine(start, batches, n_draws, "fused", torch.float32),
        "plain": _engine(start, batches, n_draws, "plain", torch.float32),
        "float64": _engine(start, batches, n_draws, "plain", torch.float64),
        "twin": _twin(start, batches, field_of, n_draws),
        "twin, rows permuted": _twin(start, batches, field_of, n_draws, permuted=True),
    }
    pairs = [("fused", "twin"), ("twin", "twin, rows permuted")]
    pairs += [(side, "float64") for side in ("fused", "plain", "twin")]
    found: dict[str, Any] = {
        f"{one} - {other}": _distances(ends[one], ends[other], start) for one, other in pairs
    }
    apart = (ends["twin"][0]["W"] - ends["twin, rows permuted"][0]["W"]).abs() > FAR
    found["apart_by_batches"] = _by_batches(batches, apart)
    return {**found, **_signal(start, batches[0], field_of, n_draws, apart)}


def _engine(start: FATE, batches: Batches, n_draws: int, engine: str, dtype: torch.dtype) -> End:
    made = copy.deepcopy(start).to(dtype)
    settings = Settings.clicks(
        n_kept=N_KEPT, n_draws=n_draws, n_ahead=0, drop_edge=0.0, engine=engine
    )
    train(made, lambda epoch: batches, settings=settings, device="cuda")
    ((logits, _),) = predict_batches(made, batches[-1:], device="cuda", engine=engine)
    return dict(made.state_dict()), torch.from_numpy(logits).double()


def _twin(
    start: FATE, batches: Batches, field_of: Tensor, n_draws: int, permuted: bool = False
) -> End:
    twin, pairs = as_twin(start, field_of)
    for number, (ids, y) in enumerate(batches, 1):
        order = torch.randperm(len(y), device=y.device) if permuted else slice(None)
        twin.mini_batch(ids[order].long(), y[order], _masks(ids.size(1), number, n_draws))
    logits = twin.predict(batches[-1][0].long()).double()
    return {name: value.detach() for name, value in pairs.items()}, logits


def _masks(n_fields: int, number: int, n_draws: int) -> Tensor:
    """The kept fields (S, d) of mini-batch `number`, as `train` draws them with seed 0."""
    rng = torch.Generator().manual_seed(Seeds.of(0, number).masks)
    return k_shot(torch.arange(n_fields), N_KEPT, n_draws, rng).float().cuda()


def _distances(one: End, other: End, start: FATE) -> dict[str, Any]:
    """|dW| over all weights that were trained, and by name where some are far apart."""
    begin, all_of, far_of = start.state_dict(), [], {}
    for name in (name for name in one[0] if name in other[0] and _is_trained(name)):
        a, b = one[0][name].double(), other[0][name].double()
        d = (a - b).abs()[(a != begin[name]) | (b != begin[name])]
        all_of.append(d)
        if (d > FAR).any():
            far_of[name] = int((d > FAR).sum())
    d = torch.cat(all_of).sort().values
    return {
        "n_weights": len(d),
        "mean": _short(d.mean()),
        "quantile_999": _short(d[int(0.999 * (len(d) - 1))]),
        "max": _short(d[-1]),
        "share_beyond_1e-3": _short((d > FAR).double().mean()),
        "beyond_1e-3_by_name": far_of,
        "max_logit": _short((one[1] - other[1]).abs().max()),
        "std_logit": _short(other[1].std()),
    }


def _is_trained(name: str) -> bool:
    return not name.endswith((*IDLE, "running_mean", "running_var", "num_batches_tracked"))


def _by_batches(batches: Batches, apart: Tensor) -> list[dict[str, float]]:
    """How many weights are `apart` (D, H), by the number of mini-batches that have the feature."""
    n_batches = torch.zeros(len(apart), device=apart.device)
    for ids, _ in batches:
        n_batches[ids.unique().long()] += 1
    rows = []
    for low, high in ((1, 1), (2, len(batches) - 1), (len(batches), len(batches))):
        beyond = apart[(n_batches >= low) & (n_batches <= high)]
        row = {"batches_from": low, "batches_to": high, "n_weights": beyond.numel()}
        rows.append(row | {"share_apart": _short(beyond.double().mean())})
    return rows


def _signal(
    start: FATE, batch: tuple[Tensor, Tensor], field_of: Tensor, n_draws: int, apart: Tensor
) -> dict[str, Any]:
    """How exact the twin's first gradient of W is, and whose weights are `apart` (D, H) in the end.

    The signal of a weight is its exact gradient over the error of the gradient in float32.
    """
    kept = _masks(batch[0].size(1), 1, n_draws)[0]
    gradient, sums = _first_gradient(start, batch, field_of, kept, torch.float32)
    exact, sums = _first_gradient(start, batch, field_of, kept, torch.float64)
    error = (gradient - exact).abs()
    there = exact != 0
    signal = (exact.abs() / error.clamp_min(1e-30))[there]
    shares = []
    for low, high in itertools.pairwise(BINS):
        inside = (signal >= low) & (signal < high)
        beyond = apart[there][inside].double()
        row = {"signal_from": low, "signal_to": min(high, 1e30), "n_weights": len(beyond)}
        shares.append(row | {"share_apart": _short(beyond.mean() if len(beyond) else 0.0)})
    return {
        "first_gradient": {
            "relative_error": _short(error.norm() / exact.norm()),
            "median_size": _short(exact[there].abs().median()),
            "share_below_1e-8": _short((exact[there].abs() < 1e-8).double().mean()),
            "sums_std_over_mean": _short((sums.std(0) / sums.mean(0).abs()).median()),
        },
        "apart_by_signal": shares,
    }


def _first_gradient(
    start: FATE, batch: tuple[Tensor, Tensor], field_of: Tensor, kept: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The twin's gradient of W (D, H) in float64, and the sums (B, H) that its network reads."""
    twin, _ = as_twin(start, field_of)
    twin.W.data, twin.net, twin.gnn = twin.W.data.to(dtype), twin.net.to(dtype), twin.gnn.to(dtype)
    read: list[Tensor] = []
    twin.net.register_forward_hook(lambda _, inputs, __: read.append(inputs[0].detach().double()))
    ids, y = batch
    logits = twin._logits(ids.long(), kept.to(dtype))
    F.binary_cross_entropy_with_logits(logits, y.to(dtype)).backward()
    assert twin.W.grad is not None
    return twin.W.grad.double(), read[0]


def _short(x: Tensor | float) -> float:
    return float(f"{float(x):.4g}")
