"""Results -> one HTML page, beside the paper's numbers and what its released code gives.

    results.py       what lies in a folder: summaries, their trials, benchmarks, figures
    differences.py   differences, tested over pairs
    tables.py        rows -> tables whose every cell knows its file
    scores.py        the table of scores, each compared with a control
    paper.py         the numbers of the paper, and of its released code (paper.toml)
    claims.py        the paper's headline claims, recomputed one by one
    reasons.py       ours beside the paper, and what each departure is worth
    page.py          all of it in order, as one page without scripts, fonts or network (page.html)

Nothing is run and nothing is chosen here: a number is read from a file or computed from the
trials beside it, and whatever is not there is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openfate._lazy import lazy_names, read_homes

if TYPE_CHECKING:
    from openfate_lab.report.differences import difference
    from openfate_lab.report.page import Report, build, render_page, write_page
    from openfate_lab.report.paper import TABLE3

__all__ = ["TABLE3", "Report", "build", "difference", "render_page", "write_page"]

__getattr__, __dir__ = lazy_names(__name__, read_homes(__file__))
