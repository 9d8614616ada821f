"""The GPU kernels against plain torch: sums, degrees, and which edges DropEdge leaves.

The rule for errors is flash-attention's: against a float64 reference the kernel may be off by at
most twice what plain torch in the same precision is.
"""

from __future__ import annotations

import pytest
import torch
from fused import kept_edges, needs_gpu
from torch import Tensor

from openfate.errors import InputError
from openfate.training.fused import sums as fused_sums
from openfate.training.fused.sums import ALL, BatchGraph, Keep, sum_at_features, sum_at_rows

DIRECTIONS = ["to_rows", "to_features"]
N_FEATURES = 5000

# B, d, width, how ids are drawn
CASES = [
    (1, 1, 1, "uniform"),
    (1, 39, 10, "uniform"),
    (3, 2, 3, "uniform"),
    (33, 7, 16, "skewed"),
    (100, 39, 10, "missing"),
    (1000, 39, 10, "skewed"),
    (1000, 5, 64, "skewed"),
    (2000, 3, 33, "missing"),
    (10_000, 39, 10, "skewed"),
    (10_000, 39, 12, "uniform"),
    (10_000, 3, 8, "hot"),
    (50, 200, 256, "skewed"),
    (700, 2, 300, "hot"),
]


def draw_ids(n_rows: int, n_fields: int, how: str, seed: int = 0) -> Tensor:
    """(B, d) ids below N_FEATURES."""
    rng = torch.Generator().manual_seed(seed)
    uniform = torch.rand(n_rows, n_fields, generator=rng)
    ids = (uniform * N_FEATURES).int()
    if how == "skewed":  # a third of the edges belong to a few features
        ids = (uniform**8 * N_FEATURES).int()
    elif how == "hot":  # one feature has nine edges of ten
        ids[torch.rand(n_rows, n_fields, generator=rng) < 0.9] = 17
    elif how == "missing":
        ids[torch.rand(n_rows, n_fields, generator=rng) < 0.3] = -1
        ids[0] = -1
    return ids


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng).to("cuda", dtype)


def some_keep(batch: BatchGraph, kind: str) -> Keep:
    """A way to drop edges and hide features, by name."""
    seed = torch.tensor([0x1234_5678_9ABC_DEF], device="cuda")
    fields = torch.arange(batch.n_fields, device="cuda") % 3 > 0
    features = torch.arange(batch.n_features, device="cuda") % 4 > 0
    return {
        "all": ALL,
        "dropped": Keep(0.5, seed),
        "masked": Keep(fields=fields, features=features),
        "both": Keep(0.2, seed, fields, features),
        "no_edge": Keep(1.0, seed),
        "no_field": Keep(fields=torch.zeros_like(fields)),
        "no_feature": Keep(features=torch.zeros_like(features)),
    }[kind]


# ---- plain torch ---------------------------------------------------------------------------


def carrying(batch: BatchGraph, keep: Keep) -> Tensor:
    """(B, d) bool: the edges that add something to a sum."""
    carries = kept_edges(batch, keep)
    if keep.fields is not None:
        carries = carries & keep.fields
    if keep.features is not None:
        carries = carries & keep.features[batch.local.T.clamp(min=0)]
    return carries


def plain_sum(direction: str, batch: BatchGraph, table: Tensor, keep: Keep) -> Tensor:
    """Either sum, by explicit (edges, H) messages in the precision of `table`."""
    row, field = carrying(batch, keep).nonzero(as_tuple=True)
    feature = batch.local.T[row, field].long()
    source, target, size = row, feature, batch.n_features
    if direction == "to_rows":
        source, target, size = feature, row, batch.n_rows
    return table.new_zeros(size, *table.shape[1:]).index_add_(0, target, table[source])


def fast_sum(direction: str, batch: BatchGraph, table: Tensor, keep: Keep) -> Tensor:
    work = sum_at_rows if direction == "to_rows" else sum_at_features
    return work(batch, table, keep)[0]


def sizes(direction: str, batch: BatchGraph) -> tuple[int, int]:
    """Lengths of the table and of the sums."""
    both = batch.n_features, batch.n_rows
    return both if direction == "to_rows" else both[::-1]


def assert_as_good_as_plain(fast: Tensor, plain: Tensor, exact: Tensor) -> None:
    assert fast.isfinite().all()
    scale = exact.abs().max() if exact.numel() else 1.0
    error, allowed = (fast - exact).abs(), 2 * (plain - exact).abs()
    if exact.numel():
        assert error.max() <= allowed.max() + 1e-6 * scale
        assert error.norm() <= allowed.norm() + 1e-7 * exact.norm()


