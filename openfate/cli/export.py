"""`openfate export`: a bundle's network for other runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from openfate.bank import FeatureBank, export_onnx, export_table, left_out
from openfate.cli.command import Answer
from openfate.cli.flags import Bundle, Trusted


def export(
    bundle: Bundle,
    *,
    out: Path,
    format_: Literal["onnx", "table"] = "onnx",
    trusted: Trusted = False,
) -> Answer:
    """Write the network for other runtimes.

    The table of embeddings is an input of it, so that a grown table needs no new export.

    Parameters
    ----------
    out
        An .onnx file (or .safetensors for --format table).
    format_
        onnx: the network, and beside it the table of embeddings; table: that alone.
    """
    bank = FeatureBank.load(bundle, trusted=trusted)
    files = export_onnx(bank, out) if format_ == "onnx" else [export_table(bank, out)]
    result = {
        "files": [str(path) for path in files],
        "new_features": bank.embeddings > 0,
        "left_out": left_out(bank),
    }
    return result, _describe(result)


def _describe(result: dict[str, Any]) -> Iterator[str]:
    yield from result["files"]
    yield from result["left_out"]
