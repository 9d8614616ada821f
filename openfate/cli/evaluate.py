"""`openfate evaluate`: a bundle's scores on labelled rows, new features used and dropped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.bank import FeatureBank
from openfate.cli.cluster_flags import Cluster, GpusPerWorker, Workers, on_cluster
from openfate.cli.command import Answer, make_table
from openfate.cli.flags import BatchRows, Bundle, Exclude, Graph, Null, RowsPath, Trusted, Where
from openfate.cli.later_rows import LaterBatch, LaterRows
from openfate.errors import InputError
from openfate.estimators import LESS_IS_BETTER, task_scores
from openfate.executor import spread


def evaluate(
    bundle: Bundle,
    rows: RowsPath,
    *,
    target: str | None = None,
    where: Where = None,
    null: Null = None,
    exclude: Exclude = (),
    graph: Graph = "auto",
    batch_rows: BatchRows = 65_536,
    trusted: Trusted = False,
    cluster: Cluster = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
) -> Answer:
    """Score a bundle, new features used and dropped.

    The rows need a target; those without one are left out.

    Parameters
    ----------
    target
        The target's column or SQL expression [default: as in fit].
    """
    bank = FeatureBank.load(bundle, trusted=trusted)
    later = LaterRows(bank, rows, batch_rows, where, null, exclude, target, "all")
    used, dropped, truth, n_unknown = [], [], [], 0
    with on_cluster(cluster, workers, gpus_per_worker):
        ready = later.look_ahead(graph)
        for outputs, without, y, unknown in spread(
            partial(_predict, ready, bank), later.batches("evaluating")
        ):
            n_unknown += unknown
            used.append(outputs)
            dropped.append(without)
            truth.append(y)
    if not sum(map(len, truth)):
        raise InputError(
            f"{rows}: no row has a target that the model knows; name the column by --target."
        )
    assert later.labels is not None
    y = np.concatenate(truth)
    result = {
        "rows": len(y),
        "rows_without_target": later.n_unlabelled,
        "rows_of_unknown_class": n_unknown,
        "target": later.labels.texts,
        "task": bank.task,
        "new_columns": later.new_columns,
        "how": bank.describe_usage(),
        "new_features": {
            "used": _scores(bank, np.concatenate(used), y),
            "dropped": _scores(bank, np.concatenate(dropped), y),
        },
    }
    return result, _describe(result)


def _predict(
    ready: FeatureBank, bank: FeatureBank, batch: LaterBatch
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int]:
    """Outputs with new features used and dropped, labels, and how many labels are not known."""
    y, known = batch.truth(bank)
    used = ready.predict(batch.rows, graph="state")[known]
    dropped = bank.predict(batch.rows, graph="state", new_features="drop")[known]
    return used, dropped, y[known], int((~known).sum())


def _scores(bank: FeatureBank, outputs: NDArray[Any], y: NDArray[Any]) -> dict[str, float | None]:
    scores = task_scores(outputs, y, bank.task)
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def _describe(result: dict[str, Any]) -> Iterator[Any]:
    used, dropped = result["new_features"]["used"], result["new_features"]["dropped"]
    rows = []
    for name, value in used.items():
        label = name.replace("_", " ") + (" (less is better)" if name in LESS_IS_BETTER else "")
        rows.append((label, *("-" if v is None else f"{v:.4f}" for v in (value, dropped[name]))))
    title = f"{', '.join(result['target'])}: {result['rows']:,} rows"
    yield make_table(title, ("score",), ("new features used", "dropped"), rows)
    if result["rows_without_target"]:
        yield f"{result['rows_without_target']:,} rows without a target were left out."
    if result["rows_of_unknown_class"]:
        yield (
            f"{result['rows_of_unknown_class']:,} rows of a class that the model does not know "
            "were left out."
        )
    if used == dropped:  # why they are
        yield result["how"]
