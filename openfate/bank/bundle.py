"""The bundle: a saved bank as a folder of plain files, checked before anything is made of them.

    schema-<hash>.json          fields, bucket edges: the encoder's header
    vocabulary-<hash>.parquet   one row a feature, in the order of ids
    weights-<hash>.safetensors  what training learned
    state-<hash>.safetensors    running sums of new features
    meta.json                   format, versions, settings, and the hash of every other file: no
                                dates, no durations, so that the same fit gives the same bytes

Files carry the hash of their content in their names, so a new version never touches an old one's;
`meta.json` is renamed into place last and is the commit point.  A crash before it leaves the old
bundle whole, a crash after it leaves strays, which the next writer sweeps.  A reader changes
nothing: it makes no lock and removes no file.

No file is a pickle.  Files must be regular ones, of the sizes and hashes that meta.json tells;
what they hold is checked by `openfate.bank.declared`, and a wrapped model by its format's checks.
`unpack` makes the parts of a bank from a bundle and checks them against one another.
What is promised of a bundle from elsewhere, and what is not: docs/security.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from openfate import __version__
from openfate.bank.declared import check_fields, check_meta, check_state, check_weights
from openfate.bank.network import Network, under
from openfate.bank.notes import Counted, Fork
from openfate.bank.parquet_footer import read_footer
from openfate.bank.wrapped import Wrapped, revive
from openfate.errors import DataFileError, InputError
from openfate.files import (
    check_place,
    hold_folder,
    open_regular,
    read_regular,
    write_whole,
    writing,
)
from openfate.openworld import EXPERTS, LiveEvidence, Mixture, Pooling, Task
from openfate.records import versions
from openfate.table import Encoder, Policies, Schema

Model = Network | Wrapped  # what a bank is built on

FORMAT = 2  # raised when an older program could misread what a newer one writes

_SUFFIXES = {
    "schema": "json",
    "vocabulary": "parquet",
    "weights": "safetensors",
    "state": "safetensors",
    "estimator": "bin",  # a wrapped model, in a safe format of its own
    "retrained": "bin",  # the same, trained again
}
_NAME = re.compile(r"(schema|vocabulary|weights|state|estimator|retrained)-[0-9a-f]{16}\.[a-z]+")
_TEMPORARY = re.compile(r"\.(meta\.json|[a-z]+-[0-9a-f]{16}\.[a-z]+)\.[0-9a-f]{32}")
_META_BYTES = 1 << 26
# A vocabulary of distinct values takes about half a byte a row, packed, and texts that repeat
# themselves 1/80 of their size; a file that promises far more was made to fill the memory.
_MOST_ROWS_A_BYTE, _MOST_UNPACKED, _SMALL_VOCABULARY = 16, 1000, 1 << 16


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds, as plain values; what they mean is the bank's business.

    Parameters
    ----------
    schema, vocabulary
        The two parts of an encoder.
    weights, state
        Arrays by name.
    meta
        Values for JSON: kind, parameters, classes, metrics.
    estimator, retrained
        The bytes of a wrapped model, if there is one, and of one that was trained again.
    """

    schema: dict[str, Any]
    vocabulary: pl.DataFrame
    weights: dict[str, NDArray[Any]]
    state: dict[str, NDArray[Any]]
    meta: dict[str, Any] = field(default_factory=dict)
    estimator: bytes | None = None
    retrained: bytes | None = None


