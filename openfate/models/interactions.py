"""Backbones of click prediction: DeepFM, Wide & Deep and DCN-v2 over extrapolated embeddings.

    DeepFM     y = sum_j x_ij b_j + FM(w_hat of the row) + MLP(z)      (paper, appendix)
    WideDeep   y = sum_j x_ij b_j + MLP(z)                             (Cheng et al. 2016)
    DCN        y = v . x_L + MLP(x_0),  x_l+1 = x_0 * (V_l x_l + c_l) + x_l   (Wang et al. 2021)

b_j, the linear weight of a feature, is a column of W after the H of its embedding: either its own,
so zero for a hidden or new feature, or extrapolated with the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from openfate._lazy import LazyDict
from openfate.errors import InputError, check_choice
from openfate.graph import Bipartite, features_to_rows
from openfate.models.backbone import MLP, Backbone, Pool, pooled_fields

Linear = Literal["zero", "extrapolated"]
_OF_POOLING = ("name", "pool", "n_fields")  # arguments of an MLP that no other network passes on


class DeepBackbone(Backbone, ABC):
    """A feed-forward network, to whose logits terms beside it are added.

    A subclass sets `deep` and has `beside`.  WHY apart: an engine may compute the network, which is
    nearly all of the time, in its own way, and leave what is beside it to autograd.
    """

    deep: MLP

    def inputs(self, z: Tensor) -> Tensor:
        """What the network reads of the sums of rows: (..., K) -> (..., H)."""
        return z

    @abstractmethod
    def beside(self, z: Tensor) -> list[Tensor]:
        """What is added to its logits: (..., K) -> some of (..., n_outputs)."""

    def forward(self, z: Tensor) -> Tensor:
        """Logits of rows from the sums of what `lift` returns."""
        terms = self.beside(z)
        out: Tensor = self.deep(self.inputs(z))
        for term in terms:
            out = out + term
        return out


class WideDeep(DeepBackbone):
    """A linear model of the features beside a feed-forward network over their summed embeddings.

    Parameters
    ----------
    width
        H, of an embedding without its linear weight.
    n_outputs
        As every backbone's; each output has a linear weight of every feature.
    hidden, batch_norm, dropout
        Of the network, as `MLP`'s.
    linear
        The linear weight of a hidden or new feature: "zero", or "extrapolated" as a further column
        of its embedding, for which the extrapolator is made as wide as the backbone's `width`.

    Attributes
    ----------
    linear_scale
        What linear weights are multiplied by: 1, or more while few steps train them; `fold_linear`
        makes it 1 again.

    Shapes
    ------
    W (D, H + n_outputs); input (..., H + n_outputs), output (..., n_outputs)

    Examples
    --------
    >>> WideDeep(10, n_outputs=1, linear="extrapolated").width
    11
    """

    name = "widedeep"
    choices = ("linear",)

    def __init__(
        self,
        width: int,
        n_outputs: int = 1,
        hidden: Sequence[int] = (400, 400),
        *,
        linear: Linear = "zero",
        batch_norm: bool = True,
        dropout: float = 0.5,
        **contract: Any,
    ) -> None:
        check_choice("linear", linear, get_args(Linear))
        extrapolated = n_outputs if linear == "extrapolated" else 0
        own = n_outputs - extrapolated
        super().__init__(width + extrapolated, n_outputs, n_own=own, **contract)
        self.n_embedding, self.linear_scale = width, 1.0
        self.deep = MLP(width, n_outputs, hidden, batch_norm=batch_norm, dropout=dropout)

    def inputs(self, z: Tensor) -> Tensor:
        """The summed embeddings."""
        return z[..., : self.n_embedding]

    def beside(self, z: Tensor) -> list[Tensor]:
        """The summed linear weights."""
        linear = z[..., -self.n_outputs :]
        return [linear if self.linear_scale == 1 else linear * self.linear_scale]

    @torch.no_grad()
    def fold_linear(self, W: Tensor) -> None:
        """Work the scale of linear weights into the embeddings W (D, H + n_own)."""
        W[:, -self.n_outputs :] *= self.linear_scale
        self.linear_scale = 1.0

    def about(self) -> dict[str, Any]:
        """As every backbone's."""
        deep = self.deep.about()
        return {
            "name": self.name,
            "linear": "zero" if self.n_own else "extrapolated",
            **{key: value for key, value in deep.items() if key not in _OF_POOLING},
        }


