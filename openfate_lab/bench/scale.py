"""Time and memory of a mini-batch against its rows and against its fields (paper, appendix).

Both sides in one run; `openfate experiment scalability` fits lines and draws them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import torch

from openfate.errors import InputError
from openfate_lab.arguments import at_least
from openfate_lab.bench.cases import Bench, ClickCase, milliseconds
from openfate_lab.bench.memory import peak_bytes
from openfate_lab.bench.record import about, megabytes, tell, use_device

_DEFAULTS = {  # rows, fields, features: the twin's dense embeddings take a CPU seconds for a step
    "cpu": ([1000, 2000, 4000, 6000, 8000, 10_000], [15, 21, 27, 33, 39], 100_000),
    "cuda": (list(range(100_000, 1_000_001, 100_000)), [15, 19, 23, 27, 31, 35, 39], 2_650_000),
}


def bench_scale(
    rows: Sequence[int] | None = None,
    fields: Sequence[int] | None = None,
    device: str = "cpu",
    n_features: int | None = None,
    repeats: int = 3,
    threads: int = 1,
) -> dict[str, Any]:
    """Milliseconds and bytes of training and prediction per mini-batch, ours and the twin.

    Parameters
    ----------
    rows
        Sizes of mini-batches, at 39 fields; 1e3 .. 1e4 by default, on a GPU 1e5 .. 1e6.
    fields
        Numbers of fields, at the least of `rows`; 15 .. 39 by default.
    n_features
        D of 39 fields; fewer fields have their share of it.

    Returns
    -------
    dict
        `rows` of {"against", "n_rows", "n_fields", "bench", "side", "ms", "bytes"}.
    """
    use_device(device)
    usual_rows, usual_fields, usual_features = _DEFAULTS[device]
    rows, fields = rows or usual_rows, fields or usual_fields
    n_features = usual_features if n_features is None else n_features
    at_least(1, repeats=repeats, threads=threads)
    at_least(2, rows=min(rows))  # BatchNorm's least
    if max(fields) * 5 > n_features:
        raise InputError(
            f"n_features={n_features}: for {max(fields)} fields give {max(fields) * 5} or more."
        )
    torch.set_num_threads(threads)
    found: list[dict[str, Any]] = []
    cases = list(_cases(rows, fields, n_features, device))
    for number, (against, case) in enumerate(cases, 1):
        tell(f"scale {number} of {len(cases)}: {case.n_rows} rows, {case.n_fields} fields")
        for bench in get_args(Bench):
            sides = {"ours": (case.ours(bench), 1), "peer": (case.peer(bench), 1)}
            for side, ms in milliseconds(sides, repeats).items():
                row = {"against": against, "n_rows": case.n_rows, "n_fields": case.n_fields}
                n_bytes = peak_bytes(case, bench, side)
                row |= {"bench": bench, "side": side, "ms": round(ms, 3), "bytes": n_bytes}
                found.append(row)
    return {"bench": "scale", **about(device), "n_features": n_features, "rows": found}


def _cases(
    rows: Sequence[int], fields: Sequence[int], n_features: int, device: str
) -> Iterator[tuple[str, ClickCase]]:
    for n_rows in rows:
        yield "rows", ClickCase(n_rows, n_features=n_features, device=device)
    for n_fields in fields:
        share = n_fields / 39
        n_kept = max(1, round(24 * share))
        yield (
            "fields",
            ClickCase(min(rows), n_fields, round(n_features * share), n_kept, device=device),
        )


def describe_scale(result: dict[str, Any]) -> str:
    """The result as a table of text: a line for each size, and both sides in it."""
    lines = [f"{'rows':>9} {'fields':>6}  {'':<5} {'ours':>10} {'peer':>10}   memory, ours / peer"]
    found = result["rows"]
    for ours, peer in zip(found[::2], found[1::2], strict=True):
        memory = " / ".join(megabytes(side["bytes"]) for side in (ours, peer))
        size = f"{ours['n_rows']:>9} {ours['n_fields']:>6}  {ours['bench']:<5}"
        lines.append(f"{size} {ours['ms']:>7.1f} ms {peer['ms']:>7.1f} ms   {memory}")
    return "\n".join([*lines, f"{result['machine']}, load {result['load_average']}"])
