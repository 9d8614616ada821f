"""Ours beside the peers; torch and numpy alone for the GPU parts.

Names are loaded on first use: what is measured is not imported to be written down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openfate._lazy import lazy_names, read_homes

if TYPE_CHECKING:
    from openfate_lab.bench.clicks import bench_clicks
    from openfate_lab.bench.command import bench_sides, describe
    from openfate_lab.bench.record import check_out, write_result
    from openfate_lab.bench.scale import bench_scale
    from openfate_lab.bench.serve import bench_serve
    from openfate_lab.bench.tables import bench_table

__all__ = [
    "bench_clicks",
    "bench_scale",
    "bench_serve",
    "bench_sides",
    "bench_table",
    "check_out",
    "describe",
    "write_result",
]

__getattr__, __dir__ = lazy_names(__name__, read_homes(__file__))
