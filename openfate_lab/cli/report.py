"""Results as one page: report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from openfate.cli import Json, interruptible
from openfate.errors import InputError
from openfate.files import check_place


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of results, such as results.", metavar="DIR")
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """One HTML page over results, beside the paper's numbers; its claims recomputed."""
    from openfate_lab import report as reporting

    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {out}: the page is a .html file.")
    check_place(out)
    with interruptible("nothing was written"):
        built = reporting.build(folders)
        reporting.write_page(built, out)
    for told in built.unread:
        print(f"openfate: left out: {told}.", file=sys.stderr)
    if as_json:
        print(json.dumps({"page": str(out), **built.data()}))
        return
    for claim in built.claims:
        print(f"{claim.verdict}: {claim.claim} ({claim.run}): {claim.detail}")
    n_tables = sum(len(section.tables) for section in built.sections)
    print(f"Page: {out} ({n_tables} tables, {out.stat().st_size / 1e6:.1f} MB)")
