"""`openfate inspect` and `export`: what is in a bundle, and its network for other runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openfate.cli.flags import Bundle, Config, Json, check_choice, interruptible
from openfate.errors import InputError

if TYPE_CHECKING:
    from openfate.bank import FeatureBank

__all__ = ["export", "inspect"]


def inspect(
    bundle: Bundle,
    feature: Annotated[
        str | None, typer.Option(help="FIELD=VALUE; FIELD= for a missing cell.")
    ] = None,
    nearest: Annotated[int, typer.Option(min=0, help="How many known features beside it.")] = 5,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show a bundle, or one feature of it.

    Of a feature: its rows, the nearest known features, and its effect on the prediction.
    """
    from openfate.bank import FeatureBank, describe
    from openfate.bank import nearest as nearest_to
    from openfate.cli.labels import class_text

    bank = FeatureBank.load(bundle)
    classes = [class_text(name) for name in bank.classes]
    if feature is None:
        result = {**describe(bank), "classes": classes, "how": bank.describe_usage()}
    else:
        result = nearest_to(bank, *_feature_in(feature, bank), nearest)
        effects = result["effect"].values()
        result["effect"] = dict(zip(classes or ["prediction"], effects, strict=True))
    if as_json:
        print(json.dumps(result))
    elif feature is None:
        _print_bank(result)
    else:
        _print_feature(result)


def export(
    bundle: Bundle,
    out: Annotated[Path, typer.Option(help="An .onnx file (or .safetensors for --format table).")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="onnx: the network, and beside it the table of embeddings; table: that alone.",
        ),
    ] = "onnx",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write the network for other runtimes.

    The table of embeddings is an input of it, so that a grown table needs no new export.
    """
    check_choice("--format", format_, ("onnx", "table"))
    with interruptible("nothing was written"):
        from openfate.bank import FeatureBank, export_onnx, export_table

        bank = FeatureBank.load(bundle)
        files = export_onnx(bank, out) if format_ == "onnx" else [export_table(bank, out)]
    result = {"files": [str(path) for path in files], "new_features": bank.embeddings}
    if as_json:
        print(json.dumps(result))
        return
    print("\n".join(map(str, files)))
    if not bank.embeddings:
        print("Evidence of new features is not in it: only --strategy fate embeds them.")


def _feature_in(text: str, bank: FeatureBank) -> tuple[str, str | float | None]:
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
            f"--feature {text}: {name!r} is numeric, and {value!r} is no number."
        ) from None


def _print_bank(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

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
            print(f"{name.replace('_', ' '):<14}{value}")
    observed, new = result["observed_features"], result["new_features"]
    table = Table(title=f"{observed:,} observed and {new:,} new features")
    for heading in ("field", "kind", "observed", "new"):
        table.add_column(heading, justify="left" if heading in ("field", "kind") else "right")
    for entry in result["fields"]:
        counts = (f"{entry[key]:,}" for key in ("observed_features", "new_features"))
        table.add_row(entry["name"], entry["kind"], *counts)
    Console().print(table)


def _print_feature(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    kind = "a new feature" if result["new"] else "an observed feature"
    print(f"{result['field']}={result['value']}: {kind}, in {result['rows']:,} rows")
    effects = ", ".join(f"{name} {value:+.4f}" for name, value in result["effect"].items())
    print(f"effect on an average row: {effects}")
    if not result["nearest"]:  # evidence has no embedding
        return
    table = Table(title="nearest known features")
    for heading in ("feature", "rows", "cosine"):
        table.add_column(heading, justify="left" if heading == "feature" else "right")
    for entry in result["nearest"]:
        table.add_row(
            f"{entry['field']}={entry['value']}", f"{entry['rows']:,}", f"{entry['cosine']:.3f}"
        )
    Console().print(table)
