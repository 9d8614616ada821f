"""Network: what it is made of, taken apart and put together."""

from openfate.bank import Network
from openfate.models import FATE, MLP, GraphSAGE, RunningFATE


def test_members_are_told_from_those_of_a_network_trained_again():
    members = [RunningFATE(FATE(3, MLP(4, 1), GraphSAGE(4), centred=True)) for _ in range(2)]
    network = Network(members, "binary")
    weights, state, settings = network.weights(), network.state(), network.settings()
    beside = weights | {f"retrained.{name}": array for name, array in weights.items()}
    again = Network.from_arrays(beside, state, settings)
    assert len(again.members) == 2 and all(member.centred for member in again.members)
    del settings["centred"]  # a bundle from before it
    assert not Network.from_arrays(weights, state, settings).members[0].centred
