import pytest

from openfate_lab.bench.floor import Floor, Peaks, clicks_floor


def test_the_floor_of_clicks_is_that_of_the_paper_notes():
    """98.6 GFLOP of the network for a step, there and back, at B = 1e5; 36 U H bytes of Adam."""
    floors = clicks_floor(100_000, 39, 200_000, (400, 400), n_steps=1)
    assert floors["network"].flops == pytest.approx(98.6e9, rel=0.01)
    assert floors["optimizer"].n_bytes == 36 * 200_000 * 10
    assert floors["network"].milliseconds(Peaks(1e12, 98.6e12)) == pytest.approx(1.0, rel=0.01)


def test_a_floor_is_the_longer_of_moving_and_multiplying():
    assert Floor(n_bytes=2e9, flops=1e9).milliseconds(Peaks(1e9, 1e9)) == 2000
    assert Floor(n_bytes=1e9, flops=3e9).milliseconds(Peaks(1e9, 1e9)) == 3000


def test_peaks_of_this_machine_are_positive():
    peaks = Peaks.measure(n_numbers=2**16)
    assert peaks.bytes_per_second > 0 and peaks.flops > 0
