"""Late labels through the service, on real flights: as the experiment's stream has them."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest

from openfate.estimators import task_scores
from openfate_lab.data import DAY, load
from openfate_lab.experiments.streaming import Stream
from serving.test_app import serving


@pytest.mark.slow
@pytest.mark.parametrize("method", ["late_labels", "late_labels_alone"])
def test_a_month_of_flights_with_labels_a_day_late(tmp_path, monkeypatch, method):
    """The experiment's own model and stream, once by its estimator and once over HTTP.

    `late_labels` has the training rows at hand, `late_labels_alone` has not.
    """
    if "OPENFATE_DATA" not in os.environ:
        pytest.skip("no data: set OPENFATE_DATA")
    flights = load("flights")
    n = int(np.searchsorted(flights.time, flights.time[0] + 31 * DAY))
    month = replace(
        flights, X=flights.X.select_rows(np.arange(n)), y=flights.y[:n], time=flights.time[:n]
    )
    stream = Stream(month, "logistic", DAY, 3)
    wanted = stream.run(method)
    # WHY: the lab's pipeline of a class of its own has no safe file format; it stays in memory
    kept = []
    monkeypatch.setattr(
        "openfate.bank.bank.dump",
        lambda model: ("skops", b"%d" % (kept.append(model) or len(kept))),
    )
    monkeypatch.setattr(
        "openfate.bank.bundle.revive", lambda _, content, *__, **___: kept[int(content) - 1]
    )
    stream.model.save(tmp_path / "bundle")
    first = slice(0, stream.n_train)
    known = month.to_frame(hidden=stream.new)[first], month.y[first]
    train = None if method == "late_labels_alone" else lambda _: known
    found, n_labelled = [], stream.n_train
    with serving(tmp_path / "bundle", tmp_path) as make:
        call = make(train=train)
        for start in range(stream.n_train, n, stream.chunk):
            due = stream._due(start)
            if due > n_labelled:
                told = {"ids": list(range(n_labelled, due))}
                told["labels"] = month.y[n_labelled:due].tolist()
                call("POST", "/labels", told)
                n_labelled = due
            rows = stream.rows[start : start + stream.chunk].rows(named=True)
            while call.live.position < call.live.log.head():
                time.sleep(0.01)  # settled: an answer may come before corrections are solved
            _, told = call("POST", "/predict", {"rows": rows})
            found += [one["probabilities"] for one in told["predictions"]]
            ids = list(range(start, start + len(rows)))
            assert call("POST", "/observe", {"rows": rows, "ids": ids})[0] == 200
        assert call.live.untrained is None
        assert (call.live.trainings > 20) == (method == "late_labels")
    late = stream.start - stream.n_train
    y = month.y[stream.start :]
    ours, theirs, drop = (
        task_scores(np.array(P)[late:], y, "binary")["auc"]
        for P in (found, wanted, stream.run("drop"))
    )
    off = np.abs(np.array(found) - wanted).max()
    print(f"{method}: AUC {ours:.5f}, the stream's {theirs:.5f} ({off:.1g} apart), drop {drop:.5f}")
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert abs(ours - theirs) < 5e-4
    assert ours > drop + 0.01
