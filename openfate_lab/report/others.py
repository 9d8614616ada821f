"""Tables of results that are no scores: speed, prepared logs, gaps closed, bounds of the theory."""

from __future__ import annotations

from typing import Any

from openfate.records import fault
from openfate_lab.report.results import Run
from openfate_lab.report.tables import Cell, Table, plain_cell, plain_table, signed

__all__ = ["are_bounds", "are_lines", "bench", "bounds", "engine", "gaps", "lines", "prepare"]

_READING = {
    **dict.fromkeys(("log10_gamma", "log10_first_term", "log10_second_term"), float),
    **{"log10_bound": float, "vacuous": bool, "largest_T": int},
}
_BOUND = {
    **{"dataset": str, "d": int, "k": int, "T": int, "lr": float, "log10_M": float},
    "readings": {str: _READING},
    "convex_sgd": ({"log10_gamma": float, "vacuous": bool}, None),
}
_LINE = {
    **{"against": ("rows", "fields"), "bench": ("train", "infer"), "quantity": ("ms", "bytes")},
    **{"side": ("ours", "peer"), "slope": float, "r2": float},
}
# The bounds' columns, by key, as a person reads them.
_ABOUT = {
    "dataset": "data set",
    "d": "fields d",
    "k": "kept k",
    "T": "steps T",
    "lr": "step size",
    "log10_M": "log10 M, sub-matrices",
}
_FOUND = {
    "log10_gamma": "log10 gamma, stability",
    "log10_first_term": "log10 first term",
    "log10_second_term": "log10 second term",
    "log10_bound": "log10 bound",
    "vacuous": "says nothing",
    "largest_T": "most steps that say something",
}


def bench(run: Run) -> Table:
    """Ours beside a peer, case by case."""
    table = plain_table(run, "")
    ratios = {row["case"]: row["ratio"] for row in run.rows if row.get("ratio") and "case" in row}
    if ratios:
        least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        peers = ", ".join(dict.fromkeys(str(row.get("peer_name")) for row in run.rows))
        better = sum(ratio > 1 for ratio in ratios.values())
        table.reading = [
            f"Ours is better than {peers} in {better} of {len(ratios)} cases: from "
            f"{ratios[least]:.3g} times ({least}) to {ratios[most]:.3g} times ({most})."
        ]
    return table


def prepare(run: Run) -> Table:
    """What `openfate prepare` measured of itself."""
    plain = {k: v for k, v in run.content.items() if not isinstance(v, list | dict | str)}
    rows = [[Cell(key), plain_cell(key, value, run.name)] for key, value in plain.items()]
    ours, papers = (run.content.get(key) or {} for key in ("features", "paper"))
    for key, value in ours.items():
        papers_text = plain_cell(key, papers.get(key), "").text
        about = f"features {key.replace('_', ' ')} (the paper's full log: {papers_text})"
        rows.append([Cell(about), plain_cell(key, value, run.name)])
    n_rows, rate, memory = (
        plain_cell(key, run.content.get(key), "").text
        for key in ("rows", "rows_per_second", "peak_bytes")
    )
    reading = [f"{n_rows} rows at {rate} rows a second, {memory} at most."]
    return Table("", ["what", "value"], rows, [run.name], reading)


def gaps(run: Run) -> list[Table]:
    """What evidence closes of the gap to a model fitted with all features."""
    found = run.content.get("gap_closed") or {}
    if not found.get("cells"):
        return []
    table = plain_table(run, "Gap closed, cell by cell", found["cells"], "gap_closed.cells")
    for pooled in found.get("pooled") or ():
        several = pooled["n_trials"] > 1
        spread = f" ± {pooled['std']:.0%}" if several else ""
        splits = f"spread over {pooled['n_trials']} splits" if several else "one split"
        table.reading.append(
            f"{pooled['base']}: {pooled['closed']:.0%}{spread} of the gap between new features "
            f"ignored and known in training is closed ({pooled['n_cells']} cells, {splits})."
        )
    where = [
        f"{harm['base']} on {harm['dataset']} {harm['observed']:.0%}, {signed(harm['gain'], 4)}"
        for harm in found.get("harms") or ()
    ]
    table.reading.append(f"Harm beyond noise: {'; '.join(where) or 'in no cell'}.")
    return [table]