# ---- the graph of a batch ------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("how", ["uniform", "skewed", "hot", "missing"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (5000, 13)], ids=str)
def test_a_batch_numbers_its_features_and_lists_their_edges(shape, how):
    ids = draw_ids(*shape, how).cuda()
    batch = BatchGraph.from_ids(ids)
    there = ids >= 0
    assert torch.equal(batch.features, ids[there].unique())
    assert torch.equal(batch.local.T >= 0, there)
    assert torch.equal(batch.features[batch.local.T[there]], ids[there])
    edge = batch.edge[int(batch.ptr[0]) : int(batch.ptr[-1])]
    assert torch.equal(edge.sort().values, there.view(-1).nonzero()[:, 0].int())
    owner = torch.repeat_interleave(batch.features, batch.ptr.diff().long())
    assert torch.equal(owner, ids.view(-1)[edge])


@needs_gpu
def test_sorted_edges_of_a_feature_are_in_the_order_of_rows():
    batch = BatchGraph.from_ids(draw_ids(3000, 4, "hot").cuda())
    owner = torch.repeat_interleave(batch.features, batch.ptr.diff().long())
    same = owner[1:] == owner[:-1]
    assert (batch.edge.diff()[same] > 0).all()


@needs_gpu
def test_every_edge_of_a_feature_with_many_is_in_one_chunk():
    batch = BatchGraph.from_ids(draw_ids(5000, 3, "hot").cuda())
    degree, (feature, start, slot) = batch.ptr.diff(), batch.chunk
    stop = torch.minimum(start + fused_sums.CHUNK, batch.ptr[feature + 1])
    covered = torch.zeros_like(degree).index_add_(0, feature, stop - start)
    assert torch.equal(covered, torch.where(degree > fused_sums.LIGHT, degree, 0))
    assert torch.equal(slot >= 0, degree[feature] > fused_sums.CHUNK)
    assert torch.equal(batch.split[0], (degree > fused_sums.CHUNK).nonzero()[:, 0].int())


@needs_gpu
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (3, 2)], ids=str)
def test_a_batch_without_edges_sums_to_zero(shape):
    ids = torch.full(shape, -1, device="cuda")
    batch = BatchGraph.from_ids(ids)
    assert batch.n_features == 0
    sums, degree = sum_at_rows(batch, random(0, 5))
    assert sums.shape == (shape[0], 5) and not sums.any() and not degree.any()
    assert sum_at_features(batch, random(shape[0], 5))[0].shape == (0, 5)


# ---- sums ----------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["all", "dropped", "both"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sums_are_as_good_as_plain_ones(direction, case, kind, dtype):
    n_rows, n_fields, width, how = case
    batch = BatchGraph.from_ids(draw_ids(n_rows, n_fields, how).cuda())
    keep, (n_in, _) = some_keep(batch, kind), sizes(direction, batch)
    table = random(n_in, width, dtype=dtype)
    out = fast_sum(direction, batch, table, keep)
    assert out.dtype == torch.float32
    exact = plain_sum(direction, batch, table.double(), keep)
    assert_as_good_as_plain(out, plain_sum(direction, batch, table.float(), keep), exact)


