"""Results -> one HTML page, beside the paper's numbers and what its released code gives.

    results.py       what lies in a folder: summaries, their trials, benchmarks, figures
    difference.py    differences, tested over pairs
    tables.py        rows -> tables whose every cell knows its file
    scores.py        the table of scores, each compared with a control
    paper.py         the numbers of the paper, and of its released code (paper.toml)
    claims.py        the paper's headline claims, recomputed one by one
    reasons.py       ours beside the paper, and what each departure is worth
    page.py          all of it in order, as one page without scripts, fonts or network (page.html)

Nothing is run and nothing is chosen here: a number is read from a file or computed from the
trials beside it, and whatever is not there is left out.
"""

from openfate_lab.report.page import Report, build, render_page, write_page

__all__ = ["Report", "build", "render_page", "write_page"]
