"""Rows of a result -> tables whose every cell knows its value and its file.

A table of scores has a line for each thing measured (data set, share, split, ...) and a column for
each method (or variant); the best of a line is bold, what saw the new features in training apart.
Every cell is compared with one control, over the same splits, from the trials behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openfate_lab.report.paired import Difference, paired, signed_ranks
from openfate_lab.report.results import MEASURED, Row, Run

__all__ = ["Cell", "Table", "number", "plain_table", "score_table", "signed"]

KEYS = ("dataset", "backbone", "base", "k", "B", "variant", "split", "observed", "method")
SCORES = ("accuracy", "auc")  # more is better
ABOVE, BELOW = "▲", "▼"


@dataclass(frozen=True)
class Cell:
    """One entry: what is shown, what it is, and where it comes from."""

    text: str
    value: float | None = None
    source: str = ""
    note: str = ""
    best: bool = False


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


# ---- scores ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scores:
    """The rows of a summary, arranged: lines down, methods or variants across."""

    run: Run
    across: str
    keys: tuple[str, ...]
    lines: dict[tuple[Any, ...], dict[str, tuple[int, Row]]]
    columns: list[str]

    @property
    def control(self) -> str | None:
        """What the others are compared with: that which ignores the new features."""
        if self.across == "variant":
            names = [name for name in self.columns if name in ("full", "default")]
        else:
            ends = ("base", "drop", "_drop", "_drop_new")
            names = [name for end in ends for name in self.columns if name.endswith(end)]
        return names[0] if names else None


def score_table(run: Run, title: str) -> Table:
    """The scores of a summary beside one another, the best bold, each compared with the control."""
    scores = _arrange(run)
    digits = 4 if any("split" in row for row in run.rows) else 3
    tests: dict[str, list[Difference]] = {}
    rows = []
    for line, cells in scores.lines.items():
        head = [Cell(_label(key, value)) for key, value in zip(scores.keys, line, strict=True)]
        # WHY: what is said of variants is about the method; its control has lines of its own.
        is_control = scores.across == "variant" and all(
            str(row.get("method")).endswith("_drop_new") for _, row in cells.values()
        )
        rows.append(head + _scores_of(scores, cells, {} if is_control else tests, digits))
        if any(row.get("paper") is not None for _, row in cells.values()):
            rows.append(_papers_of(scores, head, cells))
    table = Table(
        title,
        [*scores.keys, *scores.columns],
        rows,
        [run.name],
        reading=_reading(scores, tests),
    )
    table.legend = _legend(scores, tests)
    return table


def _arrange(run: Run) -> _Scores:
    rows = run.rows
    n_variants, n_methods = (len({row.get(key) for row in rows}) for key in ("variant", "method"))
    across = "variant" if n_variants > n_methods else "method"
    keys = _keys(rows, across)
    lines: dict[tuple[Any, ...], dict[str, tuple[int, Row]]] = {}
    for at, row in enumerate(rows):
        line = tuple(_hash(row, key) for key in keys)
        lines.setdefault(line, {})[str(row.get(across))] = (at, row)
    columns = list(dict.fromkeys(str(row.get(across)) for row in rows))
    return _Scores(run, across, tuple(keys), lines, columns)


def _keys(rows: Sequence[Row], across: str) -> list[str]:
    """What tells the lines of a table apart: as few of the rows' keys as will do."""

    def n_told(keys: Sequence[str]) -> int:
        return len({tuple(_hash(row, key) for key in (*keys, across)) for row in rows})

    several = len({row.get("dataset") for row in rows}) > 1
    keys: list[str] = ["dataset"] if several else []
    others = {key: row[key] for row in rows for key in row if key not in (*KEYS, *MEASURED)}
    words = [key for key, value in others.items() if isinstance(value, str)]
    known = [key for key in KEYS if key != across]
    for key in (*known, *words, "metric", *(key for key in others if key not in words)):
        if n_told([*keys, key]) > n_told(keys):
            keys.append(key)
    return keys or ["dataset"]


