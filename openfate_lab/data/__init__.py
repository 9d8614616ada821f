"""The public data sets and synthetic streams.

Names are loaded on first use: a synthetic stream needs numpy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openfate._lazy import lazy_names, read_homes

if TYPE_CHECKING:
    from openfate_lab.data.datasets import LOGS, NAMES, SOURCES, Dataset, find, load
    from openfate_lab.data.download import fetch
    from openfate_lab.data.log_samples import DAY
    from openfate_lab.data.source import Source
    from openfate_lab.data.split import Split, split_features, split_fields, split_rows
    from openfate_lab.data.synthetic import BLOCK_ROWS, SyntheticStream
    from openfate_lab.data.synthetic_raw import write_raw_criteo

__all__ = [
    "BLOCK_ROWS",
    "DAY",
    "LOGS",
    "NAMES",
    "SOURCES",
    "Dataset",
    "Source",
    "Split",
    "SyntheticStream",
    "fetch",
    "find",
    "load",
    "split_features",
    "split_fields",
    "split_rows",
    "write_raw_criteo",
]

__getattr__, __dir__ = lazy_names(__name__, read_homes(__file__))
