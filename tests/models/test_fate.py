"""FATE: a training step against its dense twin, and what becomes of new features at inference."""

from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_near, bipartite, multihot, random_table, random_values
from torch import Tensor, nn

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE, GCN, MLP, SGC, GraphSAGE, field_means

WIDTH = 4
KEPT = torch.tensor([True, False, True, True, False, True])
EXTRAPOLATORS = [GCN, SGC, GraphSAGE]
COMPOSITIONS = ["masked", "all"]
seeds = st.integers(0, 2**16)


def make(
    recompose: str = "masked", extrapolator: type[nn.Module] | None = GCN, D: int = 6, seed: int = 0
) -> FATE:
    """A model in double precision whose biases are not zero."""
    torch.manual_seed(seed)
    g = extrapolator(WIDTH, 2) if extrapolator is not None else None
    model = FATE(D, MLP(WIDTH, 3), g, recompose=recompose).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def dense_logits(model: FATE, X: Tensor, kept: Tensor, edges: Edges) -> Tensor:
    """The same step from the dense twin; the extrapolator has its own tests."""
    g = model.extrapolator
    extrapolate = None if g is None else (lambda states: g(states, edges))
    return reference.fate(model.W, kept, X, extrapolate, model.backbone, model.recompose)


def extrapolate(model: FATE, X: Tensor, field_of: Tensor | None = None) -> Tensor:
    return model.extrapolate(bipartite(X), field_of)


@pytest.mark.parametrize("extrapolator", [*EXTRAPOLATORS, None])
@pytest.mark.parametrize("recompose", COMPOSITIONS)
def test_a_training_step_and_its_gradients_equal_the_dense_twin(recompose, extrapolator):
    model, X = make(recompose, extrapolator), random_table(0)
    edges = Edges.of(bipartite(X))
    ours, theirs = model(bipartite(X), KEPT, edges), dense_logits(model, X, KEPT, edges)
    assert_near(ours, theirs, 1e-12)
    wrt = list(model.parameters())
    mine = torch.autograd.grad(ours.square().sum(), wrt)
    for a, b in zip(mine, torch.autograd.grad(theirs.square().sum(), wrt), strict=True):
        assert_near(a, b, 1e-12)


@pytest.mark.parametrize("extrapolator", [*EXTRAPOLATORS, None])
@pytest.mark.parametrize("recompose", COMPOSITIONS)
def test_values_multiply_the_embeddings_of_a_row(recompose, extrapolator):
    model, X, values = make(recompose, extrapolator), random_table(0), random_values(0)
    graph = bipartite(X, values=values)
    theirs = dense_logits(model, X * values, KEPT, Edges.of(graph))
    assert_near(model(graph, KEPT, Edges.of(graph)), theirs, 1e-12)


@pytest.mark.parametrize("recompose", COMPOSITIONS)
def test_many_masks_at_once_equal_single_steps(recompose):
    model, X = make(recompose), random_table(1)
    masks = torch.stack([KEPT, ~KEPT, torch.ones_like(KEPT)], 1)  # (D, S)
    graph = bipartite(X)
    single = [model(graph, masks[:, s], Edges.of(graph)) for s in range(3)]
    assert_near(model(graph, masks, Edges.of(graph)), torch.stack(single, 1), 1e-12)


@pytest.mark.parametrize("recompose", COMPOSITIONS)
def test_a_batch_of_all_rows_over_touched_features_equals_the_full_step(recompose):
    model, X = make(recompose), random_table(2)
    local, ids = multihot(X).touched_features()
    batch, ids = Bipartite.from_multihot(local), torch.from_numpy(ids).long()
    full = model(bipartite(X), KEPT, Edges.of(bipartite(X)))
    assert_near(model(batch, KEPT[ids], Edges.of(batch), model.W[ids]), full, 1e-12)


def test_only_touched_features_get_a_gradient_from_a_batch():
    model, X = make(), random_table(2)
    local, ids = multihot(X[:3]).touched_features()
    batch, ids = Bipartite.from_multihot(local), torch.from_numpy(ids).long()
    kept = torch.ones(len(ids), dtype=torch.bool)
    model(batch, kept, Edges.of(batch), model.W[ids]).sum().backward()
    assert model.W.grad.any(1).nonzero()[:, 0].tolist() == ids.tolist()


def test_hidden_features_get_no_gradient_where_the_rest_is_kept():
    model, X = make(), torch.ones(4, 6)
    model(bipartite(X), KEPT, Edges.of(bipartite(X))).sum().backward()
    assert torch.equal(model.W.grad.any(1), KEPT)


def test_a_model_without_extrapolator_drops_hidden_and_new_features():
    model, X = make(extrapolator=None), random_table(3)
    graph = bipartite(X)
    dropped = model(bipartite(X * KEPT), torch.ones(6, dtype=torch.bool), Edges.of(graph))
    assert_near(model(graph, KEPT, Edges.of(graph)), dropped, 1e-12)
    W_hat = extrapolate(model, random_table(3, n_features=8))
    assert torch.equal(W_hat, torch.cat([model.W, torch.zeros(2, WIDTH)]))


