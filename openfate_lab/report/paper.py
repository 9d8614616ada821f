"""The numbers of the paper (its tables and claims), and of its released code.

The paper: Wu, Yang and Yan, NeurIPS 2021.  Its figure 4 (the UCI experiment) has no numbers beside
it; what its text says of that figure are the claims.  The released code (qitianwu/FATE) was run on
our rebuilt data: two splits (60/20/20 rows), 200 epochs; its Base there drops the new features, as
the paper says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ABLATION_FATE",
    "CLAIMS",
    "CTR",
    "CTR_CLAIMS",
    "K_SWEEP",
    "RELEASED",
    "Claim",
    "CtrClaim",
    "backbone_name",
    "papers_auc",
]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about FATE and some baselines on the UCI data.

    Parameters
    ----------
    name
        For links.
    words
        What the paper says.
    metric
        "accuracy" (five data sets) or "auc" (github).
    against
        The baselines; several are averaged.
    gain
        The paper's figure as a fraction. Whether it means points or a ratio is not stated.
    """

    name: str
    words: str
    metric: str
    against: tuple[str, ...]
    gain: float


CLAIMS = (
    Claim("base-accuracy", "FATE: 7.3 % higher accuracy than Base", "accuracy", ("base",), 0.073),
    Claim("base-auc", "FATE: 1.3 % higher ROC-AUC than Base", "auc", ("base",), 0.013),
    Claim(
        "pooling-accuracy",
        "FATE: 29.8 % higher accuracy than Average, KNN and Pooling",
        "accuracy",
        ("average", "knn", "pooling"),
        0.298,
    ),
    Claim(
        "pooling-auc",
        "FATE: 0.5 % higher ROC-AUC than Average, KNN and Pooling",
        "auc",
        ("average", "knn", "pooling"),
        0.005,
    ),
    Claim("inl-accuracy", "FATE: 4.1 % higher accuracy than INL", "accuracy", ("inl",), 0.041),
)


@dataclass(frozen=True)
class CtrClaim:
    """What the paper says of FATE and Base on one log with one backbone, overall ROC-AUC."""

    dataset: str
    backbone: str
    gain: float

    @property
    def words(self) -> str:
        """As a sentence."""
        log = self.dataset.capitalize()
        return f"{log}, {self.backbone}: FATE {self.gain:+.3f} ROC-AUC over Base"


CTR_CLAIMS = (
    CtrClaim("avazu", "NN", 0.017),
    CtrClaim("avazu", "DeepFM", 0.016),
    CtrClaim("criteo", "NN", 0.008),
    CtrClaim("criteo", "DeepFM", 0.010),
)

# Table 1: ROC-AUC on the test splits T1 to T8, and overall.
CTR: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("avazu", "NN", "base"): (.666, .680, .691, .694, .699, .703, .705, .705, .693),
    ("avazu", "NN", "pooling"): (.655, .671, .683, .683, .689, .694, .697, .697, .684),
    ("avazu", "NN", "fate"): (.689, .699, .708, .710, .715, .720, .721, .721, .710),
    ("avazu", "DeepFM", "base"): (.675, .684, .694, .697, .699, .706, .708, .706, .697),
    ("avazu", "DeepFM", "pooling"): (.666, .676, .685, .685, .688, .693, .694, .694, .685),
    ("avazu", "DeepFM", "fate"): (.692, .702, .711, .714, .718, .722, .724, .724, .713),
    ("criteo", "NN", "base"): (.761, .761, .763, .763, .765, .766, .766, .766, .764),
    ("criteo", "NN", "pooling"): (.761, .762, .764, .763, .766, .767, .768, .768, .765),
    ("criteo", "NN", "fate"): (.770, .769, .771, .772, .773, .774, .774, .774, .772),
    ("criteo", "DeepFM", "base"): (.772, .771, .772, .772, .774, .774, .774, .774, .773),
    ("criteo", "DeepFM", "pooling"): (.772, .772, .773, .774, .776, .776, .776, .776, .774),
    ("criteo", "DeepFM", "fate"): (.781, .780, .782, .782, .784, .784, .784, .784, .783),
}  # fmt: skip

