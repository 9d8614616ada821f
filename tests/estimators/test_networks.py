"""Estimators over every backbone: fit, predict what is new, observe, save, load, refit, explain."""

from __future__ import annotations

import copy

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

from openfate.bank import FeatureBank, Network, nearest
from openfate.errors import DataFileError, InputError
from openfate.estimators import FATEClassifier, FATERegressor, load
from openfate.estimators.networks import grow_members
from openfate.graph import Bipartite
from openfate.models import DCN, FATE, MLP, DeepFM, GraphSAGE, RunningFATE, WideDeep
from openfate.table import Encoder, MultiHot, Schema

CASES = {
    "mlp": {"backbone": "mlp"},
    "mlp by field": {"backbone": "mlp", "pool": "field_linear"},
    "deepfm": {"backbone": "deepfm"},
    "deepfm, extrapolated": {"backbone": "deepfm", "linear": "extrapolated"},
    "wide and deep": {"backbone": "widedeep"},
    "dcn": {"backbone": "dcn"},
    "dcn by field": {"backbone": "dcn", "pool": "field_linear"},
}
KINDS = {"mlp": MLP, "deepfm": DeepFM, "widedeep": WideDeep, "dcn": DCN}
QUICK = {"width": 8, "hidden": (8,), "epochs": 10, "n_draws": 1, "lr": 2e-2, "n_folds": 2}
N = 120


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "job": rng.choice(["cook", "nurse", "pilot"], N),
            "age": rng.uniform(20, 70, N).round(1),
            "zip": rng.choice(["01", "02"], N),
        }
    )


@pytest.fixture(scope="module")
def y(rows):
    return (rows["age"].to_numpy() + 20 * (rows["job"] == "nurse").to_numpy() > 50).astype(int)


@pytest.fixture(scope="module")
def later(rows, y):
    """A new column, and new values of an old one; both tell the class."""
    return rows.with_columns(
        job=pl.when(pl.Series(y) == 1).then(pl.lit("judge")).otherwise("job"),
        city=pl.Series(np.where(y, "Rome", "Oslo")),
    )


@pytest.fixture(
    scope="module", params=[(s, c) for s in ("fate", "evidence") for c in CASES], ids=str
)
def fitted(request, rows, y):
    strategy, case = request.param
    options = {**QUICK, **CASES[case], "strategy": strategy, "numeric": "value"}
    return FATEClassifier(**options).fit(rows, y)


@pytest.fixture
def model(fitted):
    return copy.deepcopy(fitted)


def test_the_backbone_is_the_one_that_was_asked_for(fitted, rows):
    for member in fitted.bank_.model.members:
        assert type(member.backbone) is KINDS[fitted.backbone]
        assert member.backbone.n_fields == (3 if fitted.pool == "field_linear" else None)
    assert fitted.bank_.meta["params"]["backbone"] == fitted.backbone


@pytest.mark.parametrize("graph", ["auto", "state", "batch"])
def test_new_columns_and_values_are_predicted_with(model, later, graph):
    model.observe(later)
    p = model.predict_proba(later, graph)
    assert np.isfinite(p).all() and np.allclose(p.sum(1), 1)
    assert not np.allclose(p, model.predict_proba(later, graph, new_features="drop"))


def test_a_new_column_counts_where_fields_are_summed_together(model, rows, later):
    """Side by side there are no weights for it, and the report says so."""
    only_column = rows.with_columns(later["city"])
    same = np.allclose(model.predict_proba(only_column), model.predict_proba(rows), atol=1e-9)
    silent = model.strategy == "fate" and model.pool == "field_linear"
    assert same is silent
    assert ("New columns are not" in model.schema_report(only_column).note) is silent


def test_observed_sums_are_those_of_the_whole_graph(model, rows, later):
    """The slow twin: one graph of all rows ever seen, through `FATE.extrapolate`."""
    model.observe(later[:50]).observe(later[50:])
    bank = model.bank_
    observed = bank.encoder.field_of[: bank.n_observed]
    network = grow_members(bank.model, observed)[0].double().eval()
    parts = [bank.encoder.encode(part) for part in (rows, later)]
    field_of = torch.from_numpy(bank.encoder.field_of)
    W_hat = network.extrapolate(Bipartite.from_multihot(MultiHot.stack(parts)), field_of)
    X = Bipartite.from_multihot(parts[1]).with_fields(field_of)
    with torch.no_grad():
        expected = network.predict(X, W_hat).numpy()
    running = bank.model.members[0].logits(parts[1], bank.encoder.field_of)
    np.testing.assert_allclose(running, expected, rtol=1e-6, atol=1e-9)


