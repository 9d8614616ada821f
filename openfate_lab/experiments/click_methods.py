"""Every method of the click experiment on one log, with one backbone and one seed.

    base            the network alone, new features dropped
    pooling         base, new features at the mean of what their rows hold (batch)
    fate            the paper's model: a 2-layer GraphSAGE over the mini-batch, k-shot masking
    base_dropout    control: the network trained with the same masking, no graph
    fate_drop_new   control: the trained FATE, its new features dropped
    oov             one trained row a field for all that is unknown, learned by dropping ids
    hash            ids in as many buckets as there are observed features; a new one falls into one
    evidence        base, and what the rows of the same part say of each new feature (batch)
    late_labels     evidence, and the labels of earlier parts

What is trained has its learning rate, its best epoch and (oov) its dropping chosen by ROC-AUC on
the validation part; evidence is weighed by log-loss there.  Test parts choose nothing.
B rows of a batch, d fields, D observed features.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.models import FATE, Backbone, GraphSAGE, make_backbone
from openfate.openworld import (
    Evidence,
    Floats,
    Labelled,
    Mixture,
    Pooling,
    row_losses,
    score,
)
from openfate.table import MultiHot
from openfate.training import Batches, Settings, StreamingAUC, predict_batches, train
from openfate_lab.experiments.click_baselines import buckets, pooled_logits
from openfate_lab.experiments.click_data import Clicks
from openfate_lab.experiments.click_settings import ClickSettings

METHODS = (
    "base",
    "pooling",
    "fate",
    "base_dropout",
    "fate_drop_new",
    "oov",
    "hash",
    "evidence",
    "late_labels",
)
BACKBONES = ("nn", "deepfm", "widedeep", "dcn")
WIDTH = 10  # PAPER: embeddings of 10
OOV_SHARES = (0.02, 0.1, 0.3)
STRENGTHS = (0.1, 0.25, 0.5, 1.0, 2.0)
ALPHAS = (5.0, 20.0, 100.0, 500.0)


@dataclass(frozen=True)
class Fit:
    """A trained model and how it was chosen."""

    model: FATE
    about: dict[str, Any]  # learning rate, validation AUC, best mini-batch, seconds


class ClickTrial:
    """One log, one backbone, one seed, and the models that its methods share."""

    def __init__(
        self, clicks: Clicks, backbone: str, seed: int, settings: ClickSettings | None = None
    ) -> None:
        self.clicks, self.backbone, self.seed = clicks, backbone, seed
        self.settings = settings or ClickSettings()
        self.test_parts = clicks.parts[2:]

    # ---- training ------------------------------------------------------------------------------

    def _backbone(self) -> Backbone:
        s, name = self.settings, "mlp" if self.backbone == "nn" else self.backbone
        return make_backbone(name, WIDTH, 1, hidden=s.hidden, batch_norm=True, dropout=s.dropout)

    def _fit(
        self,
        n_features: int,
        settings: Settings,
        epochs: Callable[[int], Batches],
        validation: Callable[[], Batches],
        extrapolator: bool = False,
        lrs: tuple[float, ...] | None = None,
    ) -> Fit:
        """Train with each learning rate; keep the model whose validation AUC is best."""
        started, best, tried = time.perf_counter(), None, {}
        for lr in lrs or self.settings.lrs:
            torch.manual_seed(self.seed)
            backbone = self._backbone()
            s, g = self.settings, None
            if extrapolator:
                g = GraphSAGE(backbone.width, normalize=s.normalize, prior_rows=s.prior_rows)
            model = FATE(n_features, backbone, g, recompose=s.recompose)
            history = train(
                model,
                epochs,
                settings=replace(settings, lr=lr, lr_extrapolator=lr * self.settings.lr_factor),
                validation=validation,
                seed=self.seed,
            )
            auc = max(step.auc for step in history.validations)
            tried[f"{lr:g}"] = auc
            if best is None or auc > best[1]:
                best = model, auc, {"lr": lr, "best_batch": history.best}
        assert best is not None
        seconds = time.perf_counter() - started
        about = {**best[2], "validation_auc": best[1], "tried": tried, "seconds": seconds}
        return Fit(best[0], about)

    def _stream_settings(self, masked: bool, graph: bool = False) -> Settings:
        s = self.settings
        n_batches = self.n_train // (s.batch_rows if graph else s.plain_batch_rows)
        return Settings.clicks(
            masking=s.masking if masked else "none",
            n_kept=s.n_kept,
            n_draws=s.n_draws,
            n_folds=s.n_folds,
            drop_edge=s.drop_edge,
            epochs=s.epochs,
            patience=s.patience,
            validate_every=max(1, n_batches // s.validations),
        )

    @cached_property
    def n_train(self) -> int:
        """Rows of the training part."""
        return sum(len(y) for _, y in self.clicks.batches("train", 1_000_000))

    def _batches(self, part: str) -> Batches:
        return self.clicks.batches(part, self.settings.predict_rows)

    def _epochs(self, graph: bool = False) -> Callable[[int], Batches]:
        s = self.settings
        return self.clicks.epochs(s.batch_rows if graph else s.plain_batch_rows, self.seed)

    def _plain_fit(self, masked: bool, extrapolator: bool) -> Fit:
        return self._fit(
            self.clicks.n_observed,
            self._stream_settings(masked, graph=extrapolator),
            self._epochs(graph=extrapolator),
            lambda: self._batches("validation"),
            extrapolator,
        )

    @cached_property
    def base_fit(self) -> Fit:
        """The network alone."""
        return self._plain_fit(masked=False, extrapolator=False)

    @cached_property
    def fate_fit(self) -> Fit:
        """The paper's model."""
        return self._plain_fit(masked=True, extrapolator=True)

    # ---- methods: each gives the logits of test parts, and the fit behind them -----------

    def base(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """New features dropped."""
        return self._predicted(self.base_fit.model), self.base_fit.about

    def fate(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """New features extrapolated by the graph network."""
        return self._predicted(self.fate_fit.model), self.fate_fit.about

    def fate_drop_new(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """The same model without the new features."""
        return self._predicted(self.fate_fit.model, drop_new=True), self.fate_fit.about

    def base_dropout(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """The network trained with masks but no graph."""
        fit = self._plain_fit(masked=True, extrapolator=False)
        return self._predicted(fit.model), fit.about

    def pooling(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """New features by mean pooling over the graph of the rows predicted with them."""
        model = self.base_fit.model
        logits = {part: pooled_logits(model, self._batches(part)) for part in self.test_parts}
        return logits, self.base_fit.about

    def oov(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """One row a field for what is unknown, trained where ids were dropped at random."""
        D, d = self.clicks.n_observed, self.clicks.n_fields
        unknown = D + np.arange(d, dtype=np.int32)

        def known(batches: Batches) -> Batches:
            return ((np.where(ids < D, ids, unknown), y) for ids, y in batches)

        def fit(share: float, lrs: tuple[float, ...]) -> Fit:
            return self._fit(
                D + d,
                self._stream_settings(masked=False),
                lambda epoch: self._dropped(epoch, share, unknown),
                lambda: known(self._batches("validation")),
                lrs=lrs,
            )

        # The learning rate is chosen at the middle share, the share at that learning rate.
        usual = OOV_SHARES[1]
        fits = {usual: fit(usual, self.settings.lrs)}
        lr = fits[usual].about["lr"]
        fits |= {share: fit(share, (lr,)) for share in OOV_SHARES if share != usual}
        best = max(fits, key=lambda share: fits[share].about["validation_auc"])
        seconds = sum(each.about["seconds"] for each in fits.values())
        about = {**fits[best].about, "dropped": best, "seconds": seconds}
        return self._predicted(fits[best].model, known), about

    def _dropped(self, epoch: int, share: float, unknown: NDArray[np.int32]) -> Batches:
        rng = np.random.default_rng([self.seed, epoch])
        for ids, y in self._epochs()(epoch):
            yield np.where(rng.random(ids.shape) < share, unknown, ids), y

    def hash(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """Ids in buckets: as many for each field as it has observed features."""
        bucket = buckets(self.clicks.field_of, self.clicks.n_observed)

        def hashed(batches: Batches) -> Batches:
            return ((bucket[ids], y) for ids, y in batches)

        fit = self._fit(
            self.clicks.n_observed,
            self._stream_settings(masked=False),
            lambda epoch: hashed(self._epochs()(epoch)),
            lambda: hashed(self._batches("validation")),
        )
        return self._predicted(fit.model, hashed), fit.about

    def evidence(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """Base, moved by what the rows of the same part say of its new features."""
        P = {part: self._with_evidence(part) for part in self.test_parts}
        return _logits(P), {**self.base_fit.about, "pooling": _used(self.unlabelled)}

    def late_labels(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """Evidence, and corrections learned from the labels of the parts before."""
        mixture = Mixture(2, "binary", trusts_evidence=self.unlabelled.strength > 0)
        P = {}
        for before, part in itertools.pairwise(("validation", *self.test_parts)):
            X, P0, moved, y = self._every_row(before)
            rows = Labelled(X, P0, moved, y, np.ones(len(y)), np.ones(len(y), dtype=bool))
            for block in mixture.blocks(len(y)):
                if mixture.learn(rows.select(np.arange(len(y))[block])):
                    mixture.solve()
            X, P0, moved, _ = self._every_row(part)
            P[part] = mixture.predict(X, P0, moved)
        used = {"pooling": _used(self.unlabelled), "weights": mixture.describe()}
        return _logits(P), {**self.base_fit.about, **used}

    # ---- evidence ------------------------------------------------------------------------------

    def _base_rows(self, part: str) -> tuple[MultiHot, Floats, NDArray[np.int64]]:
        """New features (N, J), base's predictions (N, 2) and labels (N,) of a part."""
        X, P0, y = [], [], []
        D = self.clicks.n_observed
        logits = predict_batches(self.base_fit.model, self._batches(part), drop_new=True)
        for (table, _), (z, labels) in zip(self._batches(part), logits, strict=True):
            ids = np.asarray(table)
            row, column = np.nonzero(ids >= D)
            new = ids[row, column] - D
            X.append(MultiHot.from_entries(row, new, len(ids), self.clicks.n_features - D))
            p = 1 / (1 + np.exp(-z.astype(np.float64)))
            P0.append(np.column_stack([1 - p, p]))
            y.append(labels.astype(np.int64))
        return MultiHot.stack(X), np.concatenate(P0), np.concatenate(y)

    def _every_row(self, part: str) -> tuple[MultiHot, Floats, Floats, NDArray[np.int64]]:
        """All features (N, D'), predictions without and with evidence, and labels of a part."""
        ids = np.concatenate([np.asarray(table) for table, _ in self._batches(part)])
        rows, width = ids.shape
        X = MultiHot(
            np.arange(rows + 1) * width, ids.astype(np.int32).ravel(), self.clicks.n_features
        )
        _, P0, y = self._base_rows(part)
        return X, P0, self._with_evidence(part), y

    def _with_evidence(self, part: str) -> Floats:
        X, P0, _ = self._base_rows(part)
        return score(Evidence(2).add(X, P0), X, P0, self.unlabelled, own=True)

    @cached_property
    def unlabelled(self) -> Pooling:
        """How evidence is weighed: the best log-loss of validation, none being a candidate."""
        X, P0, y = self._base_rows("validation")
        state = Evidence(2).add(X, P0)
        candidates = [Pooling(strength=0.0)]
        for strength, alpha in itertools.product(STRENGTHS, ALPHAS):
            candidates.append(Pooling(strength=strength, alpha=alpha))
        return min(candidates, key=lambda c: row_losses(score(state, X, P0, c, own=True), y).mean())

    # ---- the record ----------------------------------------------------------------------------

    def _predicted(
        self,
        model: FATE,
        prepare: Callable[[Batches], Batches] = lambda batches: batches,
        drop_new: bool = False,
    ) -> dict[str, Floats]:
        def logits(part: str) -> Floats:
            stream = predict_batches(model, prepare(self._batches(part)), drop_new=drop_new)
            return np.concatenate([z for z, _ in stream])

        return {part: logits(part) for part in self.clicks.parts}

    def result(self, method: str) -> dict[str, Any]:
        """Run a method; ROC-AUC and log-loss of every part, and of all test rows."""
        with torch.random.fork_rng(devices=[]):
            logits, about = getattr(self, method)()
        splits, overall = {}, StreamingAUC()
        for part, z in logits.items():
            y = np.concatenate([labels for _, labels in self._batches(part)])
            here = StreamingAUC()
            here.add(z, y)
            if part in self.test_parts:
                overall.add(z, y)
            splits[part] = {"auc": here.value(), "log_loss": here.log_loss, "rows": len(y)}
        return {
            "metric": "auc",
            "score": overall.value(),
            "log_loss": overall.log_loss,
            "splits": splits,
            "seconds": round(about["seconds"], 3),  # of training, whether or not it is shared
            "chosen": {key: value for key, value in about.items() if key != "seconds"},
        }


def _logits(P: dict[str, Floats]) -> dict[str, Floats]:
    return {
        part: np.log(np.maximum(p[:, 1], 1e-12) / np.maximum(p[:, 0], 1e-12))
        for part, p in P.items()
    }


def _used(pooling: Pooling) -> dict[str, float] | None:
    return {"strength": pooling.strength, "alpha": pooling.alpha} if pooling.strength else None
