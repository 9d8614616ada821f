"""Every method of the paper's UCI experiment on one split of one data set.

Rows are split 6:2:2.  Training and validation rows show the observed features only, test rows
show all.  Every method starts from the same split and seed, so their differences are paired.

    fate            the paper's model: 3-layer network, 4-layer GCN, n-fold masking
    fate_drop_new   control: the same trained model, its new features dropped
    base            the network alone, new features dropped
    base_dropout    control: the network trained with the same masking, no graph
    average knn pooling   base, with embeddings of new features estimated from the observed ones
    inl             base, trained again on the new features alone
    oracle          trained with all features
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from openfate.graph import Bipartite
from openfate.models import FATE, GCN, MLP
from openfate.table import MultiHot
from openfate.training import (
    Compat,
    History,
    Settings,
    accuracy,
    log_loss,
    probabilities,
    roc_auc,
    train,
)
from openfate_lab.data import Dataset, Split, split_features, split_fields, split_rows
from openfate_lab.experiments.feature_baselines import average, knn, pooling

METHODS = (
    "fate",
    "fate_drop_new",
    "base",
    "base_dropout",
    "average",
    "knn",
    "pooling",
    "inl",
    "oracle",
)

Novelty = Literal["values", "columns"]
Recompose = Literal["masked", "all"]

WIDTH = 8  # PAPER: appendix, hidden size 8
N_LAYERS = 4


class Trial:
    """One split of one data set, and the models that its methods share."""

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        seed: int,
        settings: Settings | None = None,
        compat: Compat = None,
        recompose: Recompose | None = None,
        centred: bool = False,
    ) -> None:
        self.dataset, self.split, self.seed, self.compat = dataset, split, seed, compat
        self.centred = centred
        self.settings = settings or Settings()
        # PAPER: n-fold recomposes W_hat from both, k-shot takes the graph network's output alone.
        by_masking: Recompose = "all" if self.settings.masking == "k_shot" else "masked"
        self.recompose = recompose or by_masking
        self.n_observed = len(self.split.observed)
        order = np.concatenate([self.split.observed, self.split.new])  # the new ones come last
        self.field_of = dataset.field_of[order]
        X = dataset.X.select_features(order)
        self.train_all, self.validation_all, self.test_all = (
            X.select_rows(rows)
            for rows in (self.split.train, self.split.validation, self.split.test)
        )
        self.y_train, self.y_validation, self.y_test = (
            dataset.y[rows] for rows in (self.split.train, self.split.validation, self.split.test)
        )
        # PAPER: sigmoid for two classes.  REFERENCE: a softmax over two outputs.
        binary = len(dataset.classes) == 2 and compat != "reference"
        self.n_outputs = 1 if binary else len(dataset.classes)

    def observed_only(self, X: MultiHot) -> MultiHot:
        """The columns that training may see."""
        return X.select_features(np.arange(self.n_observed))

    @cached_property
    def test_observed(self) -> Bipartite:
        """Test rows without their new features."""
        return Bipartite.from_multihot(self.observed_only(self.test_all))

    @cached_property
    def test_rows(self) -> Bipartite:
        """Test rows with all features."""
        return Bipartite.from_multihot(self.test_all)

    @cached_property
    def test_graph(self) -> Bipartite:
        """The graph that the extrapolator sees at test time."""
        return Bipartite.from_multihot(self._test_table())

    def _test_table(self) -> MultiHot:
        if self.compat == "paper":  # PAPER: X = X_te
            return self.test_all
        seen = [self.observed_only(X) for X in (self.train_all, self.validation_all)]
        return MultiHot.stack([*seen, self.test_all])

    @property
    def new_features_without_rows(self) -> list[int]:
        """Ids of new features that no row shows: W_hat is their field's mean, or zero."""
        degree = self.test_graph.feature_degree[self.n_observed :].numpy()
        return [int(feature) for feature in self.split.new[degree == 0]]

    # ---- models that methods share -----------------------------------------------------------

    def _model(self, n_features: int, extrapolator: bool = False) -> FATE:
        torch.manual_seed(self.seed)
        backbone = MLP(WIDTH, self.n_outputs)
        gcn = GCN(WIDTH, N_LAYERS, bias=self.compat != "paper") if extrapolator else None
        return FATE(
            n_features,
            backbone,
            gcn,
            recompose=self.recompose,
            init_features=self.dataset.X.n_features,
            centred=self.centred,
        )

    def _fit(
        self, model: FATE, X: MultiHot, validation: MultiHot, settings: Settings
    ) -> tuple[FATE, History]:
        history = train(
            model,
            X,
            self.y_train,
            settings,
            validation=(validation, self.y_validation),
            field_of=self.field_of[: X.n_features],
            seed=self.seed,
        )
        return model, history

    def _fit_observed(self, extrapolator: bool, settings: Settings) -> tuple[FATE, History]:
        X, validation = map(self.observed_only, (self.train_all, self.validation_all))
        return self._fit(self._model(self.n_observed, extrapolator), X, validation, settings)

    @cached_property
    def fate_fit(self) -> tuple[FATE, History]:
        """The paper's model."""
        return self._fit_observed(True, self.settings)

    @cached_property
    def base_fit(self) -> tuple[FATE, History]:
        """The network alone."""
        if self.compat != "reference":
            return self._fit_observed(False, replace(self.settings, masking="none"))
        # REFERENCE: new features take part in validation and test with their random start.
        X = self.observed_only(self.train_all).widen(self.train_all.n_features)
        settings = replace(self.settings, masking="none", untrained="leave")
        return self._fit(self._model(X.n_features), X, self.validation_all, settings)

    @cached_property
    def oracle_fit(self) -> tuple[FATE, History]:
        """The network alone, trained with all features."""
        settings = replace(self.settings, masking="none")
        model = self._model(self.train_all.n_features)
        return self._fit(model, self.train_all, self.validation_all, settings)

    # ---- methods: each gives logits of the test rows, and the run behind them ------------------

    def fate(self) -> tuple[Tensor, History]:
        """New features extrapolated by the graph network."""
        model, history = self.fate_fit
        return model.predict(self.test_rows, self.fate_embeddings()), history

    def fate_embeddings(self) -> Tensor:
        """W_hat of all features at test time, the observed ones first: (D', H)."""
        fields = torch.from_numpy(self.field_of.astype(np.int64))
        return self.fate_fit[0].extrapolate(self.test_graph, fields)

    def fate_drop_new(self) -> tuple[Tensor, History]:
        """The same model without the new features."""
        model, history = self.fate_fit
        graph = Bipartite.from_multihot(self.observed_only(self._test_table()))
        return model.predict(self.test_observed, model.extrapolate(graph)), history

    def base(self) -> tuple[Tensor, History]:
        """New features dropped."""
        model, history = self.base_fit
        rows = self.test_rows if self.compat == "reference" else self.test_observed
        return model.predict(rows, model.W), history

    def base_dropout(self) -> tuple[Tensor, History]:
        """The network trained with masks but no graph."""
        model, history = self._fit_observed(False, self.settings)
        return model.predict(self.test_observed, model.W), history

    def average(self) -> tuple[Tensor, History]:
        """New features at the mean of the observed ones."""
        return self._estimated(average)

    def knn(self) -> tuple[Tensor, History]:
        """New features at the mean of those most like them."""
        similarity = "cooccurrence" if self.compat == "reference" else "jaccard"
        return self._estimated(lambda W, graph: knn(W, graph, similarity=similarity))

    def pooling(self) -> tuple[Tensor, History]:
        """New features by mean pooling over the graph, twice."""
        return self._estimated(
            lambda W, graph: pooling(W, graph, binary=self.compat == "reference")
        )

    def _estimated(self, estimate: Callable[[Tensor, Bipartite], Tensor]) -> tuple[Tensor, History]:
        model, history = self.base_fit
        W_hat = estimate(model.W.detach()[: self.n_observed], self.test_rows)
        return model.predict(self.test_rows, W_hat), history

    def inl(self) -> tuple[Tensor, History]:
        """Base, then trained again on the new features alone.

        PAPER: appendix, two stages; the second is validated with all features.
        """
        first, first_history = self.base_fit
        model = self._model(self.train_all.n_features)
        model.backbone.load_state_dict(first.backbone.state_dict())
        with torch.no_grad():
            model.W[: self.n_observed] = first.W[: self.n_observed]
        n_all = self.train_all.n_features
        new = self.train_all.select_features(np.arange(self.n_observed, n_all))
        only_new = MultiHot(new.row_ptr, new.ids + np.int32(self.n_observed), n_all)
        settings = replace(self.settings, masking="none", untrained="leave")
        model, history = self._fit(model, only_new, self.validation_all, settings)
        history.seconds += first_history.seconds
        return model.predict(self.test_rows, model.W), history

    def oracle(self) -> tuple[Tensor, History]:
        """Trained with all features."""
        model, history = self.oracle_fit
        return model.predict(self.test_rows, model.W), history

    # ---- the record --------------------------------------------------------------------------

    def result(self, method: str) -> dict[str, Any]:
        """Run a method and score it on the test rows."""
        with torch.random.fork_rng(devices=[]):
            logits, history = getattr(self, method)()
        logits = logits.detach()
        y = torch.from_numpy(self.y_test)
        if self.dataset.metric == "auc":
            # REFERENCE: ranks by the second logit, which is not the model's probability.
            p = logits if self.compat == "reference" else probabilities(logits)
            score = roc_auc(p[:, 1].numpy(), self.y_test)
        else:
            score = accuracy(probabilities(logits), y)
        best = history.steps[history.best - 1]
        return {
            "metric": self.dataset.metric,
            "score": score,
            "test_log_loss": float(log_loss(logits, y)),
            "validation_log_loss": best.validation_loss,
            "best_epoch": history.best,
            "seconds": round(history.seconds, 3),  # of training, whether or not it is shared
            "features_without_training_rows": self.without_training_rows(method),
        }

    def without_training_rows(self, method: str) -> list[int]:
        """Ids of the features that a method trains with but that no training row has."""
        order = np.concatenate([self.split.observed, self.split.new])
        n_used = len(order) if method in ("inl", "oracle") else self.n_observed
        absent = order[:n_used][self.train_all.feature_degree[:n_used] == 0]
        return [int(feature) for feature in np.sort(absent)]


def make_split(
    dataset: Dataset,
    observed: float,
    seed: int,
    novelty: Novelty = "values",
    compat: Compat = None,
) -> Split:
    """Rows 6:2:2 and the observed share of the features, or of whole columns."""
    rows = split_rows(dataset.X.n_rows, seed=seed)
    if novelty == "columns":
        features = split_fields(dataset.field_of, observed, seed=seed)
    else:
        rounding: Literal["complement", "reference"] = (
            "reference" if compat == "reference" else "complement"
        )
        features = split_features(dataset.X.n_features, observed, seed=seed, rounding=rounding)
    return Split(*rows, *features, seed=seed, description=f"{novelty}, 6:2:2 at random")
