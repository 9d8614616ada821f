"""Any table -> X, in memory or on disk.

Names are loaded on first use: the numerical core takes `MultiHot` from here on machines where only
torch and numpy are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openfate._lazy import lazy_names, read_homes

if TYPE_CHECKING:
    from openfate.table.changes import (
        Policies,
        Policy,
        SchemaReport,
        compare,
        enforce,
        is_simple,
        new_in_row,
    )
    from openfate.table.dtypes import plain_types
    from openfate.table.encoder import Encoder
    from openfate.table.expressions import Expression, parse
    from openfate.table.fields import Field, Numeric
    from openfate.table.frame import Table, column_of, read_table, text_of
    from openfate.table.labels import class_numbers, label_matrix, read_labels, target_numbers
    from openfate.table.logs import Log, open_log, values_of
    from openfate.table.multihot import MultiHot
    from openfate.table.pieces import Batch, batches_of, read_ahead
    from openfate.table.preparation import prepare
    from openfate.table.reader import RowFile, TextFile
    from openfate.table.schema import Schema
    from openfate.table.shards import PreparedData

__all__ = [
    "Batch",
    "Encoder",
    "Expression",
    "Field",
    "Log",
    "MultiHot",
    "Numeric",
    "Policies",
    "Policy",
    "PreparedData",
    "RowFile",
    "Schema",
    "SchemaReport",
    "Table",
    "TextFile",
    "batches_of",
    "class_numbers",
    "column_of",
    "compare",
    "enforce",
    "is_simple",
    "label_matrix",
    "new_in_row",
    "open_log",
    "parse",
    "plain_types",
    "prepare",
    "read_ahead",
    "read_labels",
    "read_table",
    "target_numbers",
    "text_of",
    "values_of",
]

__getattr__, __dir__ = lazy_names(__name__, read_homes(__file__))
