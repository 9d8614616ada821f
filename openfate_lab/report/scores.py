"""The scores of a summary as a table: the best of a line bold, each compared with one control.

A line for each thing measured (data set, share, split, ...) and a column for each method (or
variant); what saw the new features in training stands apart.  Comparisons are over the same splits,
from the trials behind the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openfate_lab.report.differences import ABOVE, BELOW, Difference, compare, signed_ranks
from openfate_lab.report.results import MEASURED, Row, Run
from openfate_lab.report.tables import Cell, Table, number, signed

KEYS = ("dataset", "backbone", "base", "k", "B", "variant", "split", "observed", "method")
SCORES = ("accuracy", "auc")  # more is better

Line = dict[str, tuple[int, Row]]  # by column: the place of a row in its file, and the row


def score_table(run: Run) -> Table:
    """The scores of a summary beside one another."""
    scores = _Scores(run)
    rows = []
    for key, line in scores.lines.items():
        head = [Cell(_label(*pair)) for pair in zip(scores.keys, key, strict=True)]
        rows.append(head + scores.cells(line))
        if any(row.get("paper") is not None for _, row in line.values()):
            rows.append(scores.papers_cells(head, line))
    columns = [*scores.keys, *scores.columns]
    return Table("", columns, rows, [run.name], scores.reading(), scores.legend())


class _Scores:
    """The rows of a summary, arranged: lines down, methods or variants across."""

    def __init__(self, run: Run) -> None:
        self.run, rows = run, run.rows
        n_variants, n_methods = (len({row.get(k) for row in rows}) for k in ("variant", "method"))
        self.across = "variant" if n_variants > n_methods else "method"
        self.keys = _keys(rows, self.across)
        self.columns = list(dict.fromkeys(str(row.get(self.across)) for row in rows))
        self.lines: dict[tuple[Any, ...], Line] = {}
        for at, row in enumerate(rows):
            key = tuple(_hash(row, key) for key in self.keys)
            self.lines.setdefault(key, {})[str(row.get(self.across))] = (at, row)
        self.digits = 4 if any("split" in row for row in rows) else 3
        self.control = self._control()
        self.tests: dict[str, list[Difference]] = {}  # by column, as `cells` makes them

    def _control(self) -> str | None:
        """What the others are compared with: that which ignores the new features."""
        if self.across == "variant":
            names = [name for name in self.columns if name in ("full", "default")]
        else:
            ends = ("base", "drop", "_drop", "_drop_new")
            names = [name for end in ends for name in self.columns if name.endswith(end)]
        return names[0] if names else None

    def cells(self, line: Line) -> list[Cell]:
        """The cells of one line, compared with the control."""
        control = line.get(self.control or "")
        behind = self.run.scores(control[1]) if control else {}
        # WHY: what is said of variants is about the method; its control has lines of its own.
        is_control = self.across == "variant" and all(
            str(row.get("method")).endswith("_drop_new") for _, row in line.values()
        )
        found = []
        for name in self.columns:
            if name not in line:
                found.append(Cell("-"))
                continue
            at, row = line[name]
            mark, notes = "", [_spread(row, self.digits)]
            test = compare(self.run.scores(row), behind)
            if name != self.control and test is not None and test.n > 1:
                if row.get("metric") in SCORES and not is_control:
                    self.tests.setdefault(name, []).append(test)
                mark = test.mark
                over = f"{signed(test.mean, self.digits)} over {self.control}"
                notes.append(f"{over}, p = {test.p:.2g}, {test.n} pairs")
            elif row.get("lift_standard_error"):
                lift, error = row["lift"], row["lift_standard_error"]
                mark = (ABOVE if lift > 0 else BELOW) if abs(lift) > 2 * error else ""
                notes.append(f"lift {signed(lift, self.digits)} ± {number(error, self.digits)}")
            text, source = number(row["mean"], self.digits), f"{self.run.name} rows[{at}]"
            found.append(
                Cell(text + mark, row["mean"], source, "; ".join(notes), name in _best(line))
            )
        return found

    def papers_cells(self, head: list[Cell], line: Line) -> list[Cell]:
        """The paper's numbers for a line, where the rows carry them."""
        *first, last = (cell.text for cell in head)
        cells = [Cell(text) for text in (*first, f"{last} (paper)")]
        for name in self.columns:
            at, row = line.get(name, (0, {}))
            paper = row.get("paper")
            source = f"the paper, as in {self.run.name} rows[{at}]"
            cells.append(Cell.score(None if paper is None else float(paper), source, 4))
        return cells

    # ---- what a table says ---------------------------------------------------------------------

    def legend(self) -> str:
        """What the lines have in common, and what the marks mean."""
        same = [key for key in KEYS if key not in (*self.keys, self.across)]
        first = self.run.rows[0]
        alike = [f"{key} {_label(key, first[key])}" for key in same if first.get(key) is not None]
        legend = f"All lines: {', '.join(alike)}. " if alike else ""
        if any(_fair(line) for line in self.lines.values()):
            legend += "Bold: the best of its line, oracles apart."
        if self.tests:
            n = sorted({test.n for found in self.tests.values() for test in found})
            n_tests = sum(map(len, self.tests.values()))
            legend += (
                f" {ABOVE} / {BELOW}: significantly above / below {self.control} (paired t-test "
                f"over {' or '.join(map(str, n))} splits, two-sided, 95 %). "
                f"Of {n_tests} tests, {0.05 * n_tests:.0f} would be significant by chance."
            )
        elif any(row.get("lift_standard_error") for row in self.run.rows):
            legend += f" {ABOVE} / {BELOW}: the lift over {self.control} exceeds two of its errors."
        elif self.control:
            legend += f" Not tested against {self.control}: there are no pairs of trials."
        return legend.strip()

    def reading(self) -> list[str]:
        """Who is best most often, and each method against the control."""
        wins = dict.fromkeys(self.columns, 0)
        for line in self.lines.values():
            for name in _best(line):
                wins[name] += 1
        ranked = sorted((name for name in wins if wins[name]), key=lambda name: -wins[name])
        told = []
        if len(self.lines) > 1 and ranked:
            counts = ", ".join(f"{name} in {wins[name]}" for name in ranked)
            told.append(f"Best of {len(self.lines)} lines (ties count for each): {counts}.")
        return told + [self._against_control(*found) for found in self.tests.items()]

    def _against_control(self, name: str, tests: Sequence[Difference]) -> str:
        """One method against the control, in the words that the numbers support."""
        above, below = (sum(t.mean * way > 0 for t in tests) for way in (1, -1))
        surely, surely_not = (sum(t.sign == way for t in tests) for way in (1, -1))
        means = [t.mean for t in tests]
        text = (
            f"{name} is above {self.control} in {above} of {len(tests)} cells, significantly in "
            f"{surely}, and below in {below}, significantly in {surely_not}; mean difference "
            f"{signed(sum(means) / len(tests))}"
        )
        if len(tests) > 5:
            text += f" (Wilcoxon over {len(tests)} cells: p = {signed_ranks(means):.2g})"
        return f"{text}."


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


def _fair(line: Line) -> dict[str, float]:
    """What of a line may be called the best: scores, but for what was trained with all features."""
    if len(line) < 2:
        return {}
    return {
        name: row["mean"]
        for name, (_, row) in line.items()
        if row.get("metric") in SCORES
        and "gap" not in row  # a gap in a score is no score
        and not (name == "oracle" or name.endswith("_oracle"))
    }


def _best(line: Line) -> list[str]:
    """The best of a line; several where they tie."""
    fair = _fair(line)
    return [name for name, mean in fair.items() if mean == max(fair.values())]


def _spread(row: Row, digits: int) -> str:
    n = row.get("n_trials") or 1
    spread = f" ± {number(row.get('std') or 0.0, digits)}" if n > 1 else ""
    trials = "1 trial" if n == 1 else f"{n} trials"
    ends = [number(row[key], digits) for key in ("low", "high") if isinstance(row.get(key), float)]
    interval = f", 95 % from {ends[0]} to {ends[1]}" if ends[1:] else ""
    name = row.get("metric", "score")
    return f"{name} {number(row['mean'], digits)}{spread} over {trials}{interval}"
