"""Network: what it is made of, taken apart and put together."""

from concurrent.futures import ThreadPoolExecutor

from threadpoolctl import threadpool_info, threadpool_limits

from openfate.bank import Network
from openfate.models import FATE, MLP, GraphSAGE, RunningFATE, StackedMLP
from openfate.table import MultiHot


def test_members_are_told_from_those_of_a_network_trained_again():
    members = [RunningFATE(FATE(3, MLP(4, 1), GraphSAGE(4), centred=True)) for _ in range(2)]
    network = Network(members, "binary")
    weights, state, settings = network.weights(), network.state(), network.settings()
    beside = weights | {f"retrained.{name}": array for name, array in weights.items()}
    again = Network.from_arrays(beside, state, settings)
    assert len(again.members) == 2 and all(member.centred for member in again.members)
    del settings["centred"]  # a bundle from before it
    assert not Network.from_arrays(weights, state, settings).members[0].centred


def n_threads():
    """That numpy's products may start."""
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_whichever_thread_predicts_its_products_start_no_threads(monkeypatch):
    network = Network([RunningFATE(FATE(3, MLP(4, 1))) for _ in range(2)], "binary")
    X, seen, logits = MultiHot.from_rows([[0, 1], [2]], 3), [], StackedMLP.logits

    def watched(*arguments):
        seen.append(n_threads())
        return logits(*arguments)

    monkeypatch.setattr(StackedMLP, "logits", watched)
    with threadpool_limits(2, "blas"):
        pass  # whoever held the limits has let go of them
    # WHY both at once: a thread that has ended holds nothing any more
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for pool in (one, other, one):
            pool.submit(network.predict, X).result()
    assert seen == [{1}] * 3