@pytest.mark.parametrize("extrapolator", EXTRAPOLATORS)
def test_observed_features_keep_their_own_embedding_when_masked(extrapolator):
    model = make("masked", extrapolator)
    W_hat = extrapolate(model, random_table(4, n_features=9))
    assert torch.equal(W_hat[:6], model.W)
    assert W_hat.shape == (9, WIDTH) and not W_hat.requires_grad


def test_every_feature_uses_the_output_where_all_are_recomposed():
    model, X = make("all"), random_table(4, n_features=9, share=0.8)
    X[:, 1] = X[:, 2]  # all new features have rows
    W = torch.cat([model.W, torch.zeros(3, WIDTH)])
    expected = model.extrapolator(W, Edges.of(bipartite(X)))
    assert_near(extrapolate(model, X), expected, 1e-12)


@pytest.mark.parametrize("extrapolator", EXTRAPOLATORS)
@pytest.mark.parametrize("recompose", COMPOSITIONS)
def test_new_feature_without_rows_gets_zero_or_the_mean_of_its_field(recompose, extrapolator):
    model, X = make(recompose, extrapolator), random_table(5, n_features=9)
    X[:, 7:] = 0
    assert not extrapolate(model, X)[7:].any()
    field_of = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0, 5])  # field 5 has no observed feature
    W_hat = extrapolate(model, X, field_of)
    assert_near(W_hat[7], model.W[:2].mean(0), 1e-12)
    assert not W_hat[8].any() and W_hat.isfinite().all()


@pytest.mark.parametrize("recompose", COMPOSITIONS)
def test_centred_embeddings_of_new_features_move_no_sum_on_average(recompose):
    model, X = make(recompose), random_table(5, n_features=9)
    X[:, 8] = 0
    plain = extrapolate(model, X)
    model.centred = True
    centred = extrapolate(model, X)
    assert_near((X[:, 6:] @ centred[6:]).mean(0), torch.zeros(WIDTH), 1e-12)
    assert_near(centred[6] - centred[7], plain[6] - plain[7], 1e-12)
    assert torch.equal(centred[:6], plain[:6]) and not centred[8].any()
    assert extrapolate(model, X[:, :6]).isfinite().all()  # nothing is new


@pytest.mark.parametrize("recompose", COMPOSITIONS)
def test_a_graph_without_rows_gives_finite_embeddings(recompose):
    W_hat = extrapolate(make(recompose), torch.zeros(0, 8))
    assert W_hat.isfinite().all() and not W_hat[6:].any()


@pytest.mark.parametrize("extrapolator", EXTRAPOLATORS)
@given(seed=seeds)
def test_permuting_new_features_permutes_their_embeddings(extrapolator, seed):
    model, X = make("all", extrapolator), random_table(seed, n_features=10)
    new = 6 + torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    order = torch.cat([torch.arange(6), new])
    assert_near(extrapolate(model, X[:, order]), extrapolate(model, X)[order], 1e-12)


@pytest.mark.parametrize("extrapolator", EXTRAPOLATORS)
@given(seed=seeds)
def test_the_order_of_rows_is_irrelevant(extrapolator, seed):
    model, X = make("all", extrapolator), random_table(seed, n_features=10)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    assert_near(extrapolate(model, X[order]), extrapolate(model, X), 1e-12)


@pytest.mark.parametrize("extrapolator", EXTRAPOLATORS)
@given(seed=seeds)
def test_a_new_feature_without_edges_disturbs_nobody(extrapolator, seed):
    model, X = make("all", extrapolator), random_table(seed, n_features=8)
    wider = torch.cat([X, torch.zeros(len(X), 1)], 1)
    assert_near(extrapolate(model, wider)[:8], extrapolate(model, X), 1e-12)
    logits = model.predict(bipartite(X), extrapolate(model, X))
    assert_near(model.predict(bipartite(wider), extrapolate(model, wider)), logits, 1e-12)


def test_predict_is_the_backbone_over_summed_embeddings(device):
    model, X = make(), random_table(6, n_features=8)
    W_hat = extrapolate(model, X)
    moved = model.to(device).predict(bipartite(X, device), W_hat.to(device))
    assert_near(moved.cpu(), model.cpu().backbone(X @ W_hat), 1e-12)


def test_the_start_of_W_is_xaviers_over_the_features_counted():
    for counted, bound in [(None, (6 / 1004) ** 0.5), (5996, 0.001**0.5)]:
        largest = FATE(1000, MLP(4, 2), init_features=counted).W.detach().abs().max()
        assert 0.98 * bound < float(largest) <= bound


def test_field_means_of_known_and_unknown_fields():
    W = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 10.0]])
    means = field_means(W, torch.tensor([0, 0, 2, 0, 1, 2]))
    assert means[3:].tolist() == [[2.0, 3.0], [0.0, 0.0], [10.0, 10.0]]
    assert field_means(W[:0], torch.empty(0)).shape == (0, 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: FATE(0, MLP(4, 2)),
            "n_features is 0: a model needs one observed feature or more.",
        ),
        (
            lambda: FATE(3, MLP(4, 2), recompose="some"),
            "recompose='some' is unknown: choose 'masked' or 'all'.",
        ),
        (
            lambda: extrapolate(make(), torch.zeros(2, 5)),
            "the graph has 5 features, fewer than the model's 6: widen its rows.",
        ),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(InputError) as error:
        build()
    assert str(error.value) == message
