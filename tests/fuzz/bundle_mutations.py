"""One bundle, changed a little: as disks, transfers and attackers would."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.numpy
from seed_bundles import Files

ODD: tuple[Any, ...] = (
    *(None, True, False, "", "text", "\ud800", "../../etc/passwd", "fit", "evil/cache"),
    *(-1, 0, 1, 2, 2**31, -(2**63), 10**30, 1e308, float("nan"), float("inf"), 0.5),
    *([], {}, [[]], [None], {"a": 1}, [1] * 50, "x" * 5000),
)
SPECIAL = ("pipe", "folder", "link", "dangling", "device", "missing")


def write(files: Files, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def roles(files: Files) -> dict[str, str]:
    """The name of each file by its role."""
    return {name.partition("-")[0]: name for name in files if name != "meta.json"}


def corrupt(files: Files, rng: random.Random, folder: Path) -> None:
    """Write the bundle with a fault that hashes tell, or with a file that is none."""
    write(files, folder)
    name = rng.choice(sorted(files))
    if rng.random() < 0.15:
        _make_special(folder / rng.choice([name, ".lock"]), rng.choice(SPECIAL), rng)
        return
    (folder / name).write_bytes(spoil_bytes(files[name], rng))


def _make_special(path: Path, kind: str, rng: random.Random) -> None:
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            other = path.parent.parent / f"elsewhere-{path.name}"
            other.write_bytes(b"secret")
            path.symlink_to(other)
        case "dangling":
            path.symlink_to(path.parent.parent / "created")
        case "device":
            path.symlink_to(rng.choice(["/dev/zero", "/dev/tty", "/dev/random"]))


def spoil_bytes(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice([0, 255, 127, 128, 10, 34])
            case 2:
                data[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\xff" * 4])
            case 3:
                del data[at : at + rng.choice([1, 2, 8, 100])]
            case 4:
                data[at:at] = rng.randbytes(rng.choice([1, 4, 64]))
            case 5:
                del data[at:]
            case _:
                other = rng.randrange(len(data) + 1)
                data[at : at + 16] = data[other : other + 16]
    return bytes(data)


def craft(files: Files, rng: random.Random, folder: Path) -> None:
    """Write the bundle with one or two parts changed, and with fresh hashes."""
    changed, by_role = dict(files), roles(files)
    meta = json.loads(files["meta.json"])
    for _ in range(rng.choice([1, 1, 1, 2])):
        role = rng.choice(["meta", *by_role, *(r for r in by_role if r == "estimator")])
        if role == "meta":
            inner = {k: v for k, v in meta.items() if k not in ("files", "digest")}
            meta.update(spoil_json(inner, rng))
            if rng.random() < 0.1:
                spoil_json(meta["files"], rng)
            continue
        name = by_role[role]
        changed[name] = _spoil_part(role, changed[name], rng, meta)
    write(_with_hashes(changed, meta, by_role), folder)


def _spoil_part(role: str, content: bytes, rng: random.Random, meta: dict[str, Any]) -> bytes:
    try:
        match role:
            case "schema" if rng.random() < 0.9:
                return json.dumps(spoil_json(json.loads(content), rng)).encode()
            case "vocabulary" if rng.random() < 0.8:
                return _spoil_vocabulary(content, rng)
            case "weights" | "state" if rng.random() < 0.9:
                return _spoil_tensors(content, rng)
            case "estimator" if meta.get("estimator_format") == "skops" and rng.random() < 0.9:
                return _spoil_skops(content, rng)
            case "estimator" if meta.get("estimator_format") == "lightgbm" and rng.random() < 0.8:
                return _spoil_text(content, rng)
    except Exception:
        pass  # the part was spoilt already, or the change cannot be written
    return spoil_bytes(content, rng)


def _with_hashes(files: Files, meta: dict[str, Any], by_role: dict[str, str]) -> Files:
    found = {}
    for role, name in by_role.items():
        sha256 = hashlib.sha256(files[name]).hexdigest()
        fresh = f"{role}-{sha256[:16]}.{name.rpartition('.')[2]}"
        found[fresh] = files[name]
        if isinstance(meta.get("files"), dict) and isinstance(meta["files"].get(role), dict):
            told = meta["files"][role]
            told |= {"name": fresh, "sha256": sha256, "bytes": len(files[name])}
            told.pop("rows", None)
    rest = {name: value for name, value in meta.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    meta["digest"] = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return {**found, "meta.json": json.dumps(meta).encode()}


def spoil_json(content: Any, rng: random.Random) -> Any:
    """The content with one value, at any depth, replaced, removed or doubled."""
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                visit(node[key])

    visit(content)
    if not places:
        return content
    node, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        del node[key]
    elif kind == 1:
        node[key] = rng.choice(rng.choice(places)[:1])  # something else of the same file
        if _is_cyclic(content):
            node[key] = None
    elif kind == 2 and isinstance(node, list):
        node.append(node[key])
    elif kind == 3 and isinstance(node, dict):
        node[rng.choice(["evil", "predict", "memory", "__class__"])] = rng.choice(ODD)
    else:
        node[key] = rng.choice(ODD)
    return content


def _is_cyclic(content: Any) -> bool:
    try:
        json.dumps(content)
    except ValueError:
        return True
    return False


def _spoil_vocabulary(content: bytes, rng: random.Random) -> bytes:
    try:
        frame = pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return content  # an earlier change has spoilt it
    column = rng.choice(frame.columns)
    match rng.randrange(8):
        case 0:
            frame = frame.drop(column)
        case 1:
            frame = frame.with_columns(pl.col(column).cast(rng.choice([pl.Int64, pl.String])))
        case 2:
            frame = frame.head(rng.randrange(len(frame) + 1))
        case 3:
            frame = pl.concat([frame, frame.tail(rng.randrange(1, 4))])
        case 4:
            at = rng.randrange(len(frame))
            odd = rng.choice(
                [None, -1, 10**6, 2**31 - 1] if column != "value" else [None, "", "\0"]
            )
            cells = frame[column].to_list()
            cells[at] = odd
            frame = frame.with_columns(pl.Series(column, cells, dtype=frame[column].dtype))
        case 5:
            frame = frame.sample(fraction=1.0, shuffle=True, seed=rng.randrange(1000))
        case 6:
            frame = frame.with_columns(more=pl.lit(1))
        case _:
            frame = frame.clear() if rng.random() < 0.5 else frame.reverse()
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


def spoil_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    array = array.copy()
    kind = rng.randrange(9)
    if kind <= 4 and array.size and array.dtype.kind in "fiub":
        odd = [0, 1, 2, 5, 100, -1, -2, 2**31 - 1]
        if array.dtype.kind == "f":
            odd += [np.nan, np.inf, -np.inf, 1e308, 1e30, -1e30, 1e-308]
        with np.errstate(all="ignore"):
            value = np.array(rng.choice(odd)).astype(array.dtype)
        flat = array.reshape(-1)
        if rng.random() < 0.2:
            flat[:] = value
        else:
            flat[rng.randrange(array.size)] = value
        return array
    match kind:
        case 5:
            return array.astype(rng.choice(["f4", "f8", "i4", "i8", "u1", "b1"]))
        case 6:
            return array.reshape(-1)[:1].reshape(()) if array.size else array.reshape(0, 1)
        case 7:
            return array[: rng.randrange(len(array) + 1)] if array.ndim else array
        case _:
            return np.concatenate([array, array]) if array.ndim else array.reshape(1)


def _spoil_tensors(content: bytes, rng: random.Random) -> bytes:
    arrays = safetensors.numpy.load(content)
    if not arrays:
        return safetensors.numpy.save({"0.W": np.zeros((2, 2), np.float32)})
    name = rng.choice(sorted(arrays))
    kind = rng.randrange(10)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[rng.choice(["evil", "1.W", "retrained.0.W", f"{name}x"])] = arrays[name]
    elif kind == 2:
        other = rng.choice(sorted(arrays))
        arrays[name], arrays[other] = arrays[other], arrays[name]
    else:
        arrays[name] = spoil_array(arrays[name], rng)
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        if not array.shape:
            plain[name] = array
    return safetensors.numpy.save(plain)


def _spoil_skops(content: bytes, rng: random.Random) -> bytes:
    """Change the schema, or one of the arrays, of a model of scikit-learn."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    if rng.random() < 0.5 or len(parts) == 1:
        schema = json.loads(parts["schema.json"])
        parts["schema.json"] = json.dumps(_spoil_schema(schema, rng)).encode()
    else:
        name = rng.choice(sorted(n for n in parts if n.endswith(".npy")))
        array = np.load(io.BytesIO(parts[name]), allow_pickle=False)
        if array.dtype.names and array.size:
            column = rng.choice(array.dtype.names)
            array[column].reshape(-1)[rng.randrange(array.size)] = rng.choice([0, 1, 7, 99, 255])
            if rng.random() < 0.3 and array[column].dtype.kind != "u":
                array[column].reshape(-1)[rng.randrange(array.size)] = -1
        else:
            array = spoil_array(array, rng)
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        parts[name] = file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return file.getvalue()


