"""What evidence closes of a gap, and where it does harm.

The gap lies between a model that ignores what is new and one that knew all from the start.  Rows
come in one batch, in calls of 100, or one by one: see `arrivals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from openfate_lab.experiments.runner import Record

# A mean that is lower by less is called noise, like two standard errors.
NOISE = {"score": 0.003, "log_loss": 0.002}
_VALUES = {
    **{"dataset": pl.String, "observed": pl.Float64, "seed": pl.Int64},
    **{"method": pl.String, "metric": pl.String, "value": pl.Float64},
}


@dataclass(frozen=True)
class Gap:
    """Which methods are compared.

    Parameters
    ----------
    base
        The model.
    ways
        The method of each way that rows come in: batch, calls, rows.
    ignore, oracle, ceiling
        The methods that ignore what is new, that knew it from the start (None: the model has none,
        and gains are told alone), and that use the best strength.
    """

    base: str
    ways: dict[str, str]
    ignore: str
    oracle: str | None = None
    ceiling: str | None = None


def gap_closed(records: Sequence[Record], gaps: Sequence[Gap]) -> Record:
    """What evidence closes of each gap.

    Returns
    -------
        "cells": for each base, way that rows come in, metric (score or log_loss), data set and
        share the gain over ignoring, its paired standard error, the gap to the oracle and the share
        closed; "pooled": sums over all cells, with the spread over trials, what the best
        strength of each trial would close, and the number of cells harmed; "harms": the cells where
        the gain is below minus two standard errors and minus what counts as noise.
    """
    long = pl.DataFrame(list(_values(records)), schema=_VALUES, orient="row")
    index = ["dataset", "observed", "seed"]
    cells: list[Record] = []
    pooled: list[Record] = []
    for gap in gaps:
        for way, used in gap.ways.items():
            for metric, noise in NOISE.items():
                own = long.filter(pl.col("metric") == metric)
                wide = own.pivot("method", index=index, values="value").sort(index)
                needed = [name for name in (gap.ignore, used, gap.oracle) if name]
                if not set(needed) <= set(wide.columns):
                    continue
                trials = wide.drop_nulls(needed).with_columns(
                    gain=pl.col(used) - pl.col(gap.ignore),
                    gap=pl.col(gap.oracle or gap.ignore) - pl.col(gap.ignore),
                )
                named = {"base": gap.base, "way": way, "metric": metric}
                found = [named | cell for cell in _cells(trials, gap.oracle is not None, noise)]
                cells += found
                if gap.oracle and found:
                    pooled.append({**named, **_pool(trials, found, gap, way)})
    return {"cells": cells, "pooled": pooled, "harms": [cell for cell in cells if cell["harm"]]}


def tell_gaps(found: Record) -> Iterator[str]:
    """Lines for a person: what is closed, pooled over all cells, and where it harms."""
    for pooled in found["pooled"]:
        spread = f" ± {pooled['std']:.1%}" if pooled["n_trials"] > 1 else ""
        cells = f"{pooled['n_cells']} cells, {pooled['n_trials']} trials"
        best = f"; the best strength: {pooled['ceiling']:.1%}" if "ceiling" in pooled else ""
        harmed = f"; {pooled['n_harmed']} cells harmed"
        closed = f"{pooled['closed']:.1%}{spread} of the gap closed ({cells})"
        yield f"{_told(pooled)}: {closed}{best}{harmed}"
    for harm in found["harms"]:
        where = f"{harm['dataset']} {harm['observed']:.0%}"
        yield f"harm: {_told(harm)} on {where}, {harm['gain']:+.4f}"


def _told(row: Record) -> str:
    """What a line is of: such as "lightgbm, calls, log_loss"."""
    return ", ".join([row["base"], *([] if row["way"] == "batch" else [row["way"]]), row["metric"]])


def _values(records: Sequence[Record]) -> Iterator[tuple[Any, ...]]:
    """What each method of each trial reached: more is better, so losses are negative."""
    for record in records:
        place = record["dataset"], float(record["observed"]), record["seed"]
        for method, result in record["results"].items():
            yield *place, method, "score", float(result["score"])
            loss = result.get("test_log_loss")  # records of earlier code have none
            if isinstance(loss, int | float):
                yield *place, method, "log_loss", -float(loss)


def _cells(trials: pl.DataFrame, has_gap: bool, noise: float) -> list[Record]:
    gain = pl.col("gain")
    found = trials.group_by("dataset", "observed", maintain_order=True).agg(
        gain.mean(),
        (gain.std() / pl.len().sqrt()).fill_null(0.0).alias("standard_error"),
        pl.len().alias("n_trials"),
        pl.col("gap").mean(),
    )
    cells = found.to_dicts()
    for cell in cells:
        cell["harm"] = cell["gain"] < -max(noise, 2 * cell["standard_error"])
        gap = cell.pop("gap")
        if has_gap:
            cell |= {"gap": gap, "closed": cell["gain"] / gap if gap > 0 else None}
    return cells


def _pool(trials: pl.DataFrame, cells: Sequence[Record], compared: Gap, way: str) -> Record:
    """Sum of gains over sum of gaps: over cell means, and seed by seed for the spread."""
    gain, gap = pl.col("gain"), pl.col("gap")
    by_seed = trials.group_by("seed", maintain_order=True).agg(gain.sum() / gap.sum(), n=pl.len())
    whole = by_seed.filter(pl.col("n") == len(cells))["gain"]
    closed = sum(cell["gain"] for cell in cells) / sum(cell["gap"] for cell in cells)
    pooled = {"closed": closed, "std": whole.std() or 0.0, "n_trials": len(whole)}
    pooled |= {"n_cells": len(cells), "n_harmed": sum(cell["harm"] for cell in cells)}
    best = compared.ceiling
    if way == "batch" and best in trials.columns and not trials[best].has_nulls():
        gained = (pl.col(best) - pl.col(compared.ignore)).sum() / gap.sum()
        pooled["ceiling"] = trials.select(gained).item()
    return pooled