# ---- the fused engine --------------------------------------------------------------------------


def engine(run: Run) -> Table:
    """Our fused kernels beside the twin, by rows of a mini-batch; training, then prediction."""
    rows, ratios = [], []
    sizes = sorted(run.content["rows"].items(), key=lambda item: int(item[0]))
    for key, name in (("train", "training"), ("infer", "prediction")):
        for size, found in sizes:
            if not found.get(key):
                continue
            ours, twin = found[key]["fused"], found[key]["twin"]
            where, faster = f"{run.name} rows.{size}.{key}", twin["ms"] / ours["ms"]
            ratios.append(faster)
            cells = [Cell(name), plain_cell("n_rows", int(size), where)]
            cells += [plain_cell("ms", side["ms"], where) for side in (ours, twin)]
            cells.append(Cell(f"{faster:.1f} x", faster, where))
            cells += [_gigabytes(side.get("peak_gb"), where) for side in (ours, twin)]
            rows.append(cells)
    sides = ("ours", "PyTorch Geometric")
    columns = ["what", "rows of a mini-batch", *(f"{side}, ms" for side in sides), "times faster"]
    columns += [f"{side}, memory" for side in sides]
    reading = [f"Ours is {min(ratios):.1f} to {max(ratios):.1f} times as fast."] if ratios else []
    return Table("", columns, rows, [run.name], reading, str(run.content.get("unit") or ""))


def _gigabytes(value: float | None, where: str) -> Cell:
    return plain_cell("peak_bytes", None if value is None else value * 1e9, where)


# ---- lines through what grows ------------------------------------------------------------------


def are_lines(found: Any) -> bool:
    """Whether these are what `openfate experiment scalability` fits."""
    return fault(found, [_LINE]) is None


def lines(run: Run) -> Table:
    """Slope and R2 of each quantity, both sides in a line of the table."""
    found: dict[tuple[str, str, str], dict[str, list[Cell]]] = {}
    for at, row in enumerate(run.rows):
        source, by_rows = f"{run.name} rows[{at}]", row["against"] == "rows"
        slope = row["slope"] * (1000 if by_rows else 1) / (1e6 if row["quantity"] == "bytes" else 1)
        unit = "ms" if row["quantity"] == "ms" else "MB"
        per = "1,000 rows" if by_rows else "field"
        cells = [Cell(f"{slope:.3g} {unit} / {per}", slope, source)]
        cells.append(Cell(f"{row['r2']:.3f}", row["r2"], source))
        found.setdefault((row["against"], row["bench"], unit), {})[row["side"]] = cells
    names = {"train": "training", "infer": "prediction", "ms": "time", "MB": "memory"}
    none = [Cell("-"), Cell("-")]
    rows = [
        [Cell(f"{names[bench]}, {names[unit]}"), Cell(against)]
        + [cell for side in ("ours", "peer") for cell in sides.get(side, none)]
        for (against, bench, unit), sides in found.items()
    ]
    sides = ("ours", "PyTorch Geometric")
    columns = [
        "what",
        "against",
        *(f"{side}, {what}" for side in sides for what in ("slope", "R2")),
    ]
    legend = "A line is fitted to each; R2 is the share of the spread that it explains."
    return Table("", columns, rows, [run.name], [], legend)


# ---- the bounds of Theorem 1 -------------------------------------------------------------------


def are_bounds(found: Any) -> bool:
    """Whether these are what `openfate_lab.experiments.theory` reports."""
    return fault(found, [_BOUND]) is None


def bounds(run: Run) -> Table:
    """A line for each setting and reading of the theorem."""
    rows = []
    for at, bound in enumerate(run.content["bounds"]):
        source = f"{run.name} bounds[{at}]"
        about = [plain_cell(key, bound[key], source) for key in _ABOUT]
        readings = {**bound["readings"], "convex SGD (Hardt et al.)": bound.get("convex_sgd")}
        for name, reading in readings.items():
            if reading:
                cells = [plain_cell(key, reading.get(key), source) for key in _FOUND]
                rows.append([*about, Cell(name.replace("_", " ")), *cells])
    columns = [*_ABOUT.values(), "reading", *_FOUND.values()]
    table = Table("Bounds of Theorem 1", columns, rows, [run.name])
    table.legend = "A bound that is not below the largest loss says nothing: that holds anyway."
    return table
