"""The paper's first experiment: six data sets, 30 to 80 % of the 0-1 features observed (figure 4).

Rows are split 6:2:2.  Training and validation rows show the observed features only, test rows show all.
Every method starts from the same split and seed, so their differences are paired.

    fate            the paper's model: 3-layer network, 4-layer GCN, n-fold masking
    fate_drop_new   control: the same trained model, its new features dropped
    base            the network alone, new features dropped
    base_dropout    control: the network trained with the same masking, no graph
    average knn pooling   base, with embeddings of new features estimated from the observed ones
    inl             base, trained again on the new features alone
    oracle          trained with all features
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from openfate.data.datasets import Dataset, load
from openfate.data.multihot import MultiHot
from openfate.data.split import Split, split_features, split_fields, split_rows
from openfate.experiments.runner import check_same_settings, open_record, versions, write_json
from openfate.graph.bipartite import Bipartite, Edges
from openfate.models.backbone import MLP
from openfate.models.baselines import average, knn, pooling
from openfate.models.extrapolator import GCN
from openfate.models.fate import FATE
from openfate.training.loop import History, train
from openfate.training.metrics import accuracy, log_loss, probabilities, roc_auc
from openfate.training.settings import Compat, Settings

__all__ = ["METHODS", "Plan", "Trial", "run_trial"]

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

WIDTH = 8  # PAPER: appendix, hidden size 8
N_LAYERS = 4


@dataclass(frozen=True)
class Plan:
    """One trial to run: everything that its numbers depend on."""

    dataset: str
    observed: float
    seed: int
    methods: tuple[str, ...]
    out: Path
    data: str | None = None
    compat: Compat = None
    novelty: Literal["values", "columns"] = "values"
    split_seed: int | None = None
    settings: Settings = Settings()
    command: str = ""

    @property
    def path(self) -> Path:
        """The trial's record."""
        place = self.out / variant(self.compat, self.novelty) / self.dataset
        return place / f"observed-{self.observed:g}" / f"seed-{self.seed}" / "trial.json"


def variant(compat: Compat, novelty: str) -> str:
    """The folder of one kind of run: default, paper or reference, and -columns."""
    return (compat or "default") + ("-columns" if novelty == "columns" else "")


class Trial:
    """One split of one data set, and the models that its methods share."""

    def __init__(self, dataset: Dataset, plan: Plan) -> None:
        self.plan, self.dataset, self.seed = plan, dataset, plan.seed
        self.settings = plan.settings.compat(plan.compat)
        self.split = make_split(dataset, plan)
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
        binary = len(dataset.classes) == 2 and plan.compat != "reference"
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
        """The rows that the extrapolator sees at test time."""
        if self.plan.compat == "paper":  # PAPER: X = X_te
            return self.test_rows
        seen = [self.observed_only(X) for X in (self.train_all, self.validation_all)]
        return Bipartite.from_multihot(MultiHot.stack([*seen, self.test_all]))

    # ---- models that methods share -----------------------------------------------------------

    def _model(self, n_features: int, extrapolator: bool = False) -> FATE:
        torch.manual_seed(self.seed)
        backbone = MLP(WIDTH, self.n_outputs)
        gcn = GCN(WIDTH, N_LAYERS, bias=self.plan.compat != "paper") if extrapolator else None
        return FATE(n_features, backbone, gcn, init_features=self.train_all.n_features)

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
        if self.plan.compat != "reference":
            return self._fit_observed(False, replace(self.settings, masking="none"))
        # REFERENCE: new features take part in validation and test with their random start.
        X = self.observed_only(self.train_all).widen(self.train_all.n_features)
        settings = replace(self.settings, masking="none", untrained="leave")
        return self._fit(self._model(X.n_features), X, self.validation_all, settings)

    # ---- methods: each gives logits of the test rows, and the run behind them ------------------

    def fate(self) -> tuple[Tensor, History]:
        """New features extrapolated by the graph network."""
        model, history = self.fate_fit
        edges = Edges.of(self.test_graph)
        W_hat = model.extrapolate(edges, torch.from_numpy(self.field_of.astype(np.int64)))
        return model.predict(self.test_rows, W_hat), history

    def fate_drop_new(self) -> tuple[Tensor, History]:
        """The same model without the new features."""
        model, history = self.fate_fit
        return model.predict(self.test_observed, model.W), history

    def base(self) -> tuple[Tensor, History]:
        """New features dropped."""
        model, history = self.base_fit
        rows = self.test_rows if self.plan.compat == "reference" else self.test_observed
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
        similarity = "cooccurrence" if self.plan.compat == "reference" else "jaccard"
        return self._estimated(lambda W, graph: knn(W, graph, similarity=similarity))

    def pooling(self) -> tuple[Tensor, History]:
        """New features by mean pooling over the graph, twice."""
        return self._estimated(
            lambda W, graph: pooling(W, graph, binary=self.plan.compat == "reference")
        )

    def _estimated(self, estimate: Callable[[Tensor, Bipartite], Tensor]) -> tuple[Tensor, History]:
        model, history = self.base_fit
        W_hat = estimate(model.W.detach()[: self.n_observed], self.test_rows)
        return model.predict(self.test_rows, W_hat), history

    def inl(self) -> tuple[Tensor, History]:
        """Base, then trained again on the new features alone.

        PAPER: appendix, two stages; the second is validated with all features.
        """
        first, _ = self.base_fit
        model = self._model(self.train_all.n_features)
        model.backbone.load_state_dict(first.backbone.state_dict())
        with torch.no_grad():
            model.W[: self.n_observed] = first.W[: self.n_observed]
        n_all = self.train_all.n_features
        new = self.train_all.select_features(np.arange(self.n_observed, n_all))
        only_new = MultiHot(new.row_ptr, new.ids + np.int32(self.n_observed), n_all)
        settings = replace(self.settings, masking="none", untrained="leave")
        model, history = self._fit(model, only_new, self.validation_all, settings)
        return model.predict(self.test_rows, model.W), history

    def oracle(self) -> tuple[Tensor, History]:
        """Trained with all features."""
        settings = replace(self.settings, masking="none")
        model = self._model(self.train_all.n_features)
        model, history = self._fit(model, self.train_all, self.validation_all, settings)
        return model.predict(self.test_rows, model.W), history

    # ---- the record --------------------------------------------------------------------------

    def result(self, method: str) -> dict[str, Any]:
        """Run a method and score it on the test rows."""
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            logits, history = getattr(self, method)()
        logits = logits.detach()
        y = torch.from_numpy(self.y_test)
        if self.dataset.metric == "auc":
            # REFERENCE: ranks by the second logit, which is not the model's probability.
            p = logits if self.plan.compat == "reference" else probabilities(logits)
            score = roc_auc(p[:, 1].numpy(), self.y_test)
        else:
            score = accuracy(probabilities(logits), y)
        best = history.epochs[history.best_epoch - 1]
        return {
            "metric": self.dataset.metric,
            "score": score,
            "test_log_loss": float(log_loss(logits, y)),
            "validation_log_loss": best.validation_loss,
            "best_epoch": history.best_epoch,
            # The training behind a method counts whether or not it is shared with another.
            "seconds": round(max(time.perf_counter() - started, history.seconds), 3),
            "features_without_training_rows": history.untrained,
        }


