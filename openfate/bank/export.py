"""The network for other runtimes, as ONNX: embeddings and ids in, predictions out.

    table (D', H), ids (N, d), values (N, d)  ->  outputs (N, C)

H with the linear weights of a backbone that has them.

The table of embeddings is an input, not a weight: when `observe` grows it, the network stays and
only the table is written anew.  Ids are rows of the table, and of the vocabulary in the bundle.

What is not in it: evidence, which the strategies "auto" and "evidence" add to what the networks say
(for them new features count as dropped), and what labels have taught since.  `left_out` tells.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openfate import __version__
from openfate.bank.bank import FeatureBank
from openfate.bank.bundle import plain_classes
from openfate.bank.network import Network, finish
from openfate.errors import InputError, OpenFATEError
from openfate.files import check_place, write_whole
from openfate.models import Backbone, RunningFATE
from openfate.table import MultiHot


def export_onnx(bank: FeatureBank, out: str | Path) -> list[Path]:
    """Write the network to `out` (.onnx) and the table of embeddings beside it (.safetensors).

    Warns where labels have corrected the bank since: the network is that of training.

    Returns
    -------
        The two paths.

    Raises
    ------
    OpenFATEError
        Where the extra `export` is not installed.
    """
    path, bank = Path(out), bank.copy()  # of one moment
    _check_out(path, ".onnx", "the network is an .onnx file")
    table = path.with_suffix(".safetensors")
    content = _onnx_bytes(bank)
    if _is_corrected(bank):
        warnings.warn(_CORRECTED, stacklevel=2)
    write_whole(path, content)
    return [path, export_table(bank, table)]


def left_out(bank: FeatureBank) -> list[str]:
    """What the bank does with rows and an exported network does not, a sentence each."""
    found = []
    if not bank.embeddings:
        found.append("Evidence of new features is not in it: only strategy='fate' embeds them.")
    elif bank.embeddings != 1:
        found.append(
            f"Embeddings of new features count in full in it, and {bank.embeddings:.2g} in the "
            "bundle: only strategy='fate' embeds them in full."
        )
    return [*found, _CORRECTED] if _is_corrected(bank) else found


_CORRECTED = (
    "What labels have taught since training is not in it: refit with the labelled rows, and export "
    "that."
)


def _is_corrected(bank: FeatureBank) -> bool:
    return bank.mixture is not None and bank.mixture.n_labels > 0


def export_table(bank: FeatureBank, out: str | Path) -> Path:
    """Write the table of embeddings alone: what changes when a bank observes."""
    path = Path(out)
    _check_out(path, ".safetensors", "the table of embeddings is a .safetensors file")
    content = safetensors.numpy.save({"table": table_of(bank)})
    write_whole(path, content)
    return path


def _check_out(path: Path, suffix: str, what: str) -> None:
    """Refuse a path that could not be written, before the work."""
    if path.suffix.lower() != suffix:
        raise InputError(f"{path}: {what}.")
    check_place(path)


def table_of(bank: FeatureBank) -> NDArray[np.float32]:
    """(D', H) the embedding of every feature that the bank knows, observed and new.

    Members of an ensemble stand side by side: H is the sum of their widths.
    """
    bank = bank.copy()  # of one moment
    ids, field_of = np.arange(bank.encoder.n_features, dtype=np.int32), bank.encoder.field_of
    dropped = not bank.embeddings
    tables = [m.embeddings(ids, field_of, drop_new=dropped) for m in _members(bank)]
    return np.ascontiguousarray(torch.cat(tables, 1).float().cpu().numpy())


def _members(bank: FeatureBank) -> list[RunningFATE]:
    if not isinstance(bank.model, Network):
        raise InputError("a wrapped model has its own export: only networks are written as ONNX.")
    if bank.model.n_fields is not None:
        name = bank.model.members[0].backbone.name
        raise InputError(
            f"backbone={name!r} with pool='field_linear' is not written as ONNX, whose input does "
            "not tell the fields: fit with pool='sum'."
        )
    return bank.model.members


def padded(X: MultiHot) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Give rows as the network takes them: ids (N, d) with -1 for none, and values (N, d).

    Examples
    --------
    >>> padded(MultiHot.from_rows([[0, 2], [1]], n_features=3))[0].tolist()
    [[0, 2], [1, -1]]
    """
    degree = np.diff(X.row_ptr)
    width = max(1, int(degree.max(initial=0)))
    ids = np.full((X.n_rows, width), -1, dtype=np.int64)
    values = np.zeros((X.n_rows, width), dtype=np.float32)
    place = np.arange(width) < degree[:, None]
    ids[place] = X.ids
    values[place] = 1 if X.values is None else X.values
    return ids, values


class _Network(nn.Module):
    """The backbone between a table of embeddings and predictions."""

    def __init__(self, bank: FeatureBank) -> None:
        super().__init__()
        members = _members(bank)
        self.backbones = nn.ModuleList(copy.deepcopy(m.backbone).float() for m in members)
        self.width = int(members[0].W.size(1))
        self.task, self.scale = bank.task, bank.target_scale

    def forward(self, table: Tensor, ids: Tensor, values: Tensor) -> Tensor:
        used = values * (ids >= 0)  # (N, d)
        cells = table[ids.clamp(min=0)]  # (N, d, H)
        outputs = []
        for backbone, part in zip(self.backbones, torch.split(cells, self.width, 2), strict=True):
            z = cast("Backbone", backbone).pooled(part, used)
            outputs.append(finish(backbone(z), self.task, *self.scale))
        return torch.stack(outputs).mean(0) if len(outputs) > 1 else outputs[0]


def _onnx_bytes(bank: FeatureBank) -> bytes:
    onnx = _onnx()
    width = sum(int(member.W.size(1)) for member in _members(bank))
    # Examples of the shapes; 2 and 3 rather than 0 and 1, which an exporter takes for constants.
    example = (torch.zeros(3, width), torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3))
    rows, fields, features = (torch.export.Dim(name) for name in ("N", "d", "D"))
    with _quiet():
        program = torch.onnx.export(
            _Network(bank).eval(),
            example,
            input_names=["table", "ids", "values"],
            output_names=["outputs"],
            dynamic_shapes=({0: features}, {0: rows, 1: fields}, {0: rows, 1: fields}),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, _properties(bank))
    content: bytes = model.SerializeToString()
    return content


def _properties(bank: FeatureBank) -> dict[str, str]:
    return {
        "openfate": __version__,
        "task": bank.task,
        "left_out": " ".join(left_out(bank)),
        "classes": json.dumps(plain_classes(bank.classes)),
    }


def _onnx() -> Any:
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise OpenFATEError(
            f"the ONNX export needs {error.name}: pip install 'openfate[export]'."
        ) from None
    return onnx


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on its own insides (torchvision, names of axes)."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
