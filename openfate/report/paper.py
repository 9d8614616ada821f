"""The numbers of the paper (its tables and claims), and of its released code.

The paper: Wu, Yang and Yan, NeurIPS 2021.  Its figure 4 (the UCI experiment) has no numbers beside
it; what its text says of that figure are the claims.  The released code (qitianwu/FATE) was run on
our rebuilt data: two splits (60/20/20 rows), 200 epochs; its Base there drops the new features, as
the paper says.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ABLATION_FATE", "CLAIMS", "CTR_CLAIMS", "CTR_OVERALL", "RELEASED", "Claim", "CtrClaim"]


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

# Table 1: mean ROC-AUC over the test splits T1 to T8.
CTR_OVERALL = {
    ("avazu", "NN"): {"base": 0.693, "pooling": 0.684, "fate": 0.710},
    ("avazu", "DeepFM"): {"base": 0.697, "pooling": 0.685, "fate": 0.713},
    ("criteo", "NN"): {"base": 0.764, "pooling": 0.765, "fate": 0.772},
    ("criteo", "DeepFM"): {"base": 0.773, "pooling": 0.774, "fate": 0.783},
}

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