def test_a_bundle_gives_the_same_bytes(model, later, tmp_path):
    model.observe(later)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.get_params()["backbone"] == model.backbone
    for graph in ("state", "batch"):
        assert np.array_equal(again.predict_proba(later, graph), model.predict_proba(later, graph))
    again.observe(later), model.observe(later)
    assert np.array_equal(again.predict_proba(later), model.predict_proba(later))
    again.save(tmp_path / "again")
    weights = [next((tmp_path / name).glob("weights-*")).read_bytes() for name in ("m", "again")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "lie",
    [
        {"hidden": [10**13]},  # would not fit into memory
        {"name": "tree"},
        {"n_fields": 9, "pool": "field_linear"},
        {"linear": "extrapolated"},
        {"width": -1},
    ],
)
def test_a_bundle_that_tells_of_another_backbone_is_refused(rows, y, lie):
    bundle = FATEClassifier(**QUICK, strategy="fate").fit(rows, y).bank_.to_bundle()
    bundle.meta["backbone"] = {**bundle.meta["backbone"], **lie}
    with pytest.raises(DataFileError, match="the parts of the bundle do not fit together"):
        FeatureBank.from_bundle(bundle)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("prior_rows", [None, 3.0])
def test_a_bundle_tells_how_its_graphsage_computes(rows, later, tmp_path, normalize, prior_rows):
    encoder = Encoder(Schema.from_frame(rows)).fit(rows)
    sage = GraphSAGE(8, normalize=normalize, prior_rows=prior_rows)
    model = RunningFATE(FATE(encoder.n_features, MLP(8, 1), sage, recompose="all"))
    bank = FeatureBank(encoder, Network([model], "binary"), [0, 1])
    bank.observe(later)
    bank.save(tmp_path / "m")
    again = FeatureBank.load(tmp_path / "m")
    assert np.array_equal(again.predict(later), bank.predict(later))
    again.observe(later), bank.observe(later)
    assert np.array_equal(again.predict(later), bank.predict(later))


@pytest.mark.parametrize("lie", [None, {"prior_rows": 1.0}, {"n_layers": 3}])
def test_a_bundle_that_tells_of_another_graphsage_is_refused(rows, y, lie):
    bundle = FATEClassifier(**QUICK, strategy="fate").fit(rows, y).bank_.to_bundle()
    bundle.meta["extrapolator"] = lie
    with pytest.raises(DataFileError, match="the parts of the bundle do not fit together"):
        FeatureBank.from_bundle(bundle)


def test_explanations_and_neighbours_are_told(model, later):
    model.observe(later)
    effects = model.explain(later[:3])
    assert np.isfinite(effects["effect"].to_numpy()).all()
    assert set(effects["field"]) == set(later.columns)
    told = nearest(model.bank_, "job", "judge")
    assert told["new"] and all(np.isfinite(v) for v in told["effect"].values())
    assert nearest(model.bank_, "job", "cook", k=2)["nearest"]


def test_refit_learns_what_was_new(model, later, y):
    """Also columns that a network had no weights for."""
    model.set_params(epochs=40).refit(later.select("zip", "city"), y)
    assert model.refit_report_["absorbed_features"] >= 2
    assert np.mean(model.predict(later.select("zip", "city")) == y) > 0.95


