"""Any table -> X, in memory or on disk.

Names are loaded on first use: the numerical core takes `MultiHot` from here on machines where only
torch and numpy are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openfate._lazy import lazy_names, read_homes

if TYPE_CHECKING:
    from openfate.table.cache import Encoded, RowCache, encode_table
    from openfate.table.changes import (
        Policies,
        Policy,
        SchemaReport,
        compare,
        enforce,
        is_simple,
        names_rows,
        new_in_row,
        tell_names,
    )
    from openfate.table.disk import DiskRows, RowWriter
    from openfate.table.dtypes import plain_types
    from openfate.table.encoder import Encoder, Growth
    from openfate.table.expressions import Expression, parse
    from openfate.table.fields import Field, Numeric, numbers_in
    from openfate.table.frame import (
        Table,
        column_of,
        moments_of,
        read_table,
        text_of,
        time_numbers,
        uncollected,
    )
    from openfate.table.hashes import hash_keys, mix_bits
    from openfate.table.labels import class_numbers, label_matrix, read_labels, target_numbers
    from openfate.table.logs import PRESETS, Log, open_log, values_of
    from openfate.table.multihot import PART_ROWS, MultiHot
    from openfate.table.newcomers import Meeting, Newcomers
    from openfate.table.pieces import Batch, batches_of, read_ahead
    from openfate.table.preparation import prepare
    from openfate.table.reader import Paths, RowFile, TextFile, rebatch
    from openfate.table.scan import Rows, cut_table, open_rows
    from openfate.table.schema import Schema
    from openfate.table.shards import PreparedData

__all__ = [
    "PART_ROWS",
    "PRESETS",
    "Batch",
    "DiskRows",
    "Encoded",
    "Encoder",
    "Expression",
    "Field",
    "Growth",
    "Log",
    "Meeting",
    "MultiHot",
    "Newcomers",
    "Numeric",
    "Paths",
    "Policies",
    "Policy",
    "PreparedData",
    "RowCache",
    "RowFile",
    "RowWriter",
    "Rows",
    "Schema",
    "SchemaReport",
    "Table",
    "TextFile",
    "batches_of",
    "class_numbers",
    "column_of",
    "compare",
    "cut_table",
    "encode_table",
    "enforce",
    "hash_keys",
    "is_simple",
    "label_matrix",
    "mix_bits",
    "moments_of",
    "names_rows",
    "new_in_row",
    "numbers_in",
    "open_log",
    "open_rows",
    "parse",
    "plain_types",
    "prepare",
    "read_ahead",
    "read_labels",
    "read_table",
    "rebatch",
    "target_numbers",
    "tell_names",
    "text_of",
    "time_numbers",
    "uncollected",
    "values_of",
]

__getattr__, __dir__ = lazy_names(__name__, read_homes(__file__))
