"""Small runs of every experiment, through the command line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from frozen import case, command, table

ONE = ("--trials", 1, "--jobs", 1)
CLICKS = ("--datasets", "synthetic", "--rows", 3000, "--features", 1000, "--set", "epochs=1")


def experiment(name: str, *arguments: object) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return command("experiment", name, *arguments, "--out", Path(folder) / "out")


def scores(name: str, *arguments: object, values: tuple[str, ...] = ("mean",)) -> Any:
    """Scores by whatever tells rows apart."""
    keys = ("dataset", "observed", "backbone", "variant", "split", "day", "gap", "method", "metric")
    return table(experiment(name, *arguments, *ONE)["rows"], keys, values)


@case("uci-digits")
def _uci_digits() -> Any:
    return scores("uci", "--datasets", "digits", "--observed", "0.6", "--epochs", 40)


@case("uci-digits-settings")
def _uci_settings() -> Any:
    """Whole columns, mini-batches, k-shot, and the released code's ways."""
    digits = ("--datasets", "digits", "--observed", "0.5", "--epochs", 4)
    few = ("--methods", "fate,fate_drop_new,knn")
    return {
        "columns": scores("uci", *digits, *few, "--novelty", "columns", "--set", "batch_size=256"),
        "reference": scores("uci", *digits, *few, "--compat", "reference"),
    }


@case("uci-gene", data=True)
def _uci_gene() -> Any:
    few = ("--methods", "fate,fate_drop_new,base,pooling")
    return scores("uci", "--datasets", "gene", "--observed", "0.8", "--epochs", 40, *few)


@case("ctr-synthetic")
def _ctr() -> Any:
    return scores("ctr", *CLICKS, "--set", "lrs=0.01", "--backbones", "nn")


@case("ctr-backbones")
def _ctr_backbones() -> Any:
    few = ("--backbones", "deepfm,widedeep,dcn", "--methods", "base,fate", "--masking", "kshot")
    return scores("ctr", *CLICKS, "--set", "lrs=0.01", *few)


@case("ctr-avazu", data=True)
def _ctr_avazu() -> Any:
    few = ("--backbones", "nn", "--methods", "base,fate,evidence,late_labels")
    arguments = ("--datasets", "avazu-sample", "--set", "epochs=1", "--set", "lrs=0.01")
    return scores("ctr", *arguments, *few)


@case("openworld-digits")
def _openworld() -> Any:
    methods = "logistic_drop,logistic_evidence,lightgbm_drop,lightgbm_evidence,fate"
    arguments = ("--datasets", "digits", "--observed", "0.5", "--methods", methods)
    return scores("openworld", *arguments)


@case("openworld-digits-auto")
def _openworld_auto() -> Any:
    arguments = ("--datasets", "digits", "--observed", "0.5", "--methods", "fate_auto")
    return scores("openworld", *arguments)


@case("openworld-avazu", data=True)
def _openworld_log() -> Any:
    methods = "drop,evidence,late_labels"
    return experiment_rows("openworld", "--datasets", "avazu-sample", "--methods", methods)


def experiment_rows(name: str, *arguments: object) -> Any:
    """All rows but their times."""
    rows = experiment(name, *arguments, *ONE)["rows"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@case("ablation-digits")
def _ablation() -> Any:
    return scores("ablation", "--datasets", "digits", "--epochs", 4, "--variants", "all")


@case("map-digits")
def _map() -> Any:
    return scores("map", "--datasets", "digits", "--epochs", 4, values=("mean", "by_chance"))


@case("generalization-digits")
def _generalization() -> Any:
    digits = ("--datasets", "digits", "--kept", "0.5", "--folds", "2")
    values = ("mean", "level", "hidden_share")
    return {
        "fate": scores("generalization", *digits, "--epochs", 4, values=values),
        "theory": scores(
            "generalization", *digits, "--model", "theory", "--steps", 50, values=values
        ),
    }


@case("scalability-measured")
def _scalability() -> Any:
    """Lines through given times: measured ones are never the same."""
    rows = []
    for against, key, sizes in (
        ("rows", "n_rows", (10, 20, 40)),
        ("fields", "n_fields", (2, 3, 5)),
    ):
        for size in sizes:
            for bench in ("train", "infer"):
                for side, times in (("ours", 1), ("peer", 2)):
                    row = {"against": against, "n_rows": 10, "n_fields": 39, key: size}
                    work = {"ms": times * (2 * size + 5) + size**2 / 50, "bytes": times * 99 * size}
                    rows.append({**row, "bench": bench, "side": side, **work})
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "measured.json"
        measured.write_text(json.dumps({"machine": "none", "rows": rows}))
        found = experiment("scalability", "--measured", measured)["rows"]
    return table(found, ("against", "bench", "side", "quantity"), ("slope", "intercept", "r2"))
