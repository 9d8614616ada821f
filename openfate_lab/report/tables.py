"""Rows of a result -> tables whose every cell knows its value and its file.

What is no score is here: speed, prepared logs, gaps closed, bounds, and rows of any other shape as
they are; scores are in `scores.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openfate.records import Shape, fault
from openfate_lab.report.results import Row, Run


@dataclass(frozen=True)
class Cell:
    """One entry: what is shown, what it is, and where it comes from."""

    text: str
    value: float | None = None
    source: str = ""
    note: str = ""
    best: bool = False

    @classmethod
    def score(cls, value: float | None, source: str, digits: int = 3) -> Cell:
        """A score, or none.

        Examples
        --------
        >>> Cell.score(0.8317, "f").text, Cell.score(None, "f").text
        ('.832', '-')
        """
        return cls("-") if value is None else cls(number(value, digits), value, source)

    @classmethod
    def plain(cls, key: str, value: Any, source: str) -> Cell:
        """A value of any kind, in the unit that a person reads.

        Examples
        --------
        >>> Cell.plain("ours_bytes", 6238208, "f").text, Cell.plain("x", None, "f").text
        ('6.2 MB', '-')
        """
        if value is None:
            return cls("-")
        if isinstance(value, bool):
            return cls("yes" if value else "no", None, source)
        if not isinstance(value, int | float):
            return cls(str(value), None, source)
        if key.endswith("_bytes"):
            text = f"{value / 1e6:,.1f} MB" if value < 1e9 else f"{value / 1e9:,.2f} GB"
        elif isinstance(value, int):
            text = f"{value:,}" if abs(value) >= 10_000 else str(value)
        else:
            text = f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        return cls(text, float(value), source)


@dataclass
class Table:
    """A table with what it says in words."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    sources: list[str]
    reading: list[str] = field(default_factory=list)
    legend: str = ""


def number(value: float, digits: int = 3) -> str:
    """A score as it is printed here.

    Examples
    --------
    >>> number(0.8317), number(1.0), number(-0.02)
    ('.832', '1.000', '-.020')
    """
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def signed(value: float, digits: int = 3) -> str:
    """A difference.

    Examples
    --------
    >>> signed(0.0254), signed(-0.5)
    ('+.025', '-.500')
    """
    return ("" if value < 0 else "+") + number(value, digits)


# ---- rows as they are --------------------------------------------------------------------------


def row_tables(run: Run) -> list[Table]:
    """The table of a file's rows, which are no scores; none where it has no rows."""
    if run.rows and any("ratio" in row for row in run.rows):
        return [_bench(run)]
    if run.rows and fault(run.rows, [_LINE]) is None:
        return [_lines(run)]
    if run.rows:
        return [_plain(run, run.rows)]
    if "rows_per_second" in run.content:
        return [_prepare(run)]
    return [_engine(run)] if isinstance(run.content.get("rows"), dict) else []


def list_tables(run: Run) -> list[Table]:
    """Other lists that a file has beside its rows: differences, bounds, runs."""
    tables = []
    for key, found in run.content.items():
        is_list = isinstance(found, list) and all(isinstance(row, dict) for row in found)
        if key == "rows" or not is_list or not found:
            continue
        if key == "bounds" and fault(found, [_BOUND]) is None:
            tables.append(_bounds(run))
        else:
            tables.append(_plain(run, found, key.replace("_", " "), key))
    return tables


