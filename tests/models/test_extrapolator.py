"""GCN, SGC and GraphSAGE against dense twins and, with the same weights, PyTorch Geometric."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    adjacency,
    assert_near,
    bipartite,
    dense_by_feature,
    dense_by_row,
    random_table,
    random_values,
)
from torch import Tensor, nn

from openfate.errors import InputError
from openfate.graph import Edges, rows_to_features
from openfate.models import GCN, SGC, GraphSAGE
from openfate.models import walk as walks

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
WIDTH = 5
MODELS = {
    **{f"gcn{n}": lambda n=n: GCN(WIDTH, n) for n in range(1, 7)},
    **{f"sgc{n}": lambda n=n: SGC(WIDTH, n) for n in range(1, 4)},
    **{f"sage{n}": lambda n=n: GraphSAGE(WIDTH, n, normalize=False) for n in range(1, 4)},
    **{f"sage{n}-l2": lambda n=n: GraphSAGE(WIDTH, n, normalize=True) for n in range(1, 4)},
}
PRIOR = {
    f"sage{n}-prior": lambda n=n: GraphSAGE(WIDTH, n, normalize=False, prior_rows=3.0)
    for n in range(2, 4)
}
DROPPED = ["all edges", "dropped", "dropped apart", "no edges"]


def make_edges(
    seed: int, dropped: str, shape: tuple[int, int] = (7, 6), values: Tensor | None = None
) -> Edges:
    """A random table with empty rows and features, its edges dropped in one way or another."""
    graph = bipartite(random_table(seed, *shape), values=values)
    rng = torch.Generator().manual_seed(seed)
    one, other = (torch.rand(graph.n_edges, generator=rng) < 0.6 for _ in range(2))
    if dropped == "dropped apart":
        return Edges(graph.keep_edges(one), graph.keep_edges(other))
    if dropped == "no edges":
        return Edges.of(graph.keep_edges(torch.zeros_like(one)))
    return Edges.of(graph.keep_edges(one) if dropped == "dropped" else graph)


def make(name: str, seed: int, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    """A model whose biases are not zero, and states for six features."""
    torch.manual_seed(seed)
    model = (MODELS | PRIOR)[name]().to(dtype)
    for parameter in model.parameters():
        if parameter.dim():  # all but the prior, which starts at three rows
            nn.init.normal_(parameter, std=0.5)
    return model, torch.randn(6, WIDTH, dtype=dtype, requires_grad=True)


def dense_twin(
    model: nn.Module, states: Tensor, edges: Edges, values: Tensor | None = None
) -> Tensor:
    """The reference with the model's own parameters."""
    ways = dense_by_row(edges.to_rows), dense_by_feature(edges.to_features)
    if isinstance(model, GCN):
        bias = model.bias if model.bias is not None else torch.zeros(model.n_layers, WIDTH)
        return reference.gcn(states, *ways, list(model.P), list(bias.to(states.dtype)), values)
    if isinstance(model, SGC):
        affine = model.linear.weight, model.linear.bias
        return reference.sgc(states, *ways, *affine, model.n_layers, values)
    layers = [
        (neighbour.weight, neighbour.bias, root.weight)
        for neighbour, root in zip(model.neighbour, model.root, strict=True)
    ]
    prior = 0.0 if model.log_prior is None else model.log_prior.exp()
    return reference.sage(states, *ways, layers, model.normalize, values, prior)


def pyg_twin(model: nn.Module, states: Tensor, edges: Edges) -> Tensor:
    """PyTorch Geometric's layers, called with the model's own parameters: gradients reach them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside its own import
        pyg = pytest.importorskip("torch_geometric.nn")
    A = adjacency(dense_by_row(edges.to_rows), dense_by_feature(edges.to_features))
    target, source = A.nonzero(as_tuple=True)
    edge_index = torch.stack([source, target])
    h = torch.cat([states, states.new_zeros(edges.to_rows.n_rows, WIDTH)])
    for conv, weights in pyg_layers(pyg, model):
        h = torch.func.functional_call(conv.to(states.dtype), weights, (h, edge_index))
    return h[: len(states)]


def pyg_layers(pyg, model: nn.Module) -> list[tuple[nn.Module, dict[str, Tensor]]]:
    """Each layer with its weights under PyG's names."""
    if isinstance(model, GCN):
        return [
            (pyg.GCNConv(WIDTH, WIDTH), {"lin.weight": P.T, "bias": bias})
            for P, bias in zip(model.P, model.bias, strict=True)
        ]
    if isinstance(model, SGC):
        weights = {"lin.weight": model.linear.weight, "lin.bias": model.linear.bias}
        return [(pyg.SGConv(WIDTH, WIDTH, K=model.n_layers), weights)]
    return [
        (
            pyg.SAGEConv(WIDTH, WIDTH, normalize=model.normalize),
            {"lin_l.weight": n.weight, "lin_l.bias": n.bias, "lin_r.weight": r.weight},
        )
        for n, r in zip(model.neighbour, model.root, strict=True)
    ]