@pytest.mark.parametrize("case", ["deepfm", "wide and deep", "dcn by field"])
def test_regression_and_many_classes_take_every_backbone(rows, case):
    options = {**QUICK, **CASES[case], "epochs": 40, "n_members": 1}
    reg = FATERegressor(**options, strategy="none").fit(rows, rows["age"] * 2.0)
    assert reg.score(rows, rows["age"] * 2.0) > 0.5
    clf = FATEClassifier(**options, strategy="fate").fit(rows, rows["job"])
    assert clf.score(rows, rows["job"]) > 0.95


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strategy", ["fate", "auto"])
def test_a_network_may_have_no_hidden_layer(rows, y, later, tmp_path, case, strategy):
    """Not the default ones; as the parameter says."""
    options = {**QUICK, **CASES[case], "hidden": ()}
    model = FATEClassifier(**options, strategy=strategy).fit(rows, y)
    assert model.bank_.model.settings()["backbone"]["hidden"] == []
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.hidden == ()
    assert np.array_equal(again.predict_proba(later), model.predict_proba(later))


def test_a_product_of_two_columns_is_what_the_machine_adds(rows):
    """Without hidden layers to speak of, only the pairs can tell whether two columns agree."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (2, 400))
    table = pl.DataFrame({"a": a.astype(str), "b": b.astype(str)})
    options = {"hidden": (1,), "epochs": 60, "lr": 2e-2, "n_members": 1, "strategy": "none"}
    machine = FATEClassifier(backbone="deepfm", **options).fit(table, a ^ b)
    assert machine.score(table, a ^ b) == 1.0
    assert abs(float(machine.bank_.model.members[0].backbone.fm_weight[0])) > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"backbone": "tree"},
            "backbone='tree' is unknown: choose 'mlp', 'deepfm', 'widedeep' or 'dcn'.",
        ),
        (
            {"backbone": "deepfm", "pool": "field_linear"},
            "pool='field_linear' is not for backbone='deepfm': leave it at 'sum', or choose "
            "backbone 'mlp' or 'dcn'.",
        ),
        (
            {"backbone": "mlp", "linear": "extrapolated"},
            "linear='extrapolated' is not for backbone='mlp': leave it at 'zero', or choose "
            "backbone 'deepfm' or 'widedeep'.",
        ),
        (
            {"backbone": "widedeep", "linear": "own"},
            "linear='own' is unknown: choose 'zero' or 'extrapolated'.",
        ),
        ({"pool": "mean"}, "pool='mean' is unknown: choose 'sum' or 'field_linear'."),
    ],
)
def test_what_does_not_fit_is_named(rows, y, options, message):
    with pytest.raises(InputError) as error:
        FATEClassifier(**options).fit(rows, y)
    assert str(error.value) == message


@pytest.mark.parametrize("backbone", ["deepfm", "widedeep", "dcn", "mlp"])
def test_a_short_training_at_a_given_rate_goes_its_whole_way(backbone):
    """One epoch of ten mini-batches learns what it can, and no less than a longer one's first."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 5, (4000, 4))
    effect = rng.normal(0, 1, (4, 5))
    y = rng.random(4000) < 1 / (1 + np.exp(-effect[np.arange(4), values].sum(1)))
    frame = pl.DataFrame({f"c{at}": column.astype(str) for at, column in enumerate(values.T)})
    options = {"strategy": "none", "n_members": 1, "backbone": backbone, "hidden": (64,)}
    options |= {"batch_size": 340, "lr": 1e-2, "width": 16}
    clf = FATEClassifier(**options, epochs=1).fit(frame[:3000], y[:3000])
    assert roc_auc_score(y[3000:], clf.predict_proba(frame[3000:])[:, 1]) > 0.7
    net = clf.bank_.model.members[0].backbone
    assert getattr(net, "linear_scale", 1) == 1


def test_a_probe_beside_the_training_finds_what_one_after_it_finds(rows, y, later):
    options = {"epochs": 40, "n_members": 2, "random_state": 3}
    n_threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            clf = FATEClassifier(**options).fit(rows, y)
            assert torch.get_num_threads() == count
            found.append((clf.predict_proba(later).tobytes(), clf.bank_.describe_usage()))
    finally:
        torch.set_num_threads(n_threads)
    assert found[0] == found[1]


def test_a_training_that_fails_beside_a_probe_says_why(rows, y):
    def stop(step):
        raise KeyboardInterrupt

    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(KeyboardInterrupt):
            FATEClassifier(callback=stop).fit(rows, y)
    finally:
        torch.set_num_threads(n_threads)
