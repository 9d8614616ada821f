import numpy as np
import pytest
import torch

from openfate.table import MultiHot
from openfate.training import Settings
from openfate_lab.data import load
from openfate_lab.experiments.uci_methods import METHODS, Trial, make_split

EPOCHS = 4


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def trial(dataset, compat=None, novelty="values", seed=0, observed=0.5):
    split = make_split(dataset, observed, seed, novelty, compat)
    return Trial(dataset, split, seed, Settings(epochs=EPOCHS).compat(compat), compat)


@pytest.mark.parametrize("compat", [None, "paper", "reference"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_score_and_finite_losses(digits, method, compat):
    result = trial(digits, compat).result(method)
    assert 0 <= result["score"] <= 1
    assert np.isfinite([result["test_log_loss"], result["validation_log_loss"]]).all()
    assert 1 <= result["best_epoch"] <= EPOCHS


@pytest.mark.parametrize("method", METHODS)
def test_a_method_gives_the_same_numbers_alone_and_after_others(digits, method):
    alone = trial(digits).result(method)
    shared = trial(digits)
    for other in METHODS:
        last = shared.result(other)
        if other == method:
            break
    del alone["seconds"], last["seconds"]
    assert alone == last


def test_whole_columns_are_new_under_columns_novelty(digits):
    split = make_split(digits, 0.5, 0, "columns")
    observed, new = set(digits.field_of[split.observed]), set(digits.field_of[split.new])
    assert len(observed) == 32
    assert not observed & new


@pytest.mark.parametrize("method", ["base", "base_dropout", "fate_drop_new"])
def test_methods_that_drop_new_features_never_look_at_them(digits, method):
    one, other = trial(digits), trial(digits)
    n = one.n_observed
    other.test_all = one.observed_only(one.test_all).widen(one.test_all.n_features)
    assert one.observed_only(one.test_all).n_features == n
    assert one.result(method)["score"] == other.result(method)["score"]


@pytest.mark.parametrize("method", ["fate", "average", "knn", "pooling", "inl", "oracle"])
def test_methods_that_use_new_features_look_at_them(digits, method):
    one, other = trial(digits), trial(digits)
    other.test_all = one.observed_only(one.test_all).widen(one.test_all.n_features)
    with_new = one.result(method)["test_log_loss"]
    assert with_new != other.result(method)["test_log_loss"]


@pytest.mark.parametrize("method", ["fate", "base", "average", "knn", "pooling", "base_dropout"])
def test_training_never_sees_new_features_of_training_rows(digits, method):
    one, other = trial(digits), trial(digits)
    for name in ("train_all", "validation_all"):
        X = getattr(other, name)
        setattr(other, name, other.observed_only(X).widen(X.n_features))
    assert one.result(method)["score"] == other.result(method)["score"]


def test_inl_changes_no_observed_embedding_in_its_second_stage(digits):
    one = trial(digits)
    first, _ = one.base_fit
    seen = {}
    original = one._fit

    def spy(model, X, validation, settings):
        assert X.feature_degree[: one.n_observed].sum() == 0
        seen["model"], history = original(model, X, validation, settings)
        return seen["model"], history

    one._fit = spy
    one.inl()
    torch.testing.assert_close(seen["model"].W[: one.n_observed], first.W)


def test_the_extrapolator_sees_training_rows_at_test_time_unless_paper(digits):
    ours, paper = trial(digits), trial(digits, "paper")
    n_rows = digits.X.n_rows
    assert ours.test_graph.n_rows == n_rows
    assert paper.test_graph.n_rows == len(paper.split.test)
    new_edges = ours.test_graph.feature_degree[ours.n_observed :].sum()
    assert new_edges == paper.test_graph.feature_degree[paper.n_observed :].sum()


def test_a_new_feature_without_rows_is_flagged_and_harmless(digits):
    one = trial(digits)
    feature = int(one.split.new[0])
    X = one.test_all
    keep = X.ids != one.n_observed  # the first new feature loses its rows
    row = X.row_of[keep]
    one.test_all = MultiHot.from_entries(row, X.ids[keep], X.n_rows, X.n_features)
    assert feature in one.new_features_without_rows
    assert np.isfinite(one.result("fate")["test_log_loss"])


def test_features_without_training_rows_are_those_that_a_method_trains_with(digits):
    one = trial(digits)
    X = one.train_all
    keep = ~np.isin(X.ids, [0, X.n_features - 1])  # an observed and a new feature lose their rows
    one.train_all = MultiHot.from_entries(X.row_of[keep], X.ids[keep], X.n_rows, X.n_features)
    observed, new = int(one.split.observed[0]), int(one.split.new[-1])
    assert observed in one.result("fate")["features_without_training_rows"]
    assert new not in one.result("fate")["features_without_training_rows"]
    assert {observed, new} <= set(one.result("inl")["features_without_training_rows"])


def test_k_shot_takes_the_graph_networks_output_for_all_features(digits):
    split = make_split(digits, 0.5, 0)
    settings = Settings(epochs=1, masking="k_shot", n_kept=50)
    one = Trial(digits, split, 0, settings)
    assert one.fate_fit[0].recompose == "all"
    assert one.result("fate_drop_new")["score"] >= 0


def test_reference_leaves_the_stray_feature_out(digits):
    split = make_split(digits, 0.3, 0, compat="reference")
    assert len(split.observed) + len(split.new) < digits.X.n_features