def make_split(dataset: Dataset, plan: Plan) -> Split:
    """Rows 6:2:2 and the observed share of the features, or of whole columns."""
    seed = plan.seed if plan.split_seed is None else plan.split_seed
    rows = split_rows(dataset.X.n_rows, seed=seed)
    if plan.novelty == "columns":
        features = split_fields(dataset.field_of, plan.observed, seed=seed)
    else:
        rounding: Literal["complement", "reference"] = (
            "reference" if plan.compat == "reference" else "complement"
        )
        features = split_features(dataset.X.n_features, plan.observed, seed=seed, rounding=rounding)
    return Split(*rows, *features, seed=seed, description=f"{plan.novelty}, 6:2:2 at random")


_load = lru_cache(maxsize=2)(load)  # a worker runs many trials of one data set


def header(plan: Plan) -> dict[str, Any]:
    """What a trial's record must agree with before anything is added to it."""
    return {
        "dataset": plan.dataset,
        "observed": plan.observed,
        "seed": plan.seed,
        "split_seed": plan.split_seed,
        "compat": plan.compat,
        "novelty": plan.novelty,
        "settings": asdict(plan.settings.compat(plan.compat)),
    }


def run_trial(plan: Plan) -> dict[str, Any]:
    """Run the methods of a trial that its record does not have yet; returns the whole record."""
    dataset = _load(plan.dataset, plan.data)
    wanted = header(plan) | {"data_sha256": dataset.sha256}
    record = open_record(plan.path)
    if record is not None:
        check_same_settings(plan.path, record, wanted)
    trial = Trial(dataset, plan)
    sizes = {name: len(getattr(trial.split, name)) for name in ("train", "validation", "test")}
    sizes |= {name: len(getattr(trial.split, name)) for name in ("observed", "new")}
    if record is None:
        split = {"sha256": trial.split.sha256, **sizes}
        # New features that no test row has: W_hat is their field's mean, or zero.
        degree = trial.test_graph.feature_degree[trial.n_observed :]
        alone = (np.flatnonzero(degree.numpy() == 0) + trial.n_observed).tolist()
        record = wanted | {"split": split, "new_features_without_rows": alone}
        record |= {"command": plan.command, "versions": versions(), "results": {}}
        trial.split.save(plan.path.with_name("split.npz"))
    for method in plan.methods:
        if method not in record["results"]:
            record["results"][method] = trial.result(method)
            write_json(plan.path, record)
    return record
