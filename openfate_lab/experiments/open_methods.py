"""Every method of the open-world experiment on one split of one data set.

Rows are split 6:2:2.  Training and validation rows show the observed features only, test rows show
all, in one batch; every method starts from the same split.

    BASE_drop       the fitted model, new features ignored; BASE is lightgbm, catboost or logistic
    BASE_evidence   the same fitted model, with evidence pooled among the test rows, or "none",
                    whatever the probe says
    BASE_oracle     fitted with all features
    fate            the paper's model
    fate_auto       FATE's network with feature dropout; the probe chooses evidence, embeddings,
                    both or none
    fate_auto_drop  the same fitted network, new features ignored
"""

from __future__ import annotations

import time
from functools import cache, cached_property
from typing import Any

import numpy as np

from openfate.errors import OpenFATEError
from openfate.openworld import (
    NONE,
    Candidate,
    Decision,
    Floats,
    Predict,
    View,
    evidence_candidates,
    hidden_shares,
    new_share,
    probe,
    row_losses,
)
from openfate.table import MultiHot
from openfate.training import roc_auc
from openfate_lab.data import Dataset, Split
from openfate_lab.experiments.auto import Ensemble, auto_candidates, fit_auto
from openfate_lab.experiments.bases import BASES, Base, fit_base
from openfate_lab.experiments.uci_methods import Novelty, Trial

__all__ = ["METHODS", "N_DRAWS", "OpenTrial"]

METHODS = (
    *(f"{base}_{way}" for base in BASES for way in ("drop", "evidence", "oracle")),
    "fate",
    "fate_auto",
    "fate_auto_drop",
)
N_DRAWS = 8
SWEEPS = (1, 2)


class OpenTrial:
    """One split of one data set, and the models and decisions that its methods share."""

    def __init__(
        self, dataset: Dataset, split: Split, seed: int, novelty: Novelty = "values"
    ) -> None:
        self.paper = Trial(dataset, split, seed)
        self.dataset, self.seed, self.novelty = dataset, seed, novelty
        self.n_classes = len(dataset.classes)
        known = self.paper.observed_only
        self.train = (known(self.paper.train_all), self.paper.y_train)
        self.validation = (known(self.paper.validation_all), self.paper.y_validation)
        self.y_test = self.paper.y_test
        # WHY: cached on the trial, so that models go when it goes.
        self.fitted = cache(self._fit)
        self.decided = cache(self._decide)

    def _view(self, model: Predict) -> View:
        """The test rows, as the chosen candidate sees them."""
        return View(model, self.test_old, self.test_new)

    @cached_property
    def test_old(self) -> MultiHot:
        """Test rows over the observed features."""
        return self.paper.observed_only(self.paper.test_all)

    @cached_property
    def test_new(self) -> MultiHot:
        """Test rows over the new features."""
        n_all = self.paper.test_all.n_features
        return self.paper.test_all.select_features(np.arange(self.paper.n_observed, n_all))

    # ---- what methods share --------------------------------------------------------------------

    def _fit(self, base: str) -> tuple[Base | Ensemble, float]:
        """The model fitted on the observed features, and the seconds that it took."""
        started = time.perf_counter()
        model: Base | Ensemble
        if base == "fate_auto":
            model = fit_auto(
                *self.train, self.n_classes, validation=self.validation, seed=self.seed
            )
        else:
            model = fit_base(base, self.train, self.n_classes, validation=self.validation)
        return model, time.perf_counter() - started

    def _fit_again(self, base: str, X: MultiHot, y: Any) -> Predict:
        """A probe's fit: what validation chose is taken over, validation rows are not looked at."""
        model, _ = self.fitted(base)
        if isinstance(model, Ensemble):
            return fit_auto(X, y, self.n_classes, epochs=model.best_epochs, seed=self.seed)
        return fit_base(base, (X, y), self.n_classes, tuned=model.tuned)

    def candidates(self, base: str) -> list[dict[str, Candidate]]:
        """What the probe chooses from, simple ways first."""
        simple = [evidence_candidates(sweeps=SWEEPS)]
        return auto_candidates(SWEEPS) if base == "fate_auto" else simple

    def _decide(self, base: str) -> Decision:
        return probe(
            lambda X, y: self._fit_again(base, X, y),
            self.train,
            self.validation,
            self.candidates(base),
            hidden=self._hidden(base),
            every_size=base == "fate_auto",
            field_of=self.paper.field_of[: self.paper.n_observed],
            novelty=self.novelty,
            seed=self.seed,
        )

    def _hidden(self, base: str) -> tuple[float, ...]:
        """What share each draw hides: the expected one; for the network, also half of it."""
        # WHY: the network loses more than the trees when features are hidden, so that evidence
        # looked worth more in the draws than it was (docs/openworld.md).
        share = new_share(self.test_old, self.test_new)
        if base != "fate_auto":
            return hidden_shares(share, N_DRAWS)
        matched = hidden_shares(share, N_DRAWS // 2)
        return (*matched, *(hidden / 2 for hidden in matched))

    # ---- the record ----------------------------------------------------------------------------

    def result(self, method: str) -> dict[str, Any]:
        """Run a method and score it on the test rows."""
        if method == "fate":
            return self.paper.result("fate")
        base, way = (method, "evidence") if method == "fate_auto" else method.rsplit("_", 1)
        started = time.perf_counter()
        extra: dict[str, Any] = {}
        if way == "oracle":
            P, seconds = self._oracle(base), 0.0
        else:
            model, seconds = self.fitted(base)
            started = time.perf_counter()
            view = self._view(model)
            P = view.P0
            if way == "evidence":
                decision = self.decided(base)
                extra["decision"] = decision.to_json(n_best=3)
                if decision.chosen != NONE:
                    ways = {k: way for group in self.candidates(base) for k, way in group.items()}
                    P = ways[decision.chosen](view)
        seconds += time.perf_counter() - started
        return {**self._scores(method, P), "seconds": round(seconds, 3), **extra}

    def _oracle(self, base: str) -> Floats:
        paper = self.paper
        model = fit_base(
            base,
            (paper.train_all, paper.y_train),
            self.n_classes,
            validation=(paper.validation_all, paper.y_validation),
        )
        return model(paper.test_all)

    def _scores(self, method: str, P: Floats) -> dict[str, Any]:
        y = self.y_test
        auc = self.dataset.metric == "auc"
        score = roc_auc(P[:, 1], y) if auc else float((P.argmax(1) == y).mean())
        if not np.isfinite(score):
            raise OpenFATEError(
                f"{method} has no {self.dataset.metric} on the {len(y)} test rows of "
                f"{self.dataset.name}, seed {self.seed}: they hold one class alone."
            )
        loss = float(row_losses(P, y).mean())
        return {"metric": self.dataset.metric, "score": score, "test_log_loss": loss}