def write_bundle(bundle: Bundle, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a bundle, whole or not at all.

    Parameters
    ----------
    path
        A folder; its parent must be there.
    overwrite
        Whether a bundle that is there already may be replaced.  Anything else never is.

    Raises
    ------
    InputError
        Where the path is taken.
    DataFileError
        Where it cannot be written; the old bundle is whole.

    Examples
    --------
    >>> import tempfile
    >>> bundle = Bundle({}, pl.DataFrame(), {"W": np.zeros((2, 3))}, {}, {"kind": "example"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bundle(bundle, Path(folder) / "model")
    ...     read_bundle(Path(folder) / "model").weights["W"].shape
    (2, 3)
    """
    path = Path(path)
    # WHY: everything is turned into bytes before the folder is touched, or can be at any time.
    contents = _contents(bundle)
    check_free(path, overwrite)
    with updating(path):
        check_free(path, overwrite)  # another writer may have been faster
        files = {}
        for role, content in contents.items():
            sha256 = _hash(content)
            name = f"{role}-{sha256[:16]}.{_SUFFIXES[role]}"
            if _hash_file(path / name) != sha256:  # WHY a look: a torn disk keeps names alone
                with writing(path / name) as file:
                    file.writelines(content)
            size = sum(len(piece) for piece in content)
            files[role] = {"name": name, "sha256": sha256, "bytes": size}
        files["vocabulary"]["rows"] = len(bundle.vocabulary)
        _sync_folder(path)  # the files' names must be on disk before meta.json speaks of them
        write_whole(path / "meta.json", _meta_text(bundle.meta, files).encode())
        _sync_folder(path)
        _sweep(path, files)


def read_bundle(path: str | Path) -> Bundle:
    """Read a bundle and verify it: names, sizes and hashes of all files.

    Raises
    ------
    DataFileError
        Where there is none, or it is truncated, changed, foreign or of a newer format.
    """
    path = Path(path)
    for _ in range(5):
        meta = _read_meta(path)
        try:
            contents = {
                role: _read_file(path, role, entry, _size(path, entry))
                for role, entry in _files(path, meta)
            }
        except FileNotFoundError as error:
            # A writer may have replaced the bundle between the two reads: look again.
            # WHY both: it may have become another one, and then the same again.
            is_same = _read_meta(path)["digest"] == meta["digest"]
            if is_same and not Path(error.filename).exists():
                name = Path(error.filename).name
                raise DataFileError(
                    f"{path}: the bundle's file {name} is missing; restore it, or fit again."
                ) from None
        else:
            return _parse(path, meta, contents)
    raise DataFileError(f"{path}: the bundle changes all the time; stop its writers and try again.")


# ---- locking -----------------------------------------------------------------------------------


@contextmanager
def updating(path: str | Path) -> Iterator[None]:
    """Hold a bundle from reading it to writing it, so that no other writer's change is lost.

    A second process waits.  Within one thread of work it may be nested.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, updating(folder), updating(folder):
    ...     pass
    """
    path = Path(path)
    check_place(path)
    with hold_folder(path, wait=True):
        yield


def _sweep(path: Path, files: dict[str, Any]) -> None:
    """Remove what a writer that crashed has left; a file that is not ours stays."""
    current = {entry["name"] for entry in files.values()}
    for file in path.iterdir():
        stray = _NAME.fullmatch(file.name) and file.name not in current and _is_ours(file)
        if stray or (_TEMPORARY.fullmatch(file.name) and file.is_file()):
            with suppress(OSError):
                file.unlink()


def _is_ours(file: Path) -> bool:
    """Whether a file has the content that its name tells."""
    return _hash_file(file)[:16] == file.stem.rpartition("-")[2]


# ---- writing -----------------------------------------------------------------------------------


Content = list[bytes | memoryview]  # of a file, one after the other: arrays are not copied
_DTYPES = {"f2": "F16", "f4": "F32", "f8": "F64", "b1": "BOOL"} | {
    f"{letter}{size}": f"{letter.upper()}{8 * size}" for letter in "iu" for size in (1, 2, 4, 8)
}


def _contents(bundle: Bundle) -> dict[str, Content]:
    vocabulary = io.BytesIO()
    bundle.vocabulary.write_parquet(vocabulary, compression="zstd")
    contents: dict[str, Content] = {
        "schema": [json.dumps(bundle.schema, sort_keys=True, ensure_ascii=False).encode()],
        "vocabulary": [vocabulary.getbuffer()],
        "weights": _tensors(bundle.weights),
        "state": _tensors(bundle.state),
    }
    models = {"estimator": bundle.estimator, "retrained": bundle.retrained}
    return contents | {role: [model] for role, model in models.items() if model is not None}


def _tensors(arrays: dict[str, NDArray[Any]]) -> Content:
    """What safetensors would write, without the copies of all arrays that it makes."""
    # In its order: wide numbers first, so that each array starts at a multiple of its numbers.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header, pieces, start = {}, list[bytes | memoryview](), 0
    for name in names:
        array = np.asarray(arrays[name], order="C")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        end = start + array.nbytes
        dtype = _DTYPES[array.dtype.str[1:]]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (start, end)}
        pieces.append(array.reshape(-1).view(np.uint8).data)
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *pieces]


def _meta_text(meta: dict[str, Any], files: dict[str, Any]) -> str:
    whole = {
        **meta,
        "format": FORMAT,
        "openfate": __version__,
        "versions": versions("torch", "numpy", "polars", "scikit-learn", "safetensors"),
        "files": files,
    }
    return json.dumps({**whole, "digest": _digest(whole)}, indent=1, ensure_ascii=False)


def _digest(meta: dict[str, Any]) -> str:
    rest = {name: value for name, value in meta.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse a path that a bundle may not be written to."""
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; a bundle is a folder: choose another path.")
    if (path / "meta.json").exists():
        _read_meta(path, any_format=True)  # a foreign meta.json is not ours to replace
        if not overwrite:
            raise InputError(f"{path} holds a bundle already: give overwrite=True to replace it.")
        return
    for file in path.iterdir():
        if not (_NAME.fullmatch(file.name) or _TEMPORARY.fullmatch(file.name)):
            if file.name == ".lock":
                continue
            raise InputError(
                f"{path} is a folder with other things in it ({file.name}), not a bundle: "
                "choose another path."
            )


def hash_bundle(bundle: Bundle) -> bytes:
    """(32,) of what a bank has learned and knows."""
    # WHY no wrapped model: the same one may be written in different bytes.
    contents = _contents(replace(bundle, estimator=None, retrained=None))
    told = "".join(f"{role} {_hash(content)}\n" for role, content in contents.items())
    return hashlib.sha256(told.encode()).digest()


def _hash(content: Iterable[bytes | memoryview]) -> str:
    found = hashlib.sha256()
    for piece in content:
        found.update(piece)
    return found.hexdigest()


def _hash_file(path: Path) -> str:
    """The hash of a regular file; that of nothing where there is none."""
    try:
        with open_regular(path) as file:
            return _hash(iter(lambda: file.read(1 << 20), b""))
    except (OSError, DataFileError):
        return ""


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- reading -----------------------------------------------------------------------------------


def _read_meta(path: Path, any_format: bool = False) -> dict[str, Any]:
    try:
        meta = _read_json(read_regular(path / "meta.json", _META_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        hint = "it has no meta.json" if path.is_dir() else "there is no such folder"
        raise DataFileError(
            f"{path} is not a bundle: {hint}; make one with `openfate fit` or save."
        ) from None
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict) or type(meta.get("format")) is not int:
        raise DataFileError(
            f"{path}: meta.json is not that of a bundle, or it is damaged; restore it, or fit "
            "again."
        )
    if meta["format"] > FORMAT and not any_format:
        raise DataFileError(
            f"{path} has the format {meta['format']} of OpenFATE {meta.get('openfate')}; this is "
            f"{__version__}, which reads formats up to {FORMAT}: upgrade OpenFATE."
        )
    if meta.get("digest") != _digest(meta):
        raise DataFileError(f"{path}: meta.json was changed or damaged; restore it, or fit again.")
    return meta


def _files(path: Path, meta: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Entries of meta.json with names that cannot lead out of the folder."""
    files = meta.get("files")
    needed = {"schema", "vocabulary", "weights", "state"}
    if not isinstance(files, dict) or not needed <= files.keys() <= _SUFFIXES.keys():
        raise DataFileError(f"{path}: meta.json does not name the bundle's files; it is damaged.")
    for role, entry in files.items():
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not name.startswith(role):
            raise DataFileError(f"{path}: meta.json names {name!r} as its {role}; it is damaged.")
    return list(files.items())


def _read_json(text: bytes) -> Any:
    """JSON of which every text has UTF-8: half a surrogate pair, which JSON can write, has none."""
    found = json.loads(text)
    json.dumps(found, ensure_ascii=False).encode()
    return found


def _size(path: Path, entry: dict[str, Any]) -> int:
    """The bytes of a file as meta.json tells them; no more are read."""
    size = entry.get("bytes")
    if type(size) is not int or size < 0:
        raise DataFileError(f"{path}: meta.json tells no size of {entry['name']}; it is damaged.")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise DataFileError(
            f"{path}: {entry['name']} has {size:,} bytes, more than this machine's memory; read it "
            "on a larger one."
        )
    return size


def _read_file(path: Path, role: str, entry: dict[str, Any], size: int) -> bytes:
    if (told := os.stat(path / entry["name"], follow_symlinks=False)).st_size > size:
        raise DataFileError(
            f"{path}: the {role} file {entry['name']} was changed ({told.st_size} bytes, not "
            f"{size}); restore it, or fit again."
        )
    content = read_regular(path / entry["name"], size)
    if hashlib.sha256(content).hexdigest() != entry.get("sha256"):
        raise DataFileError(
            f"{path}: the {role} file {entry['name']} is truncated or was changed "
            f"({len(content)} bytes, its hash differs); restore it, or fit again."
        )
    return content


def _parse(path: Path, meta: dict[str, Any], contents: dict[str, bytes]) -> Bundle:
    try:
        return Bundle(
            schema=_read_json(contents["schema"]),
            vocabulary=_read_vocabulary(contents["vocabulary"], meta["files"]["vocabulary"]),
            weights=safetensors.numpy.load(contents["weights"]),
            state=safetensors.numpy.load(contents["state"]),
            meta=meta,
            estimator=contents.get("estimator"),
            retrained=contents.get("retrained"),
        )
    except (ValueError, RecursionError, SafetensorError, pl.exceptions.PolarsError) as error:
        raise DataFileError(f"{path}: the bundle cannot be read ({error}).") from None
    except (KeyError, TypeError, pl.exceptions.PanicException) as error:
        raise DataFileError(f"{path}: the bundle cannot be read ({error!r}).") from None


def _read_vocabulary(content: bytes, entry: dict[str, Any]) -> pl.DataFrame:
    """The vocabulary, once its footer has told what it would become."""
    footer, size = read_footer(content), len(content) + _SMALL_VOCABULARY
    if footer.n_rows != entry.get("rows", footer.n_rows):
        raise ValueError(f"the vocabulary has {footer.n_rows} rows, not {entry['rows']}")
    if footer.n_rows > _MOST_ROWS_A_BYTE * size or footer.n_bytes > _MOST_UNPACKED * size:
        raise ValueError(
            f"the vocabulary promises {footer.n_rows:,} rows and {footer.n_bytes:,} bytes in a "
            f"file of {len(content):,}"
        )
    return pl.read_parquet(io.BytesIO(content))


# ---- the parts of a bank -----------------------------------------------------------------------

_WRITTEN_BY_BUNDLE = {
    *("format", "openfate", "versions", "written", "files", "digest"),
    *("classes", "embeddings", "policies", "exclude", "overrides"),
    *("pooling", "batch_pooling", "mixture", "retrained"),
    *("task", "target_scale", "backbone", "extrapolator", "recompose", "centred"),
    *("n_observed", "numbers", "texts", "estimator_format", "max_new_features"),
    *("source", "half_life"),
}


def unpack(
    bundle: Bundle, source: str, trusted: bool = False
) -> tuple[dict[str, Any], NDArray[np.float64], int, Fork | None]:
    """The arguments of a `FeatureBank`, the rows (D',) of each feature, how many, and its notes.

    Parameters
    ----------
    trusted
        Whether a wrapped model is read without checks: it may then run code.

    Raises
    ------
    DataFileError
        Where the parts do not fit together; it names the `source`.
    """
    meta = bundle.meta
    try:
        check_meta(meta)
        check_weights(bundle.weights)
        encoder = Encoder.from_parts(bundle.schema, bundle.vocabulary)
        model = _model_in(bundle, trusted)
        overrides = Schema.from_json(meta["overrides"])
        check_fields([*encoder.schema, *overrides])
        _check_outputs(model, meta["classes"])
        check_state(bundle.state, model.task, _sizes(encoder, model))
        arguments = {
            "encoder": encoder,
            "model": model,
            "classes": list(meta["classes"]),
            "embeddings": float(meta["embeddings"]),
            "evidence": _evidence_in(bundle, model.task),
            "mixture": _mixture_in(bundle, model),
            "retrained": _retrained_in(bundle, model, trusted),
            "policies": Policies.from_dict(meta["policies"]),
            "exclude": tuple(meta["exclude"]),
            "overrides": overrides,
            "max_new_features": _bound_in(bundle),
            "source": _source_in(bundle),
            "half_life": _half_life_in(bundle),
            "meta": {k: v for k, v in meta.items() if k not in _WRITTEN_BY_BUNDLE},
        }
        rows = np.array(bundle.state["rows"], dtype=np.float64)
        n_rows = int(bundle.state["n_rows"][0])
        fork = _fork_in(bundle, encoder, model)
    except (InputError, KeyError, TypeError, RuntimeError, ValueError, IndexError) as error:
        raise DataFileError(
            f"{source}: the parts of the bundle do not fit together ({error}); restore it, or fit "
            "again."
        ) from None
    except (AttributeError, AssertionError, OverflowError, MemoryError) as error:
        raise DataFileError(
            f"{source}: the parts of the bundle do not fit together ({error!r}); restore it, or "
            "fit again."
        ) from None
    if not model.n_observed <= len(rows) <= encoder.n_features:
        raise DataFileError(
            f"{source}: the vocabulary has {encoder.n_features} features, the weights "
            f"{model.n_observed} and the state {len(rows)}; it is damaged."
        )
    return arguments, rows, n_rows, fork


def _sizes(encoder: Encoder, model: Model) -> dict[str, int]:
    """Of the letters of `openfate.bank.declared`."""
    C, task = model.n_outputs, model.task
    return {
        "K": encoder.n_features,
        "C": C,
        "Z": 1 if task == "binary" else C,
        "G": C if task == "multilabel" else 1,
        "E": len(EXPERTS),
        "R": sum(name.startswith("correction") for name in EXPERTS),
    }


def _fork_in(bundle: Bundle, encoder: Encoder, model: Model) -> Fork | None:
    arrays = under(bundle.state, "fork.")
    if not arrays:
        return None
    fork = Fork.from_arrays(arrays, model.task, model.n_observed, encoder.n_features)
    sums = model.sums() if isinstance(model, Network) else []
    for call in fork.calls:
        if isinstance(call, Counted) and [more.messages.shape[1] for more in call.sums] != [
            own.width for own in sums
        ]:
            raise InputError("the sums of notes are of another model")
    return fork


def _source_in(bundle: Bundle) -> str | None:
    source, by_source = bundle.meta.get("source"), "evidence.source_key" in bundle.state
    if "pooling" in bundle.meta and (source is not None) != by_source:
        raise InputError("the evidence has sources, or its rows have; not both")
    return source


def _half_life_in(bundle: Bundle) -> int | None:
    half_life = bundle.meta.get("half_life")
    if half_life is not None and "n_counted" not in bundle.state:
        raise InputError("there is a half-life, and no count of rows")
    return half_life


def _bound_in(bundle: Bundle) -> int | dict[str, int] | None:
    most = bundle.meta.get("max_new_features")
    if most is not None and not {"newcomers", "n_evicted"} <= bundle.state.keys():
        raise InputError("there is a bound on new features, and no state of it")
    if most is not None and not bundle.state["newcomers"].shape[1]:
        raise InputError("the array newcomers is empty")
    return most


def _check_outputs(model: Model, classes: list[Any]) -> None:
    """Refuse a model of another task, or of more or fewer classes."""
    n_classes = 0 if model.task == "regression" else model.n_outputs
    good = len(classes) == n_classes and (model.task != "regression" or model.n_outputs == 1)
    if model.task in ("binary", "multiclass"):
        good = good and (n_classes == 2) == (model.task == "binary")
    if not good:
        raise InputError(
            f"a {model.task} model of {model.n_outputs} outputs has {len(classes)} classes"
        )


def _model_in(bundle: Bundle, trusted: bool) -> Model:
    meta = bundle.meta
    if bundle.estimator is None:
        return Network.from_arrays(bundle.weights, bundle.state, meta)
    estimator = revive(meta["estimator_format"], bundle.estimator, meta["classes"], trusted)
    columns, numbers, n_observed = meta["columns"], meta["numbers"], int(meta["n_observed"])
    texts = meta.get("texts")
    return Wrapped(estimator, columns, n_observed, meta["task"], numbers, texts, is_read=True)


def _retrained_in(bundle: Bundle, first: Model, trusted: bool) -> Model | None:
    settings = bundle.meta.get("retrained")
    if settings is None:
        return None
    settings = {"classes": bundle.meta["classes"], **settings}
    weights, state = (under(arrays, "retrained.") for arrays in (bundle.weights, bundle.state))
    meta = {**settings, "estimator_format": settings.get("format")}
    again = replace(bundle, meta=meta, estimator=bundle.retrained, weights=weights, state=state)
    model = _model_in(again, trusted)
    if (model.task, model.n_outputs) != (first.task, first.n_outputs):
        raise InputError(f"the model trained again is a {model.task} one of other outputs")
    return model


def _mixture_in(bundle: Bundle, model: Model) -> Mixture | None:
    arrays = under(bundle.state, "mixture.")
    if "mixture" in bundle.meta:
        settings = bundle.meta["mixture"]
        trusts, (low, high) = bool(settings["trusts_evidence"]), settings["bounds"]
        bounds = (float(low), float(high))
        return Mixture.from_arrays(
            arrays, model.n_outputs, model.task, trusts_evidence=trusts, bounds=bounds
        )
    # A bundle of an earlier format: labels were means over single features, which are not kept.
    if "pooling" not in bundle.meta:
        return None
    if np.any(bundle.state.get("evidence.labelled_count", 0)):
        warnings.warn(
            "the bundle is of an earlier format: what late labels taught it is not carried over; "
            "observe them again.",
            stacklevel=2,
        )
    if model.task == "regression":  # it does not tell the range of the training target
        return None
    trusts = bool(bundle.meta["pooling"]["strength"]) or bool(bundle.meta["embeddings"])
    return Mixture(model.n_outputs, model.task, trusts_evidence=trusts)


def _evidence_in(bundle: Bundle, task: Task) -> LiveEvidence | None:
    if "pooling" not in bundle.meta:
        return None
    arrays = under(bundle.state, "evidence.")
    batch = bundle.meta.get("batch_pooling")  # which a bundle has where it is another one
    poolings = _pooling(bundle.meta["pooling"]), None if batch is None else _pooling(batch)
    return LiveEvidence.from_arrays(arrays, task, *poolings)


def _pooling(settings: dict[str, Any]) -> Pooling:
    known = {part.name for part in fields(Pooling)}  # earlier formats had more
    return Pooling(**{name: value for name, value in settings.items() if name in known})


def pooling_settings(evidence: LiveEvidence) -> dict[str, Any]:
    """What a bundle's meta keeps of how evidence is weighed."""
    poolings = {"pooling": evidence.pooling, "batch_pooling": evidence.batch_pooling}
    return {name: asdict(pooling) for name, pooling in poolings.items() if pooling is not None}


def plain_classes(classes: Sequence[Any]) -> list[Any]:
    """Classes as values that JSON keeps; refuses others.

    Examples
    --------
    >>> plain_classes([np.int64(3), "a"])
    [3, 'a']
    """
    plain = [c.item() if isinstance(c, np.generic) else c for c in classes]
    for name in plain:
        if not isinstance(name, str | int | float | bool):
            raise InputError(
                f"class {name!r} of type {type(name).__name__} cannot be written: "
                "use strings, numbers or booleans."
            )
    return plain
