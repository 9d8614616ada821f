"""The bound against its formula in exact arithmetic, and against figures worked out by hand."""

import math
from decimal import Decimal, getcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate_lab.experiments.theory import READINGS, generalization_report

getcontext().prec = 60


def plain(d, k, T, lr, reading, beta=1.0, beta_prime=0.25, lam=1.0, delta=0.05):
    """The formula as it is written, in 60 digits: gamma and the bound."""
    M = Decimal(math.comb(d, k))
    c = Decimal(beta_prime) * d * (Decimal(lr) if reading == "with_step_size" else 1)
    gamma = 2 * Decimal(beta) / M * ((1 + c) ** T - 1)
    bracket = 4 * gamma / M if reading == "as_printed" else 4 * M * gamma
    s = (Decimal(math.log(1 / delta)) / (2 * M)).sqrt()
    return gamma, 2 * gamma + (bracket + Decimal(lam)) * s


@pytest.mark.parametrize(
    ("case", "printed", "with_lr"),
    [
        ({"d": 24, "k": 19, "T": 1000, "lr": 0.01}, 841, 21),  # robot
        ({"d": 60, "k": 48, "T": 1000, "lr": 0.01}, 1192, 49),  # gene
        ({"d": 39, "k": 24, "T": 23000, "lr": 1e-4}, 23712, -0.4),  # criteo
    ],
)
def test_figures_worked_out_by_hand(case, printed, with_lr):
    readings = generalization_report(**case)["readings"]
    assert round(readings["as_printed"]["log10_gamma"]) == printed
    assert readings["with_step_size"]["log10_gamma"] == pytest.approx(with_lr, abs=0.5)
    assert all(readings[reading]["vacuous"] for reading in READINGS[:2])


def test_the_largest_number_of_steps_of_robot_and_criteo():
    robot = generalization_report(24, 19, 1000, 0.01)["readings"]["with_step_size"]
    criteo = generalization_report(39, 24, 23000, 1e-4)["readings"]["with_step_size"]
    assert (robot["largest_T"], criteo["largest_T"]) == (52, 9945)
    assert criteo["log10_gamma"] == pytest.approx(-0.4, abs=0.05)
    assert criteo["log10_second_term"] == pytest.approx(5.5, abs=0.05)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.data(), st.integers(1, 60), st.floats(1e-4, 1.0))
def test_the_log_form_is_the_formula(d, data, T, lr):
    k = data.draw(st.integers(1, d))
    report = generalization_report(d, k, T, lr)
    for reading in READINGS:
        gamma, bound = plain(d, k, T, lr, reading)
        found = report["readings"][reading]
        assert found["log10_gamma"] == pytest.approx(float(gamma.log10()), abs=1e-6)
        assert found["log10_bound"] == pytest.approx(float(bound.log10()), abs=1e-6)
        assert found["vacuous"] == (bound >= 1)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(("d", "k"), [(24, 12), (24, 19), (10, 5), (4, 4)])
def test_the_largest_T_is_the_last_that_is_not_vacuous(d, k, reading):
    found = generalization_report(d, k, 1, 0.01)["readings"][reading]["largest_T"]
    assert plain(d, k, found + 1, 0.01, reading)[1] >= 1
    assert found == 0 or plain(d, k, found, 0.01, reading)[1] < 1


def test_the_bound_does_not_point_to_the_best_k():
    """M is largest at k = d / 2; the paper's own best is k = 17 of Avazu's 22."""
    bounds = {
        k: generalization_report(22, k, 100, 1e-4)["readings"]["with_step_size"]["log10_bound"]
        for k in range(1, 23)
    }
    assert min(bounds, key=bounds.get) == 11


def test_the_convex_bound_at_an_effective_number_of_sub_matrices():
    alternative = generalization_report(24, 12, 100, 0.01)["convex_sgd"]
    assert alternative["n_effective"] == 2
    assert alternative["log10_gamma"] == pytest.approx(math.log10(2 * 0.01 * 24 * 100 / 2))
    assert alternative["step_size_small_enough"] and alternative["vacuous"]
    assert not generalization_report(24, 12, 1, 1e-3)["convex_sgd"]["vacuous"]
    assert not generalization_report(24, 12, 1, 0.5)["convex_sgd"]["step_size_small_enough"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 25}, "k and d are 25 and 24: the first is a part of the second."),
        ({"T": 0}, "T=0: choose an integer from 1 to 10^12."),
        ({"lr": 0.0}, "lr=0.0: choose a number from 1e-12 to 1e12."),
    ],
)
def test_senseless_arguments_are_refused(changes, message):
    with pytest.raises(InputError) as caught:
        generalization_report(**({"d": 24, "k": 19, "T": 10, "lr": 0.01} | changes))
    assert str(caught.value) == message