class DeepFM(WideDeep):
    """A factorization machine, a linear model and a feed-forward network, added up.

    Parameters
    ----------
    width, n_outputs, hidden, linear, batch_norm, dropout
        As `WideDeep`'s.
    fm
        "pairs": each pair of features once, 1/2 [(sum w)^2 - sum w^2]; "paper": PAPER: all m and
        m', so each pair twice and every feature with itself, (sum w)^2; "cross": REFERENCE: the
        released code pairs w_hat with W itself, and reads W and linear weights of hidden features
        too, which a step is meant not to know (M7, M8).
    fm_scale
        What the machine's number is multiplied by.  None: learned, for each output, from zero.
        PAPER: 1, which only suits small embeddings: those that a GraphSAGE hands on have length one
        and start out alike, so 39 fields start with a logit of 741 instead of 0.

    Examples
    --------
    >>> model = DeepFM(10, n_outputs=1, hidden=(8,)).eval()
    >>> model.logits(Bipartite.from_fixed(torch.tensor([[3, 7]]))[0], torch.zeros(2, 11)).shape
    torch.Size([1, 1])
    """

    name = "deepfm"

    def __init__(
        self,
        width: int,
        n_outputs: int = 1,
        hidden: Sequence[int] = (400, 400),
        *,
        fm: Literal["pairs", "paper", "cross"] = "pairs",
        fm_scale: float | None = None,
        **options: Any,
    ) -> None:
        check_choice("fm", fm, ("pairs", "paper", "cross"))
        super().__init__(width, n_outputs, hidden, reads_own=fm == "cross", **options)
        self.fm, self.fm_scale = fm, fm_scale
        # WHY: on a synthetic stream FATE reaches an AUC of .974 with it and .931 with a plain 1.
        self.fm_weight = nn.Parameter(torch.zeros(n_outputs)) if fm_scale is None else None

    def lift(self, W_hat: Tensor, W: Tensor | None) -> Tensor:
        """[w_hat, what FM subtracts, linear weights] of each feature; "cross" adds w."""
        H = self.n_embedding
        w_hat, linear = W_hat[..., :H], W_hat[..., H:]
        if self.fm == "paper":
            return W_hat
        if self.fm == "pairs":
            return torch.cat([w_hat, w_hat.square().sum(-1, keepdim=True), linear], -1)
        if W is None:
            raise InputError("fm='cross' pairs W_hat with W: give the features' own W too.")
        w = W[..., :H].expand_as(w_hat)
        linear = W[..., H:].expand(*w_hat.shape[:-1], -1) if self.n_own else linear
        return torch.cat([w_hat, (w * w_hat).sum(-1, keepdim=True), w, linear], -1)

    def sums(self, X: Bipartite, W_hat: Tensor, W: Tensor | None = None) -> Tensor:
        """As every backbone's; a feature meets itself with the square of its edge's value."""
        z = super().sums(X, W_hat, W)
        if X.value is None or self.fm == "paper":
            return z
        own = self.lift(W_hat, W)[..., self.n_embedding, None]
        return self._with_squares(z, features_to_rows(X.with_squared_values(), own))

    def pooled(self, cells: Tensor, values: Tensor) -> Tensor:
        """As every backbone's; a feature meets itself with the square of its value."""
        z = super().pooled(cells, values)
        if self.fm == "paper":
            return z
        own = self.lift(cells, None)[..., self.n_embedding]  # (N, d)
        return self._with_squares(z, (own * values.square()).sum(1, keepdim=True))

    def _with_squares(self, z: Tensor, squares: Tensor) -> Tensor:
        """The sums with another column of what the machine subtracts."""
        H = self.n_embedding
        return torch.cat([z[..., :H], squares, z[..., H + 1 :]], -1)

    def beside(self, z: Tensor) -> list[Tensor]:
        """The summed linear weights, and the machine's number."""
        scale = self.fm_weight if self.fm_scale is None else self.fm_scale
        return [*super().beside(z), self._pairs(z) * cast("Tensor | float", scale)]

    def about(self) -> dict[str, Any]:
        """As every backbone's."""
        return {**super().about(), "fm": self.fm, "fm_scale": self.fm_scale}

    def _pairs(self, z: Tensor) -> Tensor:
        H = self.n_embedding
        total = z[..., :H]
        if self.fm == "paper":
            return total.square().sum(-1, keepdim=True)
        other = total if self.fm == "pairs" else z[..., H + 1 : 2 * H + 1]
        return ((total * other).sum(-1, keepdim=True) - z[..., H : H + 1]) / 2


