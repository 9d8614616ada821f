"""The numbers of the paper and of its released code, as `paper.toml` holds them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

SOURCE = "openfate_lab/report/paper.toml"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about FATE and some baselines: on the UCI data, or on one click log.

    Parameters
    ----------
    words, gain
        As the paper has it; the figure as a fraction.
    metric, against
        "accuracy" or "auc"; the baselines, which are averaged.
    dataset, backbone
        Of a claim about a click log.
    """

    words: str
    gain: float
    metric: str = "auc"
    against: tuple[str, ...] = ("base",)
    dataset: str = ""
    backbone: str = ""


_NUMBERS = tomllib.loads((files(__package__) / "paper.toml").read_text(encoding="utf-8"))
CLAIMS = tuple(Claim(**c | {"against": tuple(c["against"])}) for c in _NUMBERS["claims"])
CTR_CLAIMS = tuple(Claim(**claim) for claim in _NUMBERS["ctr_claims"])
# Table 1: data set -> backbone -> method -> scores of its splits.
CTR: dict[str, dict[str, dict[str, list[float]]]] = _NUMBERS["table1"]
# Table 3: variant of FATE -> data set -> accuracy or AUC.
TABLE3: dict[str, dict[str, float]] = {
    variant: dict(zip(_NUMBERS["table3"]["datasets"], scores, strict=True))
    for variant, scores in _NUMBERS["table3"].items()
    if variant != "datasets"
}
# Table 4: data set -> k, as text -> scores of its splits.
K_SWEEP: dict[str, dict[str, list[float]]] = _NUMBERS["table4"]
# What to know of the released code's FATE and Base, and of its other methods.
NOTES: tuple[str, str] = (_NUMBERS["released"]["note"], _NUMBERS["released"]["note_on_baselines"])
# The released code: data set, share observed -> method -> accuracy.
RELEASED: dict[tuple[str, float], dict[str, float]] = {
    (dataset, share): dict(zip(_NUMBERS["released"]["methods"], scores, strict=True))
    for dataset, share, *scores in _NUMBERS["released"]["scores"]
}


def papers_auc(row: Mapping[str, Any]) -> float | None:
    """What Table 1, or Table 4 where the row has a k, says for a row of the click experiment.

    Examples
    --------
    >>> row = {"dataset": "criteo-sample", "backbone": "nn", "method": "fate", "split": "T1"}
    >>> papers_auc(row), papers_auc(row | {"k": 24}), papers_auc(row | {"split": "T9"})
    (0.77, 0.7701, None)
    """
    if row.get("metric", "auc") != "auc" or row.get("B") is not None:
        return None
    dataset = str(row.get("dataset")).partition("-")[0]
    if row.get("k") is not None:
        table, numbers = "table4", K_SWEEP.get(dataset, {}).get(str(row["k"]), [])
    else:
        by_method = CTR.get(dataset, {}).get(backbone_name(row.get("backbone")), {})
        table, numbers = "table1", by_method.get(str(row.get("method")), [])
    splits = _NUMBERS["splits"][table]
    return dict(zip(splits, numbers, strict=False)).get(str(row.get("split")))


def backbone_name(ours: object) -> str:
    """The paper's name of a backbone.

    Examples
    --------
    >>> backbone_name("mlp"), backbone_name("deepfm")
    ('NN', 'DeepFM')
    """
    names = {"nn": "NN", "mlp": "NN", "dnn": "NN", "deepfm": "DeepFM"}
    return names.get(str(ours).lower(), str(ours))
