"""What a fused engine is made of: parts that have kernels, and parts that are left to plain torch.

The sort of a mini-batch, DropEdge, the sums over edges, the gather of W and Adam on it have kernels
for every model and mask.  Two parts have them for some models only: the network, and the
extrapolator between its sums.  Each falls back on its own, to autograd over the same sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

from torch import Tensor

from openfate.models import FATE, MLP, Backbone, DeepBackbone, GraphSAGE
from openfate.training.settings import Settings

MAX_WIDTH, MAX_HIDDEN = 28, 512  # what a program's registers hold


class Parts(NamedTuple):
    """Why a part is plain torch's; None where it has kernels.

    Examples
    --------
    >>> model = FATE(4, MLP(8, 1, batch_norm=True), GraphSAGE(8, n_layers=3), recompose="all")
    >>> Parts.of(model)
    Parts(network=None, extrapolator='the extrapolator is not a GraphSAGE of 2 layers')
    """

    network: str | None
    extrapolator: str | None

    @classmethod
    def of(cls, model: FATE, settings: Settings | None = None) -> Parts:
        """Of a model that predicts, or trains with settings."""
        network, extrapolator = _of_network(model.backbone), _of_extrapolator(model, settings)
        return cls(next(network, None), next(extrapolator, None))

    def told(self) -> str:
        """One line for the log."""
        each = (f"{name} in {_where(why)}" for name, why in self._asdict().items())
        return f"sort, sums over edges and Adam on W in kernels; {'; '.join(each)}"

    def is_chain(self, model: FATE) -> bool:
        """Whether a step is kernels from end to end, so that autograd has no part in it."""
        is_plain = type(model.backbone) is MLP and model.recompose == "all"
        return is_plain and self.network is None and self.extrapolator is None


def deep_network(net: Backbone) -> MLP | None:
    """The feed-forward network whose logits are a backbone's, but for terms beside them."""
    if type(net) is MLP:
        return net
    is_sum = isinstance(net, DeepBackbone) and type(net).forward is DeepBackbone.forward
    return cast("DeepBackbone", net).deep if is_sum else None


def may_be_recorded(net: Backbone) -> bool:
    """Whether what a backbone leaves to plain torch is known not to wait for the device.

    A recording of a step may not.
    """
    return type(net).__module__.startswith("openfate.models.")


def _where(why: str | None) -> str:
    return "kernels" if why is None else f"plain torch ({why})"


def _of_network(net: Backbone) -> Iterator[str]:
    deep = deep_network(net)
    if deep is None or len(deep.layers) != 3 or len(deep.norms) != 2 or deep.n_fields:
        yield (
            f"the backbone is {type(net).__name__}, without an MLP of two hidden layers with "
            "batch_norm=True and pool='sum'"
        )
        return
    if deep.sum_bias is not None:
        yield "the backbone has activate_sum=True"
    hidden = max(len(cast("Tensor", norm.weight)) for norm in deep.norms)
    if deep.n_inputs > MAX_WIDTH or hidden > MAX_HIDDEN:
        yield f"widths {deep.n_inputs} and {hidden} are not at most {MAX_WIDTH} and {MAX_HIDDEN}"


def _of_extrapolator(model: FATE, settings: Settings | None) -> Iterator[str]:
    g, width = model.extrapolator, model.W.size(1)
    if g is None:
        yield "there is none"
        return
    if type(g) is not GraphSAGE or g.n_layers != 2:
        yield "the extrapolator is not a GraphSAGE of 2 layers"
        return
    if g.log_prior is not None:
        yield "the GraphSAGE has prior_rows"
    if width > MAX_WIDTH:
        yield f"W has {width} columns, not at most {MAX_WIDTH}"
    if settings is not None and settings.drop_edge_directed:
        yield "drop_edge_directed drops edges anew on the way back"
    if settings is not None and settings.columns_only:
        yield "reading='columns' takes edges out"