def _hash(row: Row, key: str) -> Any:
    value = row.get(key)
    return str(value) if isinstance(value, list | dict) else value


def _label(key: str, value: Any) -> str:
    if key == "observed" and isinstance(value, float):
        return f"{value:.0%}"
    if key == "label_delay_seconds" and isinstance(value, int | float):
        return f"{value / 3600:g} h"
    return "-" if value is None else str(value)


def _scores_of(
    scores: _Scores,
    cells: dict[str, tuple[int, Row]],
    tests: dict[str, list[Difference]],
    digits: int,
) -> list[Cell]:
    """The cells of one line; `tests` gets the comparisons with the control."""
    fair = _fair(cells)
    control = cells.get(scores.control or "")
    behind = scores.run.scores(control[1]) if control else {}
    found = []
    for name in scores.columns:
        if name not in cells:
            found.append(Cell("-"))
            continue
        at, row = cells[name]
        text, notes = number(row["mean"], digits), [_spread(row, digits)]
        test = paired(scores.run.scores(row), behind)
        if name != scores.control and test is not None and test.n > 1:
            if row.get("metric") in SCORES:
                tests.setdefault(name, []).append(test)
            text += {1: ABOVE, -1: BELOW, 0: ""}[test.sign]
            over = f"{signed(test.mean, digits)} over {scores.control}"
            notes.append(f"{over}, p = {test.p:.2g}, {test.n} pairs")
        elif row.get("lift_standard_error"):
            lift, error = row["lift"], row["lift_standard_error"]
            text += (ABOVE if lift > 0 else BELOW) if abs(lift) > 2 * error else ""
            notes.append(f"lift {signed(lift, digits)} ± {number(error, digits)}")
        best = name in fair and row["mean"] == max(fair.values())
        source = f"{scores.run.name} rows[{at}]"
        found.append(Cell(text, row["mean"], source, "; ".join(notes), best))
    return found


def _fair(cells: dict[str, tuple[int, Row]]) -> dict[str, float]:
    """What of a line may be called the best: scores, but for what was trained with all features."""
    if len(cells) < 2:
        return {}
    return {
        name: row["mean"]
        for name, (_, row) in cells.items()
        if row.get("metric") in SCORES
        and "gap" not in row  # a gap in a score is no score
        and not (name == "oracle" or name.endswith("_oracle"))
    }


def _spread(row: Row, digits: int) -> str:
    n = row.get("n_trials") or 1
    spread = f" ± {number(row.get('std') or 0.0, digits)}" if n > 1 else ""
    trials = "1 trial" if n == 1 else f"{n} trials"
    ends = [row[key] for key in ("low", "high") if isinstance(row.get(key), float)]
    interval = (
        f", 95 % from {number(ends[0], digits)} to {number(ends[1], digits)}" if ends[1:] else ""
    )
    name = row.get("metric", "score")
    return f"{name} {number(row['mean'], digits)}{spread} over {trials}{interval}"


def _papers_of(scores: _Scores, head: list[Cell], cells: dict[str, tuple[int, Row]]) -> list[Cell]:
    """The paper's numbers for a line, where the rows carry them."""
    line = [Cell(cell.text) for cell in head]
    line[-1] = Cell(f"{head[-1].text} (paper)")
    for name in scores.columns:
        at, row = cells.get(name, (0, {}))
        value = row.get("paper")
        if isinstance(value, int | float):
            source = f"the paper, as in {scores.run.name} rows[{at}]"
            line.append(Cell(number(value, 4), float(value), source))
        else:
            line.append(Cell("-"))
    return line


