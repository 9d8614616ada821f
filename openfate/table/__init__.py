"""Any table -> X, in memory or on disk.

Names are loaded on first use: the numerical core takes `MultiHot` from here on machines where only
torch and numpy are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openfate._lazy import lazy_names

if TYPE_CHECKING:
    from openfate.table.ahead import read_ahead
    from openfate.table.changes import Policies, Policy, SchemaReport, compare, enforce
    from openfate.table.clicks.logs import Log, open_log
    from openfate.table.clicks.measure import describe_preparation, measured_prepare
    from openfate.table.clicks.pieces import Batch, batches_of
    from openfate.table.clicks.prepare import prepare
    from openfate.table.clicks.shards import PreparedData
    from openfate.table.encoder import Encoder
    from openfate.table.expressions import Expression, parse
    from openfate.table.fields import Field
    from openfate.table.frame import Table, column_of, read_table, text_of
    from openfate.table.multihot import MultiHot
    from openfate.table.read import RowFile, plain_types
    from openfate.table.schema import Schema

__all__ = [
    "Batch",
    "Encoder",
    "Expression",
    "Field",
    "Log",
    "MultiHot",
    "Policies",
    "Policy",
    "PreparedData",
    "RowFile",
    "Schema",
    "SchemaReport",
    "Table",
    "batches_of",
    "column_of",
    "compare",
    "describe_preparation",
    "enforce",
    "measured_prepare",
    "open_log",
    "parse",
    "plain_types",
    "prepare",
    "read_ahead",
    "read_table",
    "text_of",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "openfate.table.ahead": "read_ahead",
        "openfate.table.changes": "Policies Policy SchemaReport compare enforce",
        "openfate.table.clicks.logs": "Log open_log",
        "openfate.table.clicks.measure": "describe_preparation measured_prepare",
        "openfate.table.clicks.pieces": "Batch batches_of",
        "openfate.table.clicks.prepare": "prepare",
        "openfate.table.clicks.shards": "PreparedData",
        "openfate.table.encoder": "Encoder",
        "openfate.table.expressions": "Expression parse",
        "openfate.table.fields": "Field",
        "openfate.table.frame": "Table column_of read_table text_of",
        "openfate.table.multihot": "MultiHot",
        "openfate.table.read": "RowFile plain_types",
        "openfate.table.schema": "Schema",
    },
)
