"""Click backbones against their naive twins, alone and behind every extrapolator."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import reference_ctr
import torch
from reference import assert_near, bipartite, multihot, random_table, random_values
from torch import Tensor, nn

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.models import (
    DCN,
    FATE,
    GCN,
    MLP,
    SGC,
    Backbone,
    DeepFM,
    GraphSAGE,
    RunningFATE,
    WideDeep,
    make_backbone,
    with_fields,
)

H, D, FIELDS = 4, 6, [0, 0, 1, 1, 2, 2]
KEPT = torch.tensor([True, False, True, True, False, True])
PLAIN = {"hidden": (5,), "batch_norm": False, "dropout": 0.0}
BY_FIELD = {"pool": "field_linear", "n_fields": 3}


def named(fields: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda X, W_hat: reference_ctr.concatenated(X, W_hat, fields, 3)


# Each backbone, and its logits from a dense table, W_hat and W.
BACKBONES: dict[str, tuple[Callable[[], Backbone], Callable[..., Tensor]]] = {
    "mlp": (lambda: MLP(H, 2, **PLAIN), lambda m, X, W_hat, W: reference_ctr.mlp(m, X @ W_hat)),
    "mlp by field": (
        lambda: MLP(H, 2, **PLAIN, **BY_FIELD),
        lambda m, X, W_hat, W: reference_ctr.mlp(m, named(FIELDS)(X, W_hat)),
    ),
    "wide and deep": (lambda: WideDeep(H, 1, **PLAIN), reference_ctr.widedeep),
    "wide and deep, extrapolated": (
        lambda: WideDeep(H, 3, linear="extrapolated", **PLAIN),
        reference_ctr.widedeep,
    ),
    "deepfm": (lambda: DeepFM(H, 1, **PLAIN), reference_ctr.deepfm),
    "deepfm, scaled": (lambda: DeepFM(H, 1, fm_scale=0.7, **PLAIN), reference_ctr.deepfm),
    "deepfm, three classes": (lambda: DeepFM(H, 3, **PLAIN), reference_ctr.deepfm),
    "deepfm, extrapolated": (
        lambda: DeepFM(H, 1, linear="extrapolated", **PLAIN),
        reference_ctr.deepfm,
    ),
    "deepfm, paper": (lambda: DeepFM(H, 1, fm="paper", **PLAIN), reference_ctr.deepfm),
    "deepfm, cross": (lambda: DeepFM(H, 1, fm="cross", **PLAIN), reference_ctr.deepfm),
    "deepfm, cross, extrapolated": (
        lambda: DeepFM(H, 1, fm="cross", linear="extrapolated", **PLAIN),
        reference_ctr.deepfm,
    ),
    "dcn": (lambda: DCN(H, 1, **PLAIN), lambda m, X, W_hat, W: reference_ctr.dcn(m, X @ W_hat)),
    "dcn by field": (
        lambda: DCN(H, 2, n_cross=3, **PLAIN, **BY_FIELD),
        lambda m, X, W_hat, W: reference_ctr.dcn(m, named(FIELDS)(X, W_hat)),
    ),
}
EXTRAPOLATORS = [GCN, SGC, GraphSAGE]


def make(
    name: str, extrapolator: type[nn.Module] | None = GraphSAGE, recompose: str = "all"
) -> FATE:
    """In double precision, no parameter of it zero."""
    torch.manual_seed(0)
    backbone = BACKBONES[name][0]()
    g = None if extrapolator is None else extrapolator(backbone.width, 2)
    model = FATE(D, backbone, g, recompose=recompose).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def graph_of(X: Tensor, fields: list[int] = FIELDS, values: Tensor | None = None) -> Bipartite:
    return bipartite(X, values=values).with_fields(torch.tensor(fields))


def naive_step(model: FATE, name: str, X: Tensor, edges: Edges) -> Tensor:
    """A training step, put together by hand."""
    own = KEPT[:, None].double()
    W_hat, width = model.W * own, model.backbone.width
    if model.extrapolator is not None:
        out = model.extrapolator(W_hat[:, :width], edges)
        out = out if model.recompose == "all" else W_hat[:, :width] + out * (1 - own)
        W_hat = torch.cat([out, W_hat[:, width:]], 1)
    return BACKBONES[name][1](model.backbone, X, W_hat, model.W)


@pytest.mark.parametrize("values", [None, random_values(0)], ids=["ones", "values"])
@pytest.mark.parametrize("name", BACKBONES)
def test_logits_and_gradients_equal_the_naive_twin(name, values):
    model, X = make(name, None), random_table(0)
    W_hat = torch.randn(D, model.W.size(1), dtype=torch.float64, requires_grad=True)
    graph = graph_of(X, values=values)
    ours = model.backbone.logits(graph, W_hat, model.W)
    theirs = BACKBONES[name][1](model.backbone, X if values is None else X * values, W_hat, model.W)
    assert_near(ours, theirs, 1e-12)
    wrt = [W_hat, *model.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    mine = torch.autograd.grad(ours.square().sum(), wrt, **options)
    for a, b in zip(mine, torch.autograd.grad(theirs.square().sum(), wrt, **options), strict=True):
        assert_near(a, b, 1e-11)


@pytest.mark.parametrize("recompose", ["masked", "all"])
@pytest.mark.parametrize("extrapolator", [*EXTRAPOLATORS, None])
@pytest.mark.parametrize("name", BACKBONES)
def test_a_training_step_behind_every_extrapolator(name, extrapolator, recompose):
    model, X = make(name, extrapolator, recompose), random_table(1, share=0.6)
    graph = graph_of(X)
    edges = Edges.of(graph)
    assert_near(model(graph, KEPT, edges), naive_step(model, name, X, edges), 1e-11)


@pytest.mark.parametrize("name", BACKBONES)
def test_many_masks_at_once_equal_single_steps(name):
    model, graph = make(name), graph_of(random_table(1))
    masks = torch.stack([KEPT, ~KEPT, torch.ones_like(KEPT)], 1)  # (D, S)
    single = [model(graph, masks[:, s], Edges.of(graph)) for s in range(3)]
    assert_near(model(graph, masks, Edges.of(graph)), torch.stack(single, 1), 1e-12)


@pytest.mark.parametrize("name", BACKBONES)
def test_new_features_are_extrapolated_and_predicted_with(name):
    model, X = make(name), random_table(2, n_features=9, share=0.7)
    graph = graph_of(X, [*FIELDS, 0, 1, 2])
    W_hat = model.extrapolate(graph)
    logits = model.predict(graph, W_hat)
    W = torch.cat([model.W, torch.zeros(3, model.W.size(1))])
    observed = torch.arange(9) < D
    batch = model(graph, observed, Edges.of(graph), W)
    touched = X[:, 6:].any(1)
    assert torch.equal(W_hat[6:, model.backbone.width :], torch.zeros(3, model.backbone.n_own))
    assert_near(logits[touched], batch[touched], 1e-12)
    without = model.predict(graph_of(X[:, :6]), W_hat[:6])
    assert (logits - without)[touched].abs().min() > 1e-9


@pytest.mark.parametrize("name", BACKBONES)
def test_running_sums_predict_as_the_graph_of_all_rows(name):
    model, X = make(name), random_table(3, n_features=9, share=0.6)
    X[:, 1] = X[:, 2]  # every feature has a row
    fields = [*FIELDS, 0, 1, 2]
    running = RunningFATE(model)
    running.observe(multihot(X))
    graph = graph_of(X, fields)
    expected = model.eval().predict(graph, model.extrapolate(graph)).detach()
    ours = running.logits(multihot(X), torch.tensor(fields).numpy())
    assert_near(torch.from_numpy(ours), expected, 1e-10)


def test_a_feature_of_an_unknown_field_is_not_used_by_field_backbones():
    model, X = make("dcn by field"), random_table(4, n_features=7, share=0.9)
    graph = graph_of(X, [*FIELDS, 3])
    changed = model.extrapolate(graph)
    changed[6] += 1
    assert_near(
        model.predict(graph, changed), model.predict(graph_of(X[:, :6]), changed[:6]), 1e-12
    )


@pytest.mark.parametrize("recompose", ["masked", "all"])
@pytest.mark.parametrize("extrapolator", [*EXTRAPOLATORS, None])
@pytest.mark.parametrize("name", BACKBONES)
def test_hidden_features_leak_into_the_released_machine_alone(name, extrapolator, recompose):
    """REFERENCE: M7; W of a hidden feature moves the logits of fm='cross', and of no other."""
    model = make(name, extrapolator, recompose)
    graph = graph_of(torch.ones(2, D, dtype=torch.float64))
    before = model(graph, KEPT, Edges.of(graph))
    with torch.no_grad():
        model.W[~KEPT] += 1
    same = torch.equal(before, model(graph, KEPT, Edges.of(graph)))
    assert same is ("cross" not in name)


@pytest.mark.parametrize("name", BACKBONES)
def test_what_a_backbone_tells_of_itself_makes_it_again(name):
    backbone = make(name).backbone.float()
    about = json.loads(json.dumps(backbone.about()))
    again = make_backbone(**about)
    again.load_state_dict(backbone.state_dict())
    assert again.about() == about and type(again) is type(backbone)
    graph, W_hat = graph_of(random_table(5)), torch.randn(D, backbone.width + backbone.n_own)
    assert torch.equal(again.logits(graph, W_hat, W_hat), backbone.logits(graph, W_hat, W_hat))


def test_batch_norm_and_dropout_are_told_too():
    for backbone in (MLP(3, 1, (4,), batch_norm=True, dropout=0.1), DCN(3), DeepFM(3), WideDeep(3)):
        about = backbone.about()
        assert about["batch_norm"] and about["dropout"] == (0.1 if backbone.name == "mlp" else 0.5)


@pytest.mark.parametrize("values", [None, random_values(0)], ids=["ones", "values"])
@pytest.mark.parametrize("name", [n for n in BACKBONES if "field" not in n and "cross" not in n])
def test_cells_at_hand_pool_as_a_graph_does(name, values):
    backbone, X = make(name).backbone, random_table(0)
    W_hat = torch.randn(D, backbone.width + backbone.n_own, dtype=torch.float64)
    weights = X if values is None else X * values
    cells = W_hat.expand(len(X), -1, -1)
    ours = backbone.pooled(cells, weights)
    assert_near(ours, backbone.sums(graph_of(X, values=values), W_hat), 1e-12)


@pytest.mark.parametrize("name", ["mlp by field", "dcn by field"])
def test_room_for_more_fields_leaves_the_function_as_it_was(name):
    """Also where the added fields have embeddings, whose weights can then be learned."""
    model = make(name)
    wider = with_fields(model.backbone, 5)
    graph = graph_of(random_table(6, n_features=9, share=0.8), [*FIELDS, 3, 4, 4])
    W_hat = torch.randn(9, H, dtype=torch.float64)
    assert wider.n_fields == 5
    logits = wider.logits(graph, W_hat)
    assert_near(logits, model.backbone.logits(graph, W_hat), 1e-12)
    logits.square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in wider.parameters())
    deep = wider if name == "mlp by field" else wider.deep
    assert deep.layers[0].weight.grad[:, 3 * H :].abs().sum() > 0
    assert with_fields(make("dcn").backbone, 9).n_fields is None


@pytest.mark.parametrize("name", ["deepfm", "wide and deep"])
def test_a_new_feature_without_rows_has_no_linear_weight(name):
    model, X = make(name), random_table(2, n_features=7, share=0.7)
    X[:, 6] = 0
    fields = torch.tensor([*FIELDS, 0])
    W_hat = model.extrapolate(graph_of(X), fields)
    assert_near(W_hat[6, :H], model.W[:2, :H].detach().mean(0), 1e-12)
    assert not W_hat[6, H:].any()
    running = RunningFATE(model).embeddings(np.array([6], dtype=np.int32), fields.numpy())
    assert_near(running, W_hat[6:], 1e-12)


def test_a_machine_over_unit_embeddings_starts_silent():
    """With a scale of one the first logit grew with the square of the fields: training broke."""
    torch.manual_seed(0)
    graph, _ = Bipartite.from_fixed(torch.arange(40)[None].repeat(2, 1))
    start = {}
    for scale in (None, 1.0):
        backbone = DeepFM(10, hidden=(8,), fm_scale=scale, batch_norm=False, dropout=0.0)
        model = FATE(40, backbone, GraphSAGE(10), recompose="all")
        kept = torch.ones(40, dtype=torch.bool)
        start[scale] = float(model(graph, kept, Edges.of(graph)).detach().abs().max())
    assert start[None] < 20 < 500 < start[1.0]


@pytest.mark.parametrize("kind", [WideDeep, DeepFM])
def test_a_scale_of_linear_weights_can_be_worked_into_them(kind):
    model, X = FATE(D, kind(H, 2, **PLAIN)).double(), bipartite(random_table(5, D))
    model.backbone.linear_scale = 7.0
    with torch.no_grad():
        model.W[:, H:].normal_()
        scaled = model.predict(X, model.W)
        model.backbone.fold_linear(model.W)
        assert model.backbone.linear_scale == 1
        assert_near(model.predict(X, model.W), scaled, 1e-12)
        model.W[:, H:] /= 7
        assert (model.predict(X, model.W) - scaled).abs().max() > 0.1


def test_linear_weights_start_at_zero_and_embeddings_do_not():
    W = FATE(5, DeepFM(H), GraphSAGE(H)).W
    assert not W[:, H:].any() and W[:, :H].any()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DeepFM(4, fm="dot"), "fm='dot' is unknown: choose 'pairs', 'paper' or 'cross'."),
        (
            lambda: WideDeep(4, linear="own"),
            "linear='own' is unknown: choose 'zero' or 'extrapolated'.",
        ),
        (
            lambda: MLP(4, 1, pool="concat"),
            "pool='concat' is unknown: choose 'sum' or 'field_linear'.",
        ),
        (
            lambda: make_backbone("tree", 4, 1),
            "backbone='tree' is unknown: choose 'mlp', 'deepfm', 'widedeep' or 'dcn'.",
        ),
        (
            lambda: DCN(4, pool="field_linear"),
            "pool='field_linear' needs n_fields, one or more, not None.",
        ),
        (
            lambda: FATE(3, DeepFM(4, linear="extrapolated"), GraphSAGE(4)),
            "the backbone's width is 5, the extrapolator's 4: give both the same.",
        ),
        (
            lambda: make("mlp by field").predict(bipartite(random_table(0)), torch.zeros(D, H)),
            "sums of fields need a graph with field_of: see Bipartite.with_fields.",
        ),
        (
            lambda: make("deepfm, cross").backbone.logits(
                graph_of(random_table(0)), torch.zeros(D, H + 1)
            ),
            "fm='cross' pairs W_hat with W: give the features' own W too.",
        ),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(InputError) as error:
        build()
    assert str(error.value) == message