def _legend(scores: _Scores, tests: dict[str, list[Difference]]) -> str:
    same = [key for key in KEYS if key not in (*scores.keys, scores.across)]
    first = scores.run.rows[0]
    alike = [f"{key} {_label(key, first[key])}" for key in same if first.get(key) is not None]
    legend = f"All lines: {', '.join(alike)}. " if alike else ""
    if any(_fair(cells) for cells in scores.lines.values()):
        legend += "Bold: the best of its line, oracles apart."
    if tests:
        n = sorted({test.n for found in tests.values() for test in found})
        legend += (
            f" {ABOVE} / {BELOW}: significantly above / below {scores.control} (paired t-test over "
            f"{' or '.join(map(str, n))} splits, two-sided, 95 %)."
        )
        n_tests = sum(map(len, tests.values()))
        legend += f" Of {n_tests} tests, {0.05 * n_tests:.0f} would be significant by chance."
    elif any(row.get("lift_standard_error") for row in scores.run.rows):
        legend += f" {ABOVE} / {BELOW}: the lift over {scores.control} exceeds two of its errors."
    elif scores.control:
        legend += f" Not tested against {scores.control}: there are no pairs of trials."
    return legend.strip()


# ---- what a table says -------------------------------------------------------------------------


def _reading(scores: _Scores, tests: dict[str, list[Difference]]) -> list[str]:
    return [
        *_best_most_often(scores),
        *(_against(scores, name, found) for name, found in tests.items()),
    ]


def _best_most_often(scores: _Scores) -> list[str]:
    wins = dict.fromkeys(scores.columns, 0)
    for cells in scores.lines.values():
        fair = _fair(cells)
        for name, mean in fair.items():
            wins[name] += mean == max(fair.values())
    ranked = sorted((name for name in wins if wins[name]), key=lambda name: -wins[name])
    if len(scores.lines) < 2 or not ranked:
        return []
    counts = ", ".join(f"{name} in {wins[name]}" for name in ranked)
    return [f"Best of {len(scores.lines)} lines (ties count for each): {counts}."]


def _against(scores: _Scores, name: str, tests: Sequence[Difference]) -> str:
    """One method against the control, in the words that the numbers support."""
    above, below = (sum(t.mean * way > 0 for t in tests) for way in (1, -1))
    surely, surely_not = (sum(t.sign == way for t in tests) for way in (1, -1))
    mean = sum(t.mean for t in tests) / len(tests)
    text = (
        f"{name} is above {scores.control} in {above} of {len(tests)} cells, significantly in "
        f"{surely}, and below in {below}, significantly in {surely_not}; mean difference "
        f"{signed(mean)}"
    )
    if len(tests) > 5:
        text += (
            f" (Wilcoxon over {len(tests)} cells: p = {signed_ranks([t.mean for t in tests]):.2g})"
        )
    return f"{text}."


# ---- anything else -----------------------------------------------------------------------------


def plain_table(
    run: Run, title: str, rows: Sequence[Row] | None = None, where: str = "rows"
) -> Table:
    """Rows as they are: a column for every plain value, those of a part with the part's name."""
    flat = [_without_spread(_flat(row)) for row in (run.rows if rows is None else rows)]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    lines = [
        [plain_cell(key, row.get(key), f"{run.name} {where}[{at}]") for key in columns]
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


def plain_cell(key: str, value: Any, source: str) -> Cell:
    """A value of any kind, in the unit that a person reads.

    Examples
    --------
    >>> plain_cell("ours_bytes", 6238208, "f").text, plain_cell("x", None, "f").text
    ('6.2 MB', '-')
    """
    if value is None:
        return Cell("-")
    if isinstance(value, bool):
        return Cell("yes" if value else "no", None, source)
    if not isinstance(value, int | float):
        return Cell(str(value), None, source)
    if key.endswith("_bytes"):
        text = f"{value / 1e6:,.1f} MB" if value < 1e9 else f"{value / 1e9:,.2f} GB"
    elif isinstance(value, int):
        text = f"{value:,}" if abs(value) >= 10_000 else str(value)
    else:
        text = f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return Cell(text, float(value), source)
