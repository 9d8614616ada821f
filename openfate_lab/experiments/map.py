"""The paper's picture of embeddings (its t-SNE figure), and what a picture alone cannot tell.

FATE's W_hat and Oracle's W side by side, observed and new features in two colours.  The paper reads
two things off it: that FATE's two clouds lie further apart than Oracle's, and that FATE's form
"particular structures".  So each embedding is measured too:

    centroid_distance   between the clouds' means, over the root mean square distance to one's own
    energy              energy distance of the clouds, 0 (the same) .. 1
    told_apart          cross-validated ROC-AUC of a logistic regression that tells them apart
    agreement           of the k nearest features of a new one, the share that Oracle has too
    correlation         of the distances of all pairs with a new feature, with Oracle's
    dimensions          that the new features fill: (sum of variances)^2 / sum of their squares
    frequency           share of that variance which the root of a feature's number of rows gives

The baselines keep a plain network's embeddings of the observed features: `knn`, `pooling` and
`average` estimate the new ones, `random` draws them from a normal distribution with the observed
ones' mean and covariance.  `oracle_again` is Oracle from another start: what agreement can reach.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from openfate.records import Shape
from openfate.training import Compat, roc_auc
from openfate_lab.arguments import at_least
from openfate_lab.experiments import runner, uci
from openfate_lab.experiments.display import Cell, draw_panels
from openfate_lab.experiments.feature_baselines import average, knn, pooling
from openfate_lab.experiments.runner import ROW, Plan, Record, summarise
from openfate_lab.experiments.uci import TableExperiment
from openfate_lab.experiments.uci_methods import Trial

METHODS = ("fate", "oracle", "oracle_again", "knn", "pooling", "average", "random")
DRAWN = ("fate", "oracle")
MEASURES = (
    *("centroid_distance", "energy", "told_apart"),
    *("agreement", "correlation", "dimensions", "frequency"),
)
N_NEIGHBOURS = 10
N_SHUFFLES = 100  # of the colours, for the level of chance


def _points_shape(points: Any) -> Shape:
    """As many x as y, two or more."""
    x = points.get("x") if isinstance(points, dict) else None
    return {"x": [float], "y": [float] * max(2, len(x) if isinstance(x, list) else 0)}


# What is relied on in a record.
RESULT: Shape = {**runner.RESULT, "measures": {str: float} | dict.fromkeys(MEASURES, float)}
PICTURE = {"perplexity": float, "seed": int, "points": dict.fromkeys(DRAWN, _points_shape)}
RECORD = {
    **uci.RECORD,
    "results": {str: RESULT},
    "features": {"observed": int},
    "picture": (PICTURE, None),
}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Map(TableExperiment):
    """The paper's t-SNE figure, with measures of what it shows.

    Parameters
    ----------
    datasets
        A row of the picture each.
    observed
        Shares of observed features.
    seed
        Of the picture, and the first of them.
    trials
        Seeds to measure.
    perplexity
        Of t-SNE.
    compat
        reference: the released code; paper: its words.
    epochs
        Passes over the training rows.
    """

    record_shape = RECORD
    known = METHODS
    datasets: tuple[str, ...] = ("gene", "protein", "robot")
    observed: tuple[float, ...] = (0.5,)
    seed: int = 0
    trials: int = 5
    perplexity: float = 30.0
    compat: Compat = None
    epochs: int = 200

    def plan(self, data: str | None, trials: int) -> Iterator[Plan]:
        """Every trial, checked."""
        at_least(1, perplexity=self.perplexity)
        return super().plan(data, trials)

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        return super().header(plan) | {"n_neighbours": N_NEIGHBOURS}

    def restore(self, plan: Plan, record: Record) -> Record:
        """Methods that are drawn are missing while their picture is."""
        picture = record.get("picture") or {}
        if self.is_drawn(plan) and picture.get("perplexity") != self.perplexity:
            for name in DRAWN:
                record["results"].pop(name, None)
        return super().restore(plan, record)

    def is_drawn(self, plan: Plan) -> bool:
        """Whether a trial keeps the coordinates of its picture too: the first one does."""
        return plan.seed == self.seed

    def run_trial(self, plan: Plan) -> Record:
        """Measure every method, and draw."""
        trial, record = self.open(plan)
        again = Trial(trial.dataset, trial.split, plan.seed + 1000, self.settings, self.compat)
        started = time.perf_counter()
        there, found = usable(trial), embeddings(trial, again)
        is_new = (np.arange(len(there)) >= trial.n_observed)[there]
        record["features"] = {"observed": int((~is_new).sum()), "new": int(is_new.sum())}
        if self.is_drawn(plan):
            points = {name: self.points(found[name][there]) for name in DRAWN}
            record["picture"] = {
                **{"method": "t-SNE of scikit-learn", "perplexity": self.perplexity},
                **{"seed": plan.seed, "unit": "x and y in hundredths, from 0 up", "points": points},
            }
        oracle, n_rows = found["oracle"][there], trial.test_all.feature_degree[there]

        def result(method: str) -> Record:
            measures = measure(found[method][there], is_new, oracle, n_rows, plan.seed)
            seconds = round(time.perf_counter() - started, 3)
            own = {"metric": "agreement", "score": measures["agreement"], "seconds": seconds}
            return own | {"measures": measures}

        return plan.complete(record, result)

    def points(self, Z: Floats) -> Record:
        """The places of embeddings Z (D', H) in the picture."""
        perplexity = min(self.perplexity, (len(Z) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, random_state=self.seed, init="pca")
        at = tsne.fit_transform(Z)
        x, y = np.rint(100 * (at - at.min(0))).astype(int).T.tolist()
        return {"kl_divergence": float(tsne.kl_divergence_), "x": x, "y": y}

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """Mean and spread of each data set, share, method and measure."""
        lines = [
            {
                **{key: record[key] for key in ("dataset", "observed", "seed")},
                **{"method": method, "metric": name, "score": float(result["measures"][name])},
                "by_chance": result["measures"].get(f"{name}_by_chance"),
                "seconds": float(result["seconds"]),
            }
            for record in sorted(records, key=lambda r: (r["dataset"], r["observed"], r["seed"]))
            for method, result in sorted(record["results"].items(), key=_place)
            for name in MEASURES
        ]
        return {"rows": summarise(lines, ROW, pl.col("by_chance").mean())}

    def figure(self, content: Record, records: Sequence[Record]) -> Figure:
        """A line a data set and share: FATE and Oracle."""
        drawn = [record for record in records if record.get("picture")]
        panels = [(record, name) for record in drawn for name in DRAWN]
        return draw_panels(panels, _panel, columns=2, size=(4.5, 3.9))

    def cells(self, content: Record) -> Iterator[Cell]:
        """One table a data set and share: methods down, measures across."""
        for line, column in (("method", "mean"), (None, "by_chance")):
            for row in content["rows"]:
                if line or row["method"] == "fate":
                    title = f"{row['dataset']}, {row['observed']:.0%} observed: mean over trials"
                    text = "-" if row[column] is None else f"{row[column]:.2f}"
                    name = row["method"] if line else "by chance"
                    yield title, name, row["metric"].replace("_", " "), text


def _place(named: tuple[str, Record]) -> int:
    return METHODS.index(named[0])


def _panel(axis: Axes, panel: tuple[Record, str]) -> None:
    record, name = panel
    picture, n_observed = record["picture"], record["features"]["observed"]
    points = picture["points"][name]
    for part, colour, label in (
        (slice(n_observed), "#d62728", "observed"),  # PAPER: red and blue
        (slice(n_observed, None), "#1f77b4", "new"),
    ):
        axis.scatter(
            points["x"][part], points["y"][part], s=9, alpha=0.7, color=colour, label=label
        )
    about = f"perplexity {picture['perplexity']:g}, seed {picture['seed']}"
    share = f"{record['observed']:.0%} observed"
    axis.set_title(f"{name}: {record['dataset']}, {share}\nt-SNE, {about}", fontsize=10)
    axis.set(xticks=[], yticks=[])


# ---- embeddings ----------------------------------------------------------------------------------


def embeddings(trial: Trial, again: Trial) -> dict[str, Floats]:
    """Each method's embeddings of all features, the observed ones first: (D', H)."""
    base = trial.base_fit[0].W.detach()
    rng = np.random.default_rng([trial.seed, 3])
    own = base.numpy().astype(np.float64)
    drawn = rng.multivariate_normal(own.mean(0), np.cov(own.T), size=len(trial.split.new))
    tensors = {
        "fate": trial.fate_embeddings(),
        "oracle": trial.oracle_fit[0].W.detach(),
        "oracle_again": again.oracle_fit[0].W.detach(),
        "knn": knn(base, trial.test_rows),
        "pooling": pooling(base, trial.test_rows),
        "average": average(base, trial.test_rows),
    }
    found = {name: W.numpy().astype(np.float64) for name, W in tensors.items()}
    return found | {"random": np.concatenate([own, drawn])}


def usable(trial: Trial) -> NDArray[np.bool_]:
    """Features that have training rows and test rows: others hold a mean, or nothing."""
    trained = trial.train_all.feature_degree > 0
    return np.asarray(trained & (trial.test_all.feature_degree > 0))


# ---- measures ------------------------------------------------------------------------------------


def measure(
    Z: Floats, is_new: NDArray[np.bool_], oracle: Floats, n_rows: NDArray[Any], seed: int = 0
) -> dict[str, Any]:
    """What the module's docstring lists, for embeddings Z (D', H) beside Oracle's (D', H).

    `n_rows` (D',) is the number of rows that show each feature.

    Examples
    --------
    >>> Z = np.random.default_rng(2).normal(size=(200, 3))
    >>> found = measure(Z, np.arange(200) % 2 == 0, oracle=Z, n_rows=np.arange(200))
    >>> found["agreement"], round(found["correlation"], 3), round(found["told_apart"], 1)
    (1.0, 1.0, 0.5)
    """
    distance, wanted = _distances(Z), _distances(oracle)
    rng = np.random.default_rng([seed, 4])
    shuffled = [rng.permutation(is_new) for _ in range(N_SHUFFLES)]
    k = min(N_NEIGHBOURS, len(Z) - 1)
    pairs = np.triu(is_new[:, None] | is_new[None, :], 1)
    new = Z[is_new]
    return {
        "centroid_distance": _centroid_distance(Z, is_new),
        "centroid_distance_by_chance": float(
            np.mean([_centroid_distance(Z, colours) for colours in shuffled])
        ),
        "energy": _energy(distance, is_new),
        "energy_by_chance": float(np.mean([_energy(distance, c) for c in shuffled])),
        "told_apart": _told_apart(Z, is_new, seed),
        "told_apart_by_chance": 0.5,
        "agreement": _agreement(distance, wanted, is_new, k),
        "agreement_by_chance": k / (len(Z) - 1),
        "correlation": float(np.corrcoef(distance[pairs], wanted[pairs])[0, 1]),
        "dimensions": _dimensions(new),
        "frequency": _explained(new, np.sqrt(n_rows[is_new])),
    }


def _distances(Z: Floats) -> Floats:
    """Of all pairs: (D', D')."""
    square = (Z**2).sum(1)
    found: Floats = np.sqrt(np.maximum(square[:, None] + square[None, :] - 2 * Z @ Z.T, 0))
    return found


def _centroid_distance(Z: Floats, is_new: NDArray[np.bool_]) -> float:
    clouds = [Z[is_new], Z[~is_new]]
    within = sum(((cloud - cloud.mean(0)) ** 2).sum() for cloud in clouds) / len(Z)
    return float(np.linalg.norm(clouds[0].mean(0) - clouds[1].mean(0)) / np.sqrt(within))


def _energy(distance: Floats, is_new: NDArray[np.bool_]) -> float:
    """(2 E|x - y| - E|x - x'| - E|y - y'|) / 2 E|x - y|, over all pairs, each with itself too."""
    weight = np.stack([is_new / is_new.sum(), ~is_new / (~is_new).sum()])
    (xx, xy), (_, yy) = weight @ distance @ weight.T
    return float((2 * xy - xx - yy) / (2 * xy))


def _told_apart(Z: Floats, is_new: NDArray[np.bool_], seed: int) -> float:
    model = make_pipeline(StandardScaler(), LogisticRegression())
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    scores = cross_val_predict(model, Z, is_new, cv=folds, method="decision_function")
    return float(roc_auc(scores, is_new.astype(np.int64)))


def _agreement(distance: Floats, wanted: Floats, is_new: NDArray[np.bool_], k: int) -> float:
    """Mean share of the k nearest that both tables of distances have; ties go to the lower id."""
    near = [_nearest(table, k)[is_new] for table in (distance, wanted)]
    common = [len(np.intersect1d(a, b)) for a, b in zip(*near, strict=True)]
    return float(np.mean(common) / k)


def _nearest(distance: Floats, k: int) -> NDArray[np.intp]:
    apart = distance + np.diag(np.full(len(distance), np.inf))
    return np.argsort(apart, axis=1, kind="stable")[:, :k]


def _dimensions(Z: Floats) -> float:
    variances = np.linalg.eigvalsh(np.cov(Z.T))
    total = variances.sum()
    # All points at one place, but for rounding, have no dimension.
    return float(total**2 / (variances**2).sum()) if total > 1e-12 else 0.0


def _explained(Z: Floats, by: Floats) -> float:
    """The share of the variance of Z that a line in `by` explains."""
    centred, by = Z - Z.mean(0), by - by.mean()
    total, scale = (centred**2).sum(), (by**2).sum()
    return float(((by @ centred) ** 2).sum() / scale / total) if total > 1e-12 and scale else 0.0