# Table 4: ROC-AUC of FATE by the number k of fields kept: training, validation, T1 to T8.
K_SWEEP: dict[tuple[str, int], tuple[float, ...]] = {
    ("avazu", 11): (.7815, .7369, .6853, .6950, .7058, .7093, .7137, .7186, .7183, .7193),
    ("avazu", 14): (.7842, .7399, .6896, .6989, .7080, .7091, .7142, .7190, .7201, .7210),
    ("avazu", 17): (.7902, .7433, .6894, .6995, .7082, .7105, .7156, .7203, .7215, .7216),
    ("avazu", 20): (.7978, .7420, .6872, .6978, .7080, .7091, .7146, .7201, .7201, .7202),
    ("criteo", 16): (.7955, .7725, .7669, .7666, .7688, .7695, .7714, .7721, .7722, .7722),
    ("criteo", 21): (.7988, .7752, .7699, .7695, .7714, .7721, .7736, .7739, .7741, .7744),
    ("criteo", 24): (.8005, .7758, .7701, .7694, .7712, .7727, .7732, .7745, .7740, .7743),
    ("criteo", 27): (.8025, .7747, .7698, .7683, .7711, .7713, .7727, .7743, .7734, .7744),
    ("criteo", 30): (.8057, .7750, .7690, .7678, .7701, .7708, .7725, .7735, .7723, .7739),
}  # fmt: skip


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
    tests = [f"T{number}" for number in range(1, 9)]
    if row.get("k") is not None:
        names, numbers = ["train", "validation", *tests], K_SWEEP.get((dataset, row["k"]), ())
    else:
        key = (dataset, backbone_name(row.get("backbone")), str(row.get("method")))
        names, numbers = [*tests, "overall"], CTR.get(key, ())
    return dict(zip(names, numbers, strict=False)).get(str(row.get("split")))


def backbone_name(ours: object) -> str:
    """The paper's name of a backbone.

    Examples
    --------
    >>> backbone_name("mlp"), backbone_name("deepfm")
    ('NN', 'DeepFM')
    """
    names = {"nn": "NN", "mlp": "NN", "dnn": "NN", "deepfm": "DeepFM"}
    return names.get(str(ours).lower(), str(ours))


# Table 3, line "FATE": the only UCI scores that are printed, at a share that is not stated.
ABLATION_FATE = {
    "gene": 0.9345,
    "protein": 0.9178,
    "robot": 0.8815,
    "drive": 0.6440,
    "calls": 0.9839,
    "github": 0.8743,
}

# Measured: data set, share observed -> method -> accuracy, mean over two splits.
RELEASED = {
    cell: dict(zip(("fate", "base", "average", "knn", "pooling", "oracle"), scores, strict=True))
    for cell, scores in {
        ("gene", 0.3): (0.809, 0.839, 0.524, 0.478, 0.519, 0.933),
        ("gene", 0.5): (0.893, 0.909, 0.633, 0.622, 0.588, 0.933),
        ("gene", 0.8): (0.955, 0.822, 0.808, 0.785, 0.802, 0.933),
        ("protein", 0.3): (0.829, 0.729, 0.343, 0.245, 0.292, 0.771),
        ("protein", 0.5): (0.933, 0.671, 0.479, 0.176, 0.521, 0.771),
        ("protein", 0.8): (0.970, 0.813, 0.752, 0.794, 0.782, 0.771),
        ("robot", 0.3): (0.706, 0.873, 0.549, 0.576, 0.680, 0.915),
        ("robot", 0.5): (0.890, 0.896, 0.639, 0.794, 0.769, 0.915),
        ("robot", 0.8): (0.921, 0.916, 0.883, 0.904, 0.902, 0.915),
        ("calls", 0.3): (0.849, 0.865, 0.650, 0.777, 0.655, 0.936),
        ("calls", 0.5): (0.934, 0.921, 0.749, 0.879, 0.743, 0.936),
        ("calls", 0.8): (0.952, 0.931, 0.926, 0.930, 0.928, 0.936),
    }.items()
}  # fmt: skip
