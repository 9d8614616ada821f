import numpy as np
import pytest
import torch
from reference import assert_near

from openfate.graph import Bipartite, Edges
from openfate_lab.bench.cases import ClickCase, UciCase


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
@pytest.mark.parametrize("backbone", ["mlp", "deepfm", "dcn"])
@pytest.mark.parametrize("masking", ["k_shot", "n_fold"])
def test_the_twin_computes_the_same_logits_as_ours(backbone, masking):
    """With the same weights and no edge dropped: a fair peer does the same work."""
    twins = pytest.importorskip(
        "openfate_lab.bench.pyg_twin", reason="the peer needs the extra `peers`"
    )
    case = ClickCase(8, 3, 40, n_kept=2, hidden=(4, 4), backbone=backbone)
    ids, _ = next(case.batches())
    field_of = torch.from_numpy(case.field_of())
    twin = twins.CtrTwin(field_of, hidden=(4, 4), drop_edge=0.0, backbone=backbone)
    ours = case.model().eval()
    ours.W.data[:, :10] = twin.W.data
    net = ours.backbone if backbone == "mlp" else ours.backbone.deep
    for layer, place in zip(net.layers, (0, 4, 8), strict=True):
        layer.load_state_dict(twin.net[place].state_dict())
    if backbone == "deepfm":
        for parameter in twin.beside.parameters():
            torch.nn.init.normal_(parameter)
        ours.W.data[:, 10] = twin.beside.linear.data
        ours.backbone.fm_weight.data.copy_(twin.beside.scale.data)
    if backbone == "dcn":
        ours.backbone.load_state_dict(twin.beside.state_dict(), strict=False)
    for layer, conv in enumerate(twin.gnn):
        ours.extrapolator.neighbour[layer].load_state_dict(conv.lin_l.state_dict())
        ours.extrapolator.root[layer].load_state_dict(conv.lin_r.state_dict())
    twin.net.eval()
    kept = torch.tensor([1.0, 0.0, 1.0])
    if masking == "n_fold":
        kept = (torch.arange(40) % 3 > 0).float()
    X, touched = Bipartite.from_fixed(torch.from_numpy(ids))
    own = kept.bool()[touched.long() if masking == "n_fold" else X.field_of]
    logits = ours(X, own, Edges.of(X), ours.W[touched.long()])[:, 0]
    assert_near(logits, twin._logits(torch.from_numpy(ids).long(), kept), 1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_the_twin_predicts_later_rows_as_ours_does():
    twins = pytest.importorskip(
        "openfate_lab.bench.pyg_twin", reason="the peer needs the extra `peers`"
    )
    case = UciCase(30, 12, 3.0, 2)
    (X, y), later = case.table(), case.later_rows()
    entries = [torch.from_numpy(part.astype(np.int64)) for part in (X.row_of, X.ids)]
    twin = twins.UciTwin(*entries, (30, 12), torch.from_numpy(y), 2)
    ours = case.model().eval()
    ours.W.data.copy_(twin.W.data)
    for layer, place in zip(ours.backbone.layers, (0, 2, 4), strict=True):
        layer.load_state_dict(twin.net[place].state_dict())
    for P, conv in zip(ours.extrapolator.P, twin.gnn, strict=True):
        P.data.copy_(conv.lin.weight.data.T)
    graph = Bipartite.from_multihot(later)
    entries = [torch.from_numpy(part.astype(np.int64)) for part in (later.row_of, later.ids)]
    theirs = twin.predict(*entries, (later.n_rows, later.n_features))
    assert_near(ours.predict(graph, ours.extrapolate(graph)), theirs, 1e-5)