def _plain(run: Run, rows: Sequence[Row], title: str = "", where: str = "rows") -> Table:
    """A column for every plain value, those of a part with the part's name."""
    flat = [_without_spread(_flat(row)) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    lines = [
        [Cell.plain(key, row.get(key), f"{run.name} {where}[{at}]") for key in columns]
        for at, row in enumerate(flat)
    ]
    return Table(title, columns, lines, [run.name])


def _without_spread(row: Row) -> Row:
    """One trial has no spread: what the file calls 0 is unknown.

    Examples
    --------
    >>> _without_spread({"mean": 0.5, "std": 0.0, "n_trials": 1})
    {'mean': 0.5, 'std': None, 'n_trials': 1}
    """
    unknown = dict.fromkeys({"std", "standard_error"} & row.keys())
    return {**row, **unknown} if row.get("n_trials") == 1 else row


def _flat(row: Row, prefix: str = "") -> Row:
    """A row without lists, whose parts are spelt out; what took how long is left to the file.

    Examples
    --------
    >>> _flat({"k": 3, "bound": {"log10": 7.0}, "ids": [1, 2]})
    {'k': 3, 'bound log10': 7.0}
    """
    found: Row = {}
    for key, value in row.items():
        if isinstance(value, dict) and key != "parts":
            found |= _flat(value, f"{prefix}{key} ")
        elif not isinstance(value, list | dict):
            found[f"{prefix}{key}"] = value
    return found


# ---- speed -------------------------------------------------------------------------------------

_SIDES = ("ours", "PyTorch Geometric")
_LINE = {  # what `openfate experiment scalability` fits
    **{"against": ("rows", "fields"), "bench": ("train", "infer"), "quantity": ("ms", "bytes")},
    **{"side": ("ours", "peer"), "slope": float, "r2": float},
}


def _bench(run: Run) -> Table:
    """Ours beside a peer, case by case."""
    table = _plain(run, run.rows)
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


def _prepare(run: Run) -> Table:
    """What `openfate prepare` measured of itself."""
    content = run.content
    plain = {k: v for k, v in content.items() if not isinstance(v, list | dict | str)}
    rows = [[Cell(key), Cell.plain(key, value, run.name)] for key, value in plain.items()]
    papers = content.get("paper") or {}
    for key, value in (content.get("features") or {}).items():
        papers_text = Cell.plain(key, papers.get(key), "").text
        about = f"features {key.replace('_', ' ')} (the paper's full log: {papers_text})"
        rows.append([Cell(about), Cell.plain(key, value, run.name)])
    n_rows, rate, memory = (
        Cell.plain(key, content.get(key), "").text
        for key in ("rows", "rows_per_second", "peak_bytes")
    )
    reading = [f"{n_rows} rows at {rate} rows a second, {memory} at most."]
    return Table("", ["what", "value"], rows, [run.name], reading)


def _engine(run: Run) -> Table:
    """Our fused kernels beside the twin, by rows of a mini-batch; training, then prediction."""
    rows, ratios = [], []
    sizes = sorted(run.content["rows"].items(), key=lambda item: int(item[0]))
    for key, name in (("train", "training"), ("infer", "prediction")):
        for size, found in sizes:
            if not found.get(key):
                continue
            sides = [found[key]["fused"], found[key]["twin"]]
            where, faster = f"{run.name} rows.{size}.{key}", sides[1]["ms"] / sides[0]["ms"]
            cells = [Cell(name), Cell.plain("n_rows", int(size), where)]
            cells += [Cell.plain("ms", side["ms"], where) for side in sides]
            cells.append(Cell(f"{faster:.1f} x", faster, where))
            for peak in (side.get("peak_gb") for side in sides):
                n_bytes = None if peak is None else peak * 1e9
                cells.append(Cell.plain("peak_bytes", n_bytes, where))
            rows.append(cells)
            ratios.append(faster)
    columns = ["what", "rows of a mini-batch", *(f"{side}, ms" for side in _SIDES), "times faster"]
    columns += [f"{side}, memory" for side in _SIDES]
    reading = [f"Ours is {min(ratios):.1f} to {max(ratios):.1f} times as fast."] if ratios else []
    return Table("", columns, rows, [run.name], reading, str(run.content.get("unit") or ""))


def _lines(run: Run) -> Table:
    """Lines through what grows: slope and R2 of each quantity, both sides beside one another."""
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
    columns = ["what", "against", *(f"{s}, {what}" for s in _SIDES for what in ("slope", "R2"))]
    legend = "A line is fitted to each; R2 is the share of the spread that it explains."
    return Table("", columns, rows, [run.name], [], legend)


# ---- gaps closed, bounds of the theory ---------------------------------------------------------

# The columns of bounds: what `openfate_lab.experiments.theory` reports, as a person reads it.
_SETTING = {
    "dataset": (str, "data set"),
    "d": (int, "fields d"),
    "k": (int, "kept k"),
    "T": (int, "steps T"),
    "lr": (float, "step size"),
    "log10_M": (float, "log10 M, sub-matrices"),
}
_FOUND = {
    "log10_gamma": (float, "log10 gamma, stability"),
    "log10_first_term": (float, "log10 first term"),
    "log10_second_term": (float, "log10 second term"),
    "log10_bound": (float, "log10 bound"),
    "vacuous": (bool, "says nothing"),
    "largest_T": (int, "most steps that say something"),
}
_BOUND: Shape = {key: kind for key, (kind, _) in _SETTING.items()} | {
    "readings": {str: {key: kind for key, (kind, _) in _FOUND.items()}},
    "convex_sgd": ({"log10_gamma": float, "vacuous": bool}, None),
}


def gap_tables(run: Run) -> list[Table]:
    """What evidence closes of the gap to a model fitted with all features."""
    found = run.content.get("gap_closed") or {}
    if not found.get("cells"):
        return []
    table = _plain(run, found["cells"], "Gap closed, cell by cell", "gap_closed.cells")
    for pooled in found.get("pooled") or ():
        several = pooled["n_trials"] > 1
        spread = f" ± {pooled['std']:.0%}" if several else ""
        splits = f"spread over {pooled['n_trials']} splits" if several else "one split"
        table.reading.append(
            f"{_gap_of(pooled)}: {pooled['closed']:.0%}{spread} of the gap between new features "
            f"ignored and known in training is closed ({pooled['n_cells']} cells, {splits})."
        )
    where = [
        f"{_gap_of(harm)} on {harm['dataset']} {harm['observed']:.0%}, {signed(harm['gain'], 4)}"
        for harm in found.get("harms") or ()
    ]
    table.reading.append(f"Harm beyond noise: {'; '.join(where) or 'in no cell'}.")
    return [table]


def _gap_of(row: Mapping[str, Any]) -> str:
    """Whose gap it is: such as "lightgbm in one batch, log_loss"."""
    came = {"batch": "in one batch", "calls": "in calls", "rows": "row by row"}
    return f"{row['base']} {came.get(row['way'], row['way'])}, {row['metric']}"


def _bounds(run: Run) -> Table:
    """Bounds of Theorem 1: a line for each setting and reading of the theorem."""
    rows = []
    for at, bound in enumerate(run.content["bounds"]):
        source = f"{run.name} bounds[{at}]"
        setting = [Cell.plain(key, bound[key], source) for key in _SETTING]
        readings = {**bound["readings"], "convex SGD (Hardt et al.)": bound.get("convex_sgd")}
        for name, reading in readings.items():
            if reading:
                cells = [Cell.plain(key, reading.get(key), source) for key in _FOUND]
                rows.append([*setting, Cell(name.replace("_", " ")), *cells])
    names = {key: name for key, (_, name) in (_SETTING | _FOUND).items()}
    columns = [*(names[key] for key in _SETTING), "reading", *(names[key] for key in _FOUND)]
    legend = "A bound that is not below the largest loss says nothing: that holds anyway."
    return Table("Bounds of Theorem 1", columns, rows, [run.name], [], legend)
