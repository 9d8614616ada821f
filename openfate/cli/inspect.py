"""`openfate inspect`: what is in a bundle, or what is known of one feature of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openfate.bank import FeatureBank, describe
from openfate.bank import nearest as nearest_to
from openfate.cli.command import Answer, make_table
from openfate.cli.flags import Bundle, Trusted
from openfate.cli.target_flag import class_text
from openfate.errors import InputError


def inspect(
    bundle: Bundle, *, feature: str | None = None, nearest: int = 5, trusted: Trusted = False
) -> Answer:
    """Show a bundle, or one feature of it.

    Of a feature: its rows, the nearest known features, and its effect on the prediction.

    Parameters
    ----------
    feature
        FIELD=VALUE; FIELD= for a missing cell.
    nearest
        How many known features beside it.
    """
    bank = FeatureBank.load(bundle, trusted=trusted)
    classes = [class_text(name) for name in bank.classes]
    if feature is None:
        result = {**describe(bank), "classes": classes, "how": bank.describe_usage()}
        return result, _describe_bank(result)
    result = nearest_to(bank, *_read_feature(feature, bank), nearest)
    effects = result["effect"].values()
    result["effect"] = dict(zip(classes or ["prediction"], effects, strict=True))
    return result, _describe_feature(result)


def _read_feature(text: str, bank: FeatureBank) -> tuple[str, str | float | None]:
    """Read FIELD=VALUE; a field's name may hold a "=" itself."""
    names = [name for name in bank.encoder.fields if text.startswith(f"{name}=")]
    if not names:
        name, equals, _ = text.partition("=")
        if not equals:
            raise InputError(f"--feature {text}: give FIELD=VALUE, or FIELD= for a missing cell.")
        bank.encoder.schema[name]  # raises, with a close name
    name = max(names, key=len)
    value = text.removeprefix(f"{name}=")
    if not value:
        return name, None
    if bank.encoder.schema[name].kind != "numeric":
        return name, value
    try:
        return name, float(value)
    except ValueError:
        raise InputError(
            f"--feature {text}: {name!r} is numeric, and {value!r} is no number; give one."
        ) from None


def _describe_bank(result: dict[str, Any]) -> Iterator[Any]:
    meta = result["meta"]
    told = meta.get("table", {})
    facts = {
        "task": result["task"],
        "target": ", ".join(told.get("target", [])),
        "classes": ", ".join(result["classes"][:20]),
        "trained on": f"{meta.get('n_rows', 0):,} rows of {told.get('file', 'a frame')}",
        "where": told.get("where"),
        "validation": ", ".join(f"{k} {v:.4f}" for k, v in meta.get("metrics", {}).items()),
        "never used": ", ".join(result["exclude"]),
        "new features": result["how"],
        "policies": ", ".join(f"{k}={v}" for k, v in result["policies"].items()),
    }
    for name, value in facts.items():
        if value:
            yield f"{name:<14}{value}"
    yield make_table(
        f"{result['observed_features']:,} observed and {result['new_features']:,} new features",
        ("field", "kind"),
        ("observed", "new"),
        [
            (f["name"], f["kind"], f"{f['observed_features']:,}", f"{f['new_features']:,}")
            for f in result["fields"]
        ],
    )


def _describe_feature(result: dict[str, Any]) -> Iterator[Any]:
    kind = "a new feature" if result["new"] else "an observed feature"
    yield f"{result['field']}={result['value']}: {kind}, in {result['rows']:,} rows"
    effects = ", ".join(f"{name} {value:+.4f}" for name, value in result["effect"].items())
    yield f"effect on an average row: {effects}"
    if result["nearest"]:  # evidence has no embedding
        yield make_table(
            "nearest known features",
            ("feature",),
            ("rows", "cosine"),
            [
                (f"{f['field']}={f['value']}", f"{f['rows']:,}", f"{f['cosine']:.3f}")
                for f in result["nearest"]
            ],
        )
