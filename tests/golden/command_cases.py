"""fit, predict, observe, evaluate, inspect, export and prepare, through the command line."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from frozen import case, command, numbers, table, texts, without
from golden_tables import people

QUICK = ("--epochs", 6, "--width", 8, "--hidden", 8, "--n-draws", 1, "--lr", 0.02)
PATHS = ("bundle", "file", "out", "files", "rows_file", "seconds", "versions", "command", "folder")
MEASURED = ("machine", "cpu_seconds", "peak_bytes", "rows_per_second")


def told(*arguments: object) -> Any:
    """What a command says, without paths and times."""
    return without(command(*arguments), *PATHS)


def _workflow(strategy: str, *flags: object) -> Any:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, later, model = folder / "train.csv", folder / "later.csv", folder / "model"
        people(240, 0).drop("wage").write_csv(train)
        people(100, 1, later=True).drop("wage").write_csv(later)
        fit = ("fit", train, "--target", "rich", "--strategy", strategy, *QUICK, *flags)
        found = {"fit": told(*fit, "--out", model)}
        found["evaluate"] = told("evaluate", model, later, "--graph", "batch")
        found["predict"] = _predicted(model, later)
        found["observe"] = told("observe", model, later)
        found["predict_observed"] = _predicted(model, later)
        found["labels"] = told("observe", model, later, "--labelled", "--seen")
        found["predict_labels"] = _predicted(model, later)
        found["evaluate_labels"] = told("evaluate", model, later)
        found["inspect"] = told("inspect", model)
        for feature in ("city=Rome", "job=cook", "age=33"):
            found[feature] = told("inspect", model, "--feature", feature, "--nearest", 3)
    return found


def _predicted(model: Path, rows: Path) -> Any:
    out = model.parent / "p.parquet"
    said = told("predict", model, rows, "--out", out, "--batch-rows", 33)
    frame = pl.read_parquet(out)
    columns = {}
    for name in frame.columns:
        is_number = frame[name].dtype.is_numeric()
        columns[name] = numbers(frame[name]) if is_number else texts(frame[name])
    return {"said": said, "columns": columns}


@case("commands-fate")
def _fate() -> Any:
    return _workflow("fate")


@case("commands-auto")
def _auto() -> Any:
    return _workflow("auto", "--not-yet", "zip")


@case("commands-deepfm")
def _deepfm() -> Any:
    return _workflow("fate", "--backbone", "deepfm", "--class-weight", "balanced")


@case("commands-regression")
def _regression() -> Any:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        people(240, 0).write_parquet(folder / "train.parquet")
        people(100, 1, later=True).write_parquet(folder / "later.parquet")
        target = ("--target", "wage", "--task", "regression", "--exclude", "rich")
        model = folder / "model"
        fit = told("fit", folder / "train.parquet", *target, *QUICK, "--out", model)
        later = folder / "later.parquet"
        return {"fit": fit, "evaluate": told("evaluate", model, later), **_predicted(model, later)}


@case("commands-export")
def _export() -> Any:
    """The embeddings that are written, and the names and shapes of the ONNX network."""
    from safetensors.numpy import load_file

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        people(240, 0).drop("wage").write_csv(folder / "train.csv")
        model = folder / "model"
        fit = ("fit", folder / "train.csv", "--target", "rich", "--strategy", "fate", *QUICK)
        command(*fit, "--out", model)
        command("export", model, "--out", folder / "table.safetensors", "--format", "table")
        arrays = load_file(folder / "table.safetensors")
        found = {"table": {key: [list(a.shape), numbers(a)] for key, a in arrays.items() if a.size}}
        try:
            import onnxruntime
        except ImportError:
            return found
        said = command("export", model, "--out", folder / "net.onnx")
        session = onnxruntime.InferenceSession(folder / "net.onnx")
        found["onnx"] = {
            "files": sorted(Path(path).suffix for path in said["files"]),
            "inputs": [[i.name, i.type, list(map(str, i.shape))] for i in session.get_inputs()],
            "outputs": [[o.name, o.type] for o in session.get_outputs()],
        }
        return found


# ---- prepare -------------------------------------------------------------------------------------


def _log(n_rows: int) -> pl.DataFrame:
    rng = np.random.default_rng(5)
    hour = np.sort(rng.integers(0, 240, n_rows))
    site = rng.zipf(1.5, n_rows) % 60 + hour // 24 * 3
    return pl.DataFrame(
        {
            "click": (rng.random(n_rows) < 0.2 + 0.3 * (site % 2)).astype(int),
            "hour": hour,
            "site": [f"s{value}" for value in site],
            "app": [f"a{value}" for value in rng.zipf(2.0, n_rows) % 40],
            "price": rng.integers(0, 900, n_rows),
            "note": "x",
        }
    )


@case("prepare-csv")
def _prepare_csv() -> Any:
    with tempfile.TemporaryDirectory() as name:
        raw, out = Path(name) / "log.csv", Path(name) / "out"
        _log(3000).write_csv(raw)
        flags = ("--target", "click", "--time", "hour", "--drop", "note", "--log", "price")
        return _prepared(raw, out, "csv", *flags, "--threshold", 3)


@case("prepare-criteo")
def _prepare_criteo() -> Any:
    rng = np.random.default_rng(6)
    with tempfile.TemporaryDirectory() as name:
        raw, out = Path(name) / "log.txt", Path(name) / "criteo"
        lines = []
        for _ in range(1000):
            whole = [str(n) if n % 5 else "" for n in rng.integers(0, 300, 13)]
            words = [f"{n:08x}" if n else "" for n in rng.zipf(1.4, 26) % 97]
            lines.append("\t".join([str(int(rng.random() < 0.3)), *whole, *words]))
        raw.write_text("\n".join(lines) + "\n")
        said = _prepared(raw, out, "criteo")
        few = ("--methods", "base", "--backbones", "nn", "--set", "epochs=1", "--set", "lrs=0.01")
        ctr = ("experiment", "ctr", "--data", name, "--datasets", "criteo", *few)
        # What lies in the shards shows in scores of a model that is trained on them.
        rows = command(*ctr, "--trials", 1, "--jobs", 1, "--out", Path(name) / "scores")["rows"]
        return {"said": said, "ctr": table(rows, ("split", "metric"), ("mean",))}


def _prepared(raw: Path, out: Path, kind: str, *flags: object) -> Any:
    """What prepare says; its sizes and hashes are of what lies in the shards."""
    said = command("prepare", raw, "--out", out, "--format", kind, *flags)
    return without(said, *PATHS, *MEASURED)