@needs_gpu
@pytest.mark.parametrize("kind", ["masked", "no_edge", "no_field", "no_feature"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_masks_hide_messages_but_not_neighbours(direction, kind):
    ids = draw_ids(900, 6, "skewed").cuda()
    batch = BatchGraph.from_ids(ids)
    keep, (n_in, _) = some_keep(batch, kind), sizes(direction, batch)
    table = random(n_in, 10)
    out = fast_sum(direction, batch, table, keep)
    exact = plain_sum(direction, batch, table.double(), keep)
    assert_as_good_as_plain(out, plain_sum(direction, batch, table, keep), exact)
    assert out.any() == (kind == "masked")


@needs_gpu
@pytest.mark.parametrize("kind", ["all", "dropped", "both", "no_edge"])
@pytest.mark.parametrize("how", ["skewed", "hot", "missing"])
def test_degrees_count_what_drop_edge_left(how, kind):
    batch = BatchGraph.from_ids(draw_ids(3000, 5, how).cuda())
    keep = some_keep(batch, kind)
    left = kept_edges(batch, keep)
    degree = sum_at_rows(batch, random(batch.n_features, 4), keep)[1]
    assert torch.equal(degree, left.sum(1).float())
    degree = sum_at_features(batch, random(3000, 4), keep)[1]
    row, field = left.nonzero(as_tuple=True)
    expected = torch.bincount(batch.local.T[row, field], minlength=batch.n_features)
    assert torch.equal(degree, expected.float())


@needs_gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_columns_of_a_wider_table_are_summed_in_place(direction):
    batch = BatchGraph.from_ids(draw_ids(500, 4, "skewed").cuda())
    wide = random(sizes(direction, batch)[0], 12)
    expected = fast_sum(direction, batch, wide[:, :10].contiguous(), ALL)
    for columns in (wide[:, :10], wide.T.contiguous().T[:, :10]):
        torch.testing.assert_close(fast_sum(direction, batch, columns, ALL), expected)


@needs_gpu
@pytest.mark.parametrize("kind", ["all", "both"])
def test_each_sum_is_the_others_backward(kind):
    """They are transposes: <A x, y> = <x, A^T y>."""
    batch = BatchGraph.from_ids(draw_ids(60, 3, "hot").cuda())
    keep = some_keep(batch, kind)
    x, y = (random(n, 2, dtype=torch.float64) for n in (batch.n_features, batch.n_rows))
    one = (sum_at_rows(batch, x, keep)[0] * y).sum()
    torch.testing.assert_close(one, (x * sum_at_features(batch, y, keep)[0]).sum())


@needs_gpu
@pytest.mark.parametrize("kind", ["all", "both"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_runs_give_the_same_bits(direction, kind):
    ids = draw_ids(20_000, 9, "hot").cuda()
    runs = []
    for _ in range(3):
        batch = BatchGraph.from_ids(ids)
        table = random(sizes(direction, batch)[0], 10)
        runs.append(fast_sum(direction, batch, table, some_keep(batch, kind)))
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


@needs_gpu
@pytest.mark.parametrize("kind", ["all", "both"])
@pytest.mark.parametrize("how", ["skewed", "hot", "missing"])
def test_a_batch_in_a_room_gives_the_same_sums_and_zeros_beyond(how, kind):
    ids = draw_ids(6000, 4, how).cuda()
    small = BatchGraph.from_ids(ids)
    U, n_chunks, n_split = small.size
    room = BatchGraph.room(6000, 4, (U + 77, n_chunks + 5, n_split + 3), ids.device)
    room.fill_(draw_ids(6000, 4, "hot", seed=9).cuda())  # something else before
    assert room.fill_(ids).tolist() == [U, n_chunks, n_split]
    keep, wide = some_keep(small, kind), some_keep(room, kind)
    table, on_rows = random(U + 77, 5), random(6000, 5)
    at_rows = sum_at_rows(room, table, wide)
    for out, expected in zip(at_rows, sum_at_rows(small, table[:U], keep), strict=True):
        assert torch.equal(out, expected)
    at_features = sum_at_features(room, on_rows, wide)
    expected_ones = sum_at_features(small, on_rows, keep)
    for out, expected in zip(at_features, expected_ones, strict=True):
        assert torch.equal(out[:U], expected) and not out[U:].any()


@needs_gpu
@pytest.mark.parametrize("less", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (300, 2, 1)], ids=str)
def test_a_room_that_is_too_small_says_so_and_does_no_harm(less):
    ids = draw_ids(6000, 4, "hot").cuda()
    needed = BatchGraph.from_ids(ids).size
    size = tuple(n - short for n, short in zip(needed, less, strict=True))
    room = BatchGraph.room(6000, 4, size, ids.device)
    assert tuple(room.fill_(ids).tolist()[:1]) == needed[:1]
    numbers = torch.cat([room.local.view(-1), room.chunk[0], room.split[0]])
    assert numbers.max() < room.n_features
    assert room.chunk[2].max() < room.chunk.size(1) * min(room.split.size(1), 1)  # slots there are
    assert sum_at_rows(room, random(room.n_features, 5))[0].isfinite().all()
    sum_at_features(room, random(6000, 5))
    torch.cuda.synchronize()


@needs_gpu
def test_a_cuda_graph_replays_a_batch():
    room = BatchGraph.room(500, 3, (1500, 64, 64), torch.device("cuda"))
    ids, table = draw_ids(500, 3, "hot").cuda(), random(1500, 6)
    keep = Keep(0.5, torch.tensor([3], device="cuda"))

    def work() -> tuple[Tensor, Tensor]:
        return room.fill_(ids), sum_at_rows(room, table, keep)[0]

    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        size, out = work()
    ids.copy_(draw_ids(500, 3, "skewed", seed=5))
    graph.replay()
    batch = BatchGraph.from_ids(ids)
    assert tuple(size.tolist()) == batch.size
    assert torch.equal(out, sum_at_rows(batch, table[: batch.n_features], keep)[0])


# ---- which edges ---------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_both_directions_and_plain_torch_see_the_same_edges(rho):
    ids = torch.randperm(300, generator=torch.Generator().manual_seed(0)).view(60, 5).cuda()
    batch = BatchGraph.from_ids(ids)
    keep = Keep(rho, torch.tensor([-7], device="cuda"))
    to_rows, _ = sum_at_rows(batch, torch.eye(300, device="cuda"), keep)
    to_features, _ = sum_at_features(batch, torch.eye(60, device="cuda"), keep)
    assert torch.equal(to_rows, to_features.T)
    assert torch.equal(to_rows.gather(1, batch.local.T.long()) > 0, kept_edges(batch, keep))


def some_batch(n_rows: int, n_fields: int) -> BatchGraph:
    """A batch of which only the names of edges matter; no GPU needed."""
    none = torch.empty(0, dtype=torch.int32)
    local = torch.zeros(n_fields, n_rows, dtype=torch.int32)
    return BatchGraph(n_rows, local, none, none, none, none, none)


@pytest.mark.parametrize("rho", [0.0, 0.01, 0.3, 0.5, 0.99, 1.0])
def test_edges_are_kept_with_probability_one_minus_rho(rho):
    n = 200_000
    kept = kept_edges(some_batch(n, 5), Keep(rho, torch.tensor([3]))).float()
    deviation = (rho * (1 - rho)) ** 0.5
    assert abs(float(kept.mean()) - (1 - rho)) <= 4 * deviation / (5 * n) ** 0.5
    assert (kept.mean(0) - (1 - rho)).abs().max() <= 5 * deviation / n**0.5  # in each field
    assert (kept.sum(1).var() - 5 * rho * (1 - rho)).abs() <= 0.02  # fields of a row: binomial


@pytest.mark.parametrize("other", [2, 1 << 32, 1 << 63, -1, (1 << 40) + 1])
def test_seeds_and_neighbouring_edges_are_not_correlated(other):
    n = 400_000
    seed = torch.tensor([other - (1 << 64) if other >= 1 << 63 else other])
    one = kept_edges(some_batch(n, 1), Keep(0.5, torch.tensor([1])))[:, 0].double() - 0.5
    two = kept_edges(some_batch(n, 1), Keep(0.5, seed))[:, 0].double() - 0.5
    for a, b in [(one, two), (one[1:], two[:-1]), (two[1:], two[:-1]), (two[39:], two[:-39])]:
        assert abs(float((a * b).mean()) * 4) <= 5 / n**0.5


# ---- errors --------------------------------------------------------------------------------


def test_keep_names_what_is_wrong():
    with pytest.raises(InputError, match=r"drop_edge=1\.5 is not a probability: choose a number"):
        Keep(1.5)
    with pytest.raises(InputError, match=r"drop_edge=0\.5 needs a seed"):
        Keep(0.5)


@needs_gpu
@pytest.mark.parametrize("shape", [(4, 3), (5, 2), (0, 2)], ids=str)
def test_a_room_takes_only_ids_of_its_shape(shape):
    room = BatchGraph.room(4, 2, (8, 0, 0), torch.device("cuda"))
    with pytest.raises(InputError, match=r"do not fit a room for \(4, 2\) and 8 features: give as"):
        room.fill_(torch.zeros(shape, device="cuda"))


@needs_gpu
def test_sums_name_what_does_not_fit():
    batch = BatchGraph.from_ids(torch.zeros(4, 2, device="cuda"))
    with pytest.raises(InputError, match=r"a table of shape \(3, 2\) does not fit: give \(1, H\)"):
        sum_at_rows(batch, random(3, 2))
    mask = torch.zeros(3, device="cuda")
    with pytest.raises(InputError, match=r"torch.float32 of shape \(3,\): give \(2,\) of torch"):
        sum_at_rows(batch, random(1, 2), Keep(fields=mask))
