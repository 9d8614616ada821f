"""`openfate merge`: bundles that observed apart become one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from openfate.bank import FeatureBank, check_free
from openfate.cli.command import Answer
from openfate.cli.flags import Trusted
from openfate.errors import InputError


def merge(
    bundles: Annotated[list[Path], "Bundles that `openfate observe --part` wrote, in any order."],
    *,
    out: Path,
    overwrite: bool = False,
    trusted: Trusted = False,
) -> Answer:
    """Merge bundles that observed the parts of the same rows, each in a copy of one bundle.

    The result is that of one bundle that has observed all parts in their order.

    Parameters
    ----------
    out
        The bundle to write.
    overwrite
        Replace a bundle that is there already.
    """
    check_free(out, overwrite)
    banks = {path: FeatureBank.load(path, trusted=trusted) for path in bundles}
    parts = {path: _part_of(path, bank) for path, bank in banks.items()}
    _check_whole(parts)
    order = sorted(banks, key=lambda path: parts[path][0])
    merged = FeatureBank.merge([banks[path] for path in order])
    for path in order:
        _join_types(merged, banks[path])
    del merged.meta["part"]
    merged.save(out, overwrite=overwrite)
    result = {
        "bundles": [str(path) for path in order],
        "rows": merged.n_rows,
        "features": merged.encoder.n_features,
        "new_features": merged.encoder.n_features - merged.n_observed,
        "labels": 0 if merged.mixture is None else merged.mixture.n_labels,
        "out": str(out),
    }
    return result, _describe(result)


def _part_of(path: Path, bank: FeatureBank) -> tuple[int, int]:
    if not bank.is_forked or "part" not in bank.meta:
        raise InputError(f"{path}: it keeps no notes; observe its rows with --part i/N.")
    number, of = bank.meta["part"]
    return number, of


def _check_whole(parts: dict[Path, tuple[int, int]]) -> None:
    """Refuse parts of different cuts, and a part that is missing or there twice."""
    (path, (_, n_parts)), *_ = parts.items()
    found: dict[int, Path] = {}
    for other, (number, of) in parts.items():
        if of != n_parts:
            raise InputError(f"{path} is one of {n_parts} parts, {other} one of {of}: cut alike.")
        if number in found:
            raise InputError(
                f"{found[number]} and {other} are both part {number}/{of}: rows would count twice."
            )
        found[number] = other
    missing = [f"{number}/{n_parts}" for number in range(1, n_parts + 1) if number not in found]
    if missing:
        raise InputError(f"part {missing[0]} is missing: give the bundles of all parts.")


def _join_types(merged: FeatureBank, part: FeatureBank) -> None:
    """Remember how columns are read that only some part has met."""
    table = merged.meta.setdefault("table", {})
    own = part.meta.get("table", {}).get("types", {})
    table["types"] = {**own, **table.get("types", {})}


def _describe(result: dict[str, Any]) -> Iterator[str]:
    n = len(result["bundles"])
    yield f"Merged {n} bundles: {result['rows']:,} rows, {result['new_features']:,} new features."
    if result["labels"]:
        yield f"{result['labels']:,} labels, learned from in the order of the parts."
    yield result["out"]
