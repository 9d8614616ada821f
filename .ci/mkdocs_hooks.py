"""Links of the pages to files of the repository: files go into the site, folders lose their link.

The pages are read in the repository too, where `../results/uci/default/uci.png` is right as it is.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside docs/ that a page links to."""
    for page in list(files.documentation_pages()):
        for link in LINK.finditer(Path(str(page.abs_src_path)).read_text()):
            path = _in_repository(page.src_uri, link[3])
            if path and (ROOT / path).is_file() and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point the links of a page to the copies."""
    up = "../" * page.file.src_uri.count("/")

    def moved(link: re.Match[str]) -> str:
        path = _in_repository(page.file.src_uri, link[3])
        if path is None:
            return link[0]
        if (ROOT / path).is_file():
            line = f" ({path.removeprefix('openfate/')}:{link[4][2:]})" if link[4] else ""
            return f"{link[1]}[{link[2]}]({up}{path}){line}"
        return link[2]

    return LINK.sub(moved, markdown)


def _in_repository(page: str, target: str) -> str | None:
    """The path of a target from the root of the repository; None within docs/."""
    path = (ROOT / "docs" / PurePosixPath(page).parent / target).resolve()
    if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "docs"):
        return None
    return path.relative_to(ROOT).as_posix()
