"""Results -> one HTML page, beside the paper's numbers and what its released code gives.

    results.py    what lies in a folder: summaries, their trials, benchmarks, figures
    paired.py     differences, tested over pairs
    tables.py     rows -> tables whose every cell knows its file
    others.py     tables of what is no score: speed, prepared logs, gaps, bounds
    paper.py      the numbers of the paper, and of its released code
    claims.py     the paper's headline claims, recomputed one by one
    reasons.py    where we differ, and what each departure is worth
    sections.py   all of it in order
    page.py       one page without scripts, fonts or network

Nothing is run and nothing is chosen here: a number is read from a file or computed from the
trials beside it, and whatever is not there is left out.
"""

from __future__ import annotations

from openfate_lab.report.page import page, write_page
from openfate_lab.report.sections import Report, build

__all__ = ["Report", "build", "page", "write_page"]