class DCN(DeepBackbone):
    """The second deep and cross network: explicit products of inputs beside a network.

    Parameters
    ----------
    width, n_outputs
        As every backbone's.
    hidden, batch_norm, dropout
        Of the network, as `MLP`'s.
    n_cross
        L, the cross layers; L of them reach products of L + 1 inputs.
    pool, n_fields
        What is crossed: "field_linear": the embeddings of the fields, side by side, as the model
        was published; "sum": their sum.

    Shapes
    ------
    input (..., F H), or (..., H) with "sum"; output (..., n_outputs)

    Examples
    --------
    >>> import torch
    >>> DCN(width=8, hidden=(16,), pool="field_linear", n_fields=3)(torch.zeros(5, 24)).shape
    torch.Size([5, 1])
    """

    name = "dcn"
    choices = ("pool",)

    def __init__(
        self,
        width: int,
        n_outputs: int = 1,
        hidden: Sequence[int] = (400, 400),
        *,
        n_cross: int = 2,
        pool: Pool = "sum",
        n_fields: int | None = None,
        batch_norm: bool = True,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(width, n_outputs, n_fields=pooled_fields(pool, n_fields))
        size = width * (self.n_fields or 1)
        self.cross = nn.ModuleList(nn.Linear(size, size) for _ in range(n_cross))
        # WHY: a linear layer over [crosses, hidden layer] is the sum of one over each; the one over
        # the hidden layer is the network's last.
        self.out = nn.Linear(size, n_outputs, bias=False)
        self.deep = MLP(size, n_outputs, hidden, batch_norm=batch_norm, dropout=dropout)

    def beside(self, z: Tensor) -> list[Tensor]:
        """The products of the embeddings of a row, summed or side by side."""
        x = z
        for layer in self.cross:
            x = z * layer(x) + x
        return [self.out(x)]

    def about(self) -> dict[str, Any]:
        """As every backbone's."""
        kept = {"width": self.width, "n_fields": self.n_fields, "n_cross": len(self.cross)}
        pool = "sum" if self.n_fields is None else "field_linear"
        return {**self.deep.about(), "name": self.name, "pool": pool, **kept}


# ---- by name -------------------------------------------------------------------------------

BACKBONES: LazyDict[type[Backbone]] = LazyDict(
    {
        "mlp": "openfate.models.backbone:MLP",
        "deepfm": "openfate.models.interactions:DeepFM",
        "widedeep": "openfate.models.interactions:WideDeep",
        "dcn": "openfate.models.interactions:DCN",
    }
)


def make_backbone(name: str, width: int, n_outputs: int, **options: Any) -> Backbone:
    """The backbone of a name, one of `BACKBONES`.

    Parameters
    ----------
    options
        As its class takes them; what `Backbone.about` returns makes one like it.

    Examples
    --------
    >>> make_backbone("deepfm", 8, 1, linear="extrapolated").about()["linear"]
    'extrapolated'
    """
    check_choice("backbone", name, BACKBONES)
    return BACKBONES[name](width, n_outputs, **options)


@torch.no_grad()
def with_fields(backbone: Backbone, n_fields: int) -> Backbone:
    """The same function with room for more fields, whose weights start at zero.

    A backbone that sums all fields together has room for any number: it is returned as it is.

    Examples
    --------
    >>> concatenating = MLP(4, 1, pool="field_linear", n_fields=2)
    >>> with_fields(concatenating, 5).n_fields
    5
    """
    if backbone.n_fields is None or n_fields <= backbone.n_fields:
        return backbone
    like = next(backbone.parameters())
    wider = make_backbone(**{**backbone.about(), "n_fields": n_fields}).to(like)
    old = backbone.state_dict()
    for key, tensor in wider.state_dict().items():
        # Fields stand side by side, the added ones last: what was there is the first corner.
        tensor.zero_()[tuple(slice(size) for size in old[key].shape)] = old[key]
    return wider.train(backbone.training)