def assert_same(model: nn.Module, states: Tensor, ours: Tensor, theirs: Tensor) -> None:
    """Outputs and the gradients of states and parameters agree; an unused parameter has zero."""
    tolerance = TOLERANCE[states.dtype]
    assert_near(ours, theirs, tolerance)
    weight = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    wrt = [states, *model.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    mine = torch.autograd.grad((ours * weight).sum(), wrt, **options)
    other = torch.autograd.grad((theirs * weight).sum(), wrt, **options)
    for a, b in zip(mine, other, strict=True):
        assert_near(a, b, tolerance)


@pytest.mark.parametrize("dropped", DROPPED)
@pytest.mark.parametrize("name", MODELS | PRIOR)
def test_forward_and_gradients_equal_the_dense_twin(name, dropped):
    model, states = make(name, seed=1)
    edges = make_edges(1, dropped)
    assert_same(model, states, model(states, edges), dense_twin(model, states, edges))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dropped", DROPPED)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_gradients_equal_pyg(name, dropped, dtype):
    for seed in range(4):
        model, states = make(name, seed, dtype)
        edges = make_edges(seed, dropped)
        assert_same(model, states, model(states, edges), pyg_twin(model, states, edges))


@pytest.mark.parametrize("shape", [(0, 6), (1, 6), (25, 6)], ids=str)
@pytest.mark.parametrize("name", ["gcn4", "gcn5", "sgc2", "sage2-l2"])
def test_any_number_of_rows_equals_the_dense_twin(name, shape):
    model, states = make(name, seed=2)
    edges = make_edges(2, "dropped apart", shape)
    assert_same(model, states, model(states, edges), dense_twin(model, states, edges))


@pytest.mark.parametrize("n_layers", [1, 2, 4])
def test_a_gcn_without_bias_equals_the_dense_twin(n_layers):
    torch.manual_seed(0)
    model, states = GCN(WIDTH, n_layers, bias=False).double(), torch.randn(6, WIDTH).double()
    edges = make_edges(0, "dropped apart")
    assert_near(model(states, edges), dense_twin(model, states, edges), 1e-12)


@pytest.mark.parametrize("dropped", DROPPED)
@pytest.mark.parametrize("name", MODELS | PRIOR)
def test_many_masks_at_once_equal_single_runs(name, dropped):
    model, _ = make(name, seed=3)
    edges = make_edges(3, dropped)
    wide = torch.randn(6, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    single = torch.stack([model(wide[:, s], edges) for s in range(4)], 1)
    assert_same(model, wide, model(wide, edges), single)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("trailing", [(4,), (2, 3), (0,)], ids=str)
def test_any_number_of_masks_with_and_without_biases(trailing, bias):
    torch.manual_seed(0)
    model, edges = GCN(WIDTH, 3, bias).double(), make_edges(3, "dropped")
    wide = torch.randn(6, *trailing, WIDTH).double()
    flat = wide.view(6, -1, WIDTH) if wide.numel() else wide
    out = model(wide, edges).view_as(flat)
    for s in range(flat.size(1)):
        assert_near(out[:, s], model(flat[:, s], edges), 1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_layers", [1, 2, 4])
def test_weights_that_stay_unchanged_get_the_same_gradients(n_layers, bias):
    torch.manual_seed(n_layers)
    model = GCN(WIDTH, n_layers, bias).double()
    batches = [(torch.randn(6, WIDTH).double(), make_edges(seed, "dropped")) for seed in range(3)]
    plain = [model(*batch) for batch in batches]
    sum(out.square().sum() for out in plain).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with model.unchanged():
        for batch, out in zip(batches, plain, strict=True):
            again = model(*batch)
            assert_near(again, out, 1e-12)
            again.square().sum().backward()
            assert all(parameter.grad is None for parameter in model.parameters())
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        assert_near(parameter.grad, grad, 1e-12)


def test_weights_that_are_frozen_stay_so_within_the_block():
    model, states = make("gcn2", seed=0)
    model.requires_grad_(False)
    with model.unchanged():
        model(states, make_edges(0, "all edges")).sum().backward()
    assert states.grad is not None and model.P.grad is None


@pytest.mark.parametrize("bias", [True, False])
def test_the_product_of_weights_is_in_full_precision_under_autocast(bias):
    torch.manual_seed(0)
    model, states, edges = GCN(WIDTH, 4, bias), torch.randn(6, WIDTH), make_edges(0, "dropped")
    plain = model(states, edges)
    with torch.autocast("cpu", torch.bfloat16), model.unchanged():
        assert torch.equal(model(states, edges), plain)


def test_a_copy_made_within_the_block_reads_its_own_weights():
    model, states = make("gcn2", seed=0)
    with model.unchanged():
        twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.P.zero_()
        twin.bias.zero_()
    assert not twin(states, make_edges(0, "all edges")).any()


def test_after_an_error_weights_are_read_anew():
    model, states = make("gcn2", seed=0)
    edges = make_edges(0, "all edges")
    with pytest.raises(KeyboardInterrupt), model.unchanged():
        raise KeyboardInterrupt
    with torch.no_grad():
        model.P.zero_()
        model.bias.zero_()
    assert not model(states, edges).any()


@pytest.mark.parametrize("name", ["gcn4", "sgc2", "sage2-l2"])
def test_states_of_the_caller_are_not_changed(name):
    model, states = make(name, seed=6)
    before = states.detach().clone()
    model(states, make_edges(6, "dropped")).sum().backward()
    assert torch.equal(states, before)


@pytest.mark.parametrize("name", ["gcn4", "sgc2", "sage2-l2"])
def test_devices_agree(name, device):
    model, states = make(name, seed=7, dtype=torch.float32)
    expected = dense_twin(model, states, make_edges(7, "all edges"))
    graph = bipartite(random_table(7), device)
    assert_near(model.to(device)(states.to(device), Edges.of(graph)).cpu(), expected, 1e-5)


@pytest.mark.parametrize("kind", [GCN, SGC, GraphSAGE])
@pytest.mark.parametrize("n_layers", [0, -1])
def test_an_extrapolator_without_layers_is_refused(kind, n_layers):
    with pytest.raises(InputError, match=f"n_layers={n_layers}: an extrapolator needs one layer"):
        kind(8, n_layers)


# ---- values --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dropped", DROPPED)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_gradients_with_values_equal_the_dense_twin(name, dropped, dtype):
    for seed in range(3):
        model, states = make(name, seed, dtype)
        values = random_values(seed)
        edges = make_edges(seed, dropped, values=values)
        expected = dense_twin(model, states, edges, values)
        assert_same(model, states, model(states, edges), expected)


@pytest.mark.parametrize("shape", [(0, 6), (1, 6), (25, 6)], ids=str)
@pytest.mark.parametrize("name", ["gcn4", "gcn5", "sgc2", "sage2-l2"])
def test_any_number_of_valued_rows_equals_the_dense_twin(name, shape):
    model, states = make(name, seed=2)
    values = random_values(2, *shape)
    edges = make_edges(2, "dropped apart", shape, values)
    assert_same(model, states, model(states, edges), dense_twin(model, states, edges, values))


@pytest.mark.parametrize("name", ["gcn4", "sgc2", "sage2", "sage2-l2"])
def test_many_masks_at_once_with_values_equal_single_runs(name):
    model, _ = make(name, seed=3)
    edges = make_edges(3, "dropped apart", values=random_values(3))
    wide = torch.randn(6, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    single = torch.stack([model(wide[:, s], edges) for s in range(4)], 1)
    assert_same(model, wide, model(wide, edges), single)


@pytest.mark.parametrize("name", ["gcn4", "sgc2", "sage2-l2"])
def test_devices_agree_on_values(name, device):
    model, states = make(name, seed=7, dtype=torch.float32)
    X, values = random_table(7), random_values(7)
    expected = dense_twin(model, states, Edges.of(bipartite(X)), values)
    graph = bipartite(X, device, values)
    assert_near(model.to(device)(states.to(device), Edges.of(graph)).cpu(), expected, 1e-5)


# ---- the running form ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("dropped", DROPPED)
@pytest.mark.parametrize("name", ["sage2", "sage2-l2", "sage2-prior"])
def test_sums_of_row_messages_give_the_same_states_exactly(name, dropped, with_values, dtype):
    for seed in range(4):
        model, states = make(name, seed, dtype)
        values = random_values(seed) if with_values else None
        graph = make_edges(seed, dropped, values=values).to_rows
        sums = rows_to_features(graph, model.row_messages(states, graph))
        running = model.from_sums(states, sums, graph.feature_degree)
        assert torch.equal(running, model(states, Edges.of(graph)))


@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("name", ["sage2", "sage2-l2", "sage2-prior"])
@given(seed=st.integers(0, 2**16), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_sums_over_batches_of_rows_add_up(name, with_values, seed, cuts):
    model, states = make(name, seed, torch.float32)
    X = random_table(seed, 12, 6)
    values = random_values(seed, 12, 6) if with_values else torch.ones_like(X)
    sums, counts = torch.zeros(6, WIDTH, dtype=torch.float64), torch.zeros(6, dtype=torch.int64)
    for start, end in itertools.pairwise([0, *sorted(cuts), 12]):
        part = bipartite(X[start:end], values=values[start:end])
        sums += rows_to_features(part, model.row_messages(states, part)).double()
        counts += part.feature_degree.long()
    whole = model(states, Edges.of(bipartite(X, values=values)))
    running = model.from_sums(states, sums, counts)
    assert running.dtype == torch.float32
    assert_near(running, whole, 1e-5)


def test_a_feature_without_rows_hears_a_mean_of_zero():
    model, states = make("sage2", 0)
    nothing = model.from_sums(states, torch.zeros(6, WIDTH).double(), torch.zeros(6))
    graph = bipartite(torch.zeros(3, 6))
    assert torch.equal(nothing, model(states, Edges.of(graph)))


def test_a_feature_of_few_rows_says_less_than_one_of_many():
    model, _ = make("sage2-prior", 0)
    few, many = torch.ones(1, WIDTH).double(), 100 * torch.ones(1, WIDTH).double()
    said = [
        model.from_sums(torch.zeros(1, WIDTH).double(), sums, torch.tensor([n]))
        for sums, n in ((0 * few, 0), (few, 1), (many, 100))
    ]
    assert torch.allclose(said[1] - said[0], (said[2] - said[0]) * (1 / 4) / (100 / 103))
    with pytest.raises(InputError, match="prior_rows=0: choose a number above 0"):
        GraphSAGE(WIDTH, prior_rows=0)


@pytest.mark.parametrize("n_layers", [1, 3])
def test_only_two_layers_have_a_running_form(n_layers):
    model, graph = GraphSAGE(WIDTH, n_layers), bipartite(random_table(0))
    states = torch.zeros(6, WIDTH)
    message = (
        f"this GraphSAGE has n_layers={n_layers}: only 2 layers have a running form, "
        "because only there the message of a row depends on that row alone."
    )
    for call in (
        lambda: model.row_messages(states, graph),
        lambda: model.from_sums(states, states, graph.feature_degree),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == message


# ---- only some features --------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("dropped", DROPPED)
@pytest.mark.parametrize("walks_from_wanted", [False, True])
def test_wanted_features_are_rows_of_the_whole(name, dropped, walks_from_wanted, monkeypatch):
    """States, and gradients of all that they depend on, whichever way the walk goes."""
    (model, states), edges = make(name, 0), make_edges(0, dropped, values=random_values(0))
    wanted = torch.tensor([1, 4, 5])
    if not walks_from_wanted:
        monkeypatch.setattr(walks, "_few", lambda *_: False)
    ours, theirs = model(states, edges, wanted), model(states, edges)[wanted]
    assert_near(ours, theirs, 1e-12)
    wrt = [states, *model.parameters()]
    for mine, other in zip(
        torch.autograd.grad(ours.square().sum(), wrt, allow_unused=True),
        torch.autograd.grad(theirs.square().sum(), wrt, allow_unused=True),
        strict=True,
    ):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert_near(mine, other, 1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_no_wanted_feature_is_no_row(bias):
    none = torch.tensor([], dtype=torch.int64)
    for n_layers in range(1, 5):
        model, states = GCN(WIDTH, n_layers, bias).double(), torch.randn(6, WIDTH).double()
        assert model(states, make_edges(0, "all edges"), none).shape == (0, WIDTH)
