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
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from openfate.errors import InputError
from openfate.models import average, knn, pooling
from openfate.records import Shape
from openfate.training import roc_auc
from openfate_lab.experiments import runner, uci
from openfate_lab.experiments.methods import Trial
from openfate_lab.experiments.present import save_figure
from openfate_lab.experiments.runner import records_in, versions, write_json

__all__ = ["METHODS", "MapPlan", "make_plans", "measure", "run_trial", "summary", "write_summary"]

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
class MapPlan(uci.Plan):
    """One trial; `drawn` ones keep the coordinates of their picture too."""

    shape: ClassVar[Shape] = RECORD
    perplexity: float = 30.0
    drawn: bool = False

    def header(self) -> dict[str, Any]:
        """What a record must agree with before anything is added to it."""
        return super().header() | {"n_neighbours": N_NEIGHBOURS}

    def record(self) -> dict[str, Any] | None:
        """What there is of it; drawn methods are missing while their picture is."""
        record = super().record()
        picture = {} if record is None else record.get("picture") or {}
        if record is not None and self.drawn and picture.get("perplexity") != self.perplexity:
            record["results"] = {
                name: result for name, result in record["results"].items() if name not in DRAWN
            }
        return record


def make_plans(
    *, seed: int = 0, perplexity: float = 30.0, changes: dict[str, Any] | None = None, **shared: Any
) -> list[MapPlan]:
    """Every trial, checked before anything runs; `shared` are arguments of `uci.make_plans`."""
    if not 0 <= seed < 2**31:
        raise InputError(f"--seed {seed}: choose a whole number from 0 to 2^31.")
    if not perplexity >= 1:
        raise InputError(f"--perplexity {perplexity}: choose a number from 1 up, such as 30.")
    plans = uci.make_plans(methods=["fate"], changes=changes, **shared)
    made = []
    for plan in plans:
        drawing = {"perplexity": perplexity, "drawn": plan.seed == 0}
        changes = {"methods": METHODS, "seed": plan.seed + seed, **drawing}
        made.append(plan.turned_into(MapPlan, **changes))
    return made


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
    selection = import_module("sklearn.model_selection")
    pipeline, scaler = import_module("sklearn.pipeline"), import_module("sklearn.preprocessing")
    linear = import_module("sklearn.linear_model")
    model = pipeline.make_pipeline(scaler.StandardScaler(), linear.LogisticRegression())
    folds = selection.StratifiedKFold(5, shuffle=True, random_state=seed)
    scores = selection.cross_val_predict(model, Z, is_new, cv=folds, method="decision_function")
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


# ---- trials --------------------------------------------------------------------------------------


def run_trial(plan: MapPlan) -> dict[str, Any]:
    """Measure the methods that the record does not have yet; returns the whole record."""
    dataset, split = plan.loaded()
    trial = Trial(dataset, split, plan.seed, plan.settings, plan.compat)
    again = Trial(dataset, split, plan.seed + 1000, plan.settings, plan.compat)
    record = plan.record() or plan.new_record(split, trial)
    started = time.perf_counter()
    there, found = usable(trial), embeddings(trial, again)
    is_new = (np.arange(len(there)) >= trial.n_observed)[there]
    record["features"] = {"observed": int((~is_new).sum()), "new": int(is_new.sum())}
    oracle, n_rows = found["oracle"][there], trial.test_all.feature_degree[there]
    for method in METHODS:
        measures = measure(found[method][there], is_new, oracle, n_rows, plan.seed)
        seconds = round(time.perf_counter() - started, 3)
        own = {"metric": "agreement", "score": measures["agreement"], "seconds": seconds}
        record["results"][method] = own | {"measures": measures}
    if plan.drawn:
        points = {name: _points(found[name][there], plan) for name in DRAWN}
        record["picture"] = {
            **{"method": "t-SNE of scikit-learn", "perplexity": plan.perplexity},
            **{"seed": plan.seed, "unit": "x and y in hundredths, from 0 up", "points": points},
        }
    write_json(plan.path, record)
    return record


def _points(Z: Floats, plan: MapPlan) -> dict[str, Any]:
    perplexity = min(plan.perplexity, (len(Z) - 1) / 3)
    tsne = import_module("sklearn.manifold").TSNE(
        perplexity=perplexity, random_state=plan.seed, init="pca"
    )
    at = tsne.fit_transform(Z)
    x, y = np.rint(100 * (at - at.min(0))).astype(int).T.tolist()
    return {"kl_divergence": float(tsne.kl_divergence_), "x": x, "y": y}


# ---- summary -------------------------------------------------------------------------------------


def summary(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each data set, share, method and measure: mean and spread over the trials."""
    cells: dict[tuple[str, float, str, str], list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: int(record["seed"])):
        for method in (name for name in METHODS if name in record["results"]):
            for name in MEASURES:
                key = (record["dataset"], record["observed"], method, name)
                cells.setdefault(key, []).append(record["results"][method])
    rows = []
    for (dataset, observed, method, name), results in cells.items():
        values = [result["measures"][name] for result in results]
        chance = [result["measures"].get(f"{name}_by_chance") for result in results]
        rows.append(
            {
                "dataset": dataset,
                "observed": observed,
                "method": method,
                "metric": name,
                "mean": float(np.mean(values)),
                "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
                "by_chance": None if None in chance else float(np.mean(chance)),
                "n_trials": len(values),
                "seconds": float(np.mean([result["seconds"] for result in results])),
            }
        )
    return rows


def write_summary(plans: Sequence[MapPlan]) -> list[Path]:
    """Rows and the picture of all trials in the experiment's folder, beside them."""
    folder = plans[0].folder
    records = records_in(folder, RECORD)
    about = {"experiment": "map", "command": plans[0].command, "versions": versions()}
    write_json(folder / "summary.json", {**about, "rows": summary(records)})
    figure = _figure([record for record in records if record.get("picture")])
    pictures = [save_figure(figure, folder / f"map.{kind}") for kind in ("png", "svg")]
    return [folder / "summary.json", *pictures]


def _figure(records: Sequence[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(9, 3.9 * len(records) + 0.8), layout="constrained")
    axes = figure.subplots(len(records), len(DRAWN), squeeze=False)
    for line, record in zip(axes, records, strict=True):
        picture, n_observed = record["picture"], record["features"]["observed"]
        for axis, name in zip(line, DRAWN, strict=True):
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
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def print_rows(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """One table a data set: methods down, measures across."""
    for dataset, observed in dict.fromkeys((row["dataset"], row["observed"]) for row in rows):
        own = [r for r in rows if (r["dataset"], r["observed"]) == (dataset, observed)]
        cells = {(row["method"], row["metric"]): row for row in own}
        table = Table(title=f"{dataset}, {observed:.0%} observed: mean over trials")
        table.add_column("embedding")
        for name in MEASURES:
            table.add_column(name.replace("_", " "), justify="right")
        for method in METHODS:
            table.add_row(method, *(f"{cells[method, name]['mean']:.2f}" for name in MEASURES))
        chances = [cells["fate", name]["by_chance"] for name in MEASURES]
        table.add_row("by chance", *("-" if c is None else f"{c:.2f}" for c in chances))
        console.print(table)