def _spoil_schema(schema: Any, rng: random.Random) -> Any:
    """Change values of attributes (texts of JSON), classes, or anything."""
    leaves: list[dict[str, Any]] = []

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            if "__loader__" in node:
                leaves.append(node)
            for value in node.values():
                visit(value)
        elif isinstance(node, list):
            for value in node:
                visit(value)

    visit(schema)
    node, kind = rng.choice(leaves), rng.random()
    if kind < 0.5 and any(leaf["__loader__"] == "JsonNode" for leaf in leaves):
        node = rng.choice([leaf for leaf in leaves if leaf["__loader__"] == "JsonNode"])
        node["content"] = json.dumps(rng.choice(ODD))
    elif kind < 0.65:
        other = rng.choice(leaves)
        node["__class__"], node["__module__"] = other["__class__"], other["__module__"]
        node["__loader__"] = other["__loader__"]
    elif kind < 0.75:
        node["__loader__"] = rng.choice(["FunctionNode", "MethodNode", "PartialNode", "TypeNode"])
        node["__module__"], node["__class__"] = rng.choice(
            [("os", "system"), ("builtins", "eval"), ("joblib.numpy_pickle", "load")]
        )
    elif kind < 0.85 and "file" in node:
        files = [leaf["file"] for leaf in leaves if "file" in leaf]
        node["file"] = rng.choice(files)
    else:
        spoil_json(schema, rng)
    return schema


def _spoil_text(content: bytes, rng: random.Random) -> bytes:
    """Change a number, a list or a line of LightGBM's text."""
    lines = content.decode().split("\n")
    end = lines.index("end of trees")
    at = rng.choice([n for n in range(end) if "=" in lines[n]])
    name, _, value = lines[at].partition("=")
    tokens = value.split(" ")
    match rng.randrange(6):
        case 0 | 1 | 2:
            odd = ["-1", "0", "1", "7", "99999", "-99999", "2147483647", "nan", "inf", "", "1e308"]
            tokens[rng.randrange(len(tokens))] = rng.choice(odd)
        case 3:
            del tokens[rng.randrange(len(tokens))]
        case 4:
            tokens.append(rng.choice(tokens))
        case _:
            del lines[at]
            return "\n".join(lines).encode()
    lines[at] = f"{name}={' '.join(tokens)}"
    return "\n".join(lines).encode()
