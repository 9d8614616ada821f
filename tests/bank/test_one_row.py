"""One row as a dict is predicted, and refused, as the same row in a frame."""

from __future__ import annotations

import datetime
import functools
import warnings

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from openfate import FATEClassifier, Field, Schema
from openfate.bank import FeatureBank, Network, Wrapped
from openfate.errors import InputError
from openfate.models import FATE, MLP, ContextMap, DeepFM, GraphSAGE, RunningFATE
from openfate.openworld import LiveEvidence, Mixture, Pooling
from openfate.table import Encoder, Policies, read_table

FIELDS = [
    Field("line", "numeric", numeric="linear", n_knots=5),
    Field("bucket", "numeric"),
    Field("value", "numeric", numeric="value"),
    Field("log", "numeric", numeric="log"),
    Field("job", "categorical"),
    Field("name", "categorical", hashed=True),
    Field("tags", "multivalued"),
    Field("day", "datetime"),
]
GRAPHS = ("auto", "state", "batch")


def frame(n=120, seed=0):
    rng = np.random.default_rng(seed)
    day = [datetime.date(2024, 1 + int(m), 3) for m in rng.integers(0, 12, n)]
    numbers = rng.normal(size=(3, n)).round(2)
    return pl.DataFrame(
        {
            "line": numbers[0],
            "bucket": numbers[1],
            "value": pl.Series([None, *numbers[2][1:].tolist()]),
            "log": rng.integers(-3, 90, n),
            "job": [["cook", "nurse", "2", "true"][k] for k in rng.integers(0, 4, n)],
            "name": [["Ann", "Bo"][k] for k in rng.integers(0, 2, n)],
            "tags": [["a", "b"][: k + 1] for k in rng.integers(0, 2, n)],
            "day": day,
        }
    )


ROWS = frame()
LATER = frame(60, 1).with_columns(
    job=pl.Series(["judge", "cook", None] * 20),
    city=pl.Series(["Rome", "Oslo"] * 30),
    pay=pl.Series(np.linspace(0, 9, 60)),
)
Y = np.arange(60) % 2
TASKS = {"binary": 1, "multiclass": 3, "multilabel": 2, "regression": 1}


def labels(task):
    several = np.stack([Y, 1 - Y], 1)
    return {"multilabel": several, "regression": Y[:, None] / 1.0}.get(task, Y)


@functools.cache
def make(model="mlp", task="binary", *, embeddings=0.0, trusts=True, labelled=False, sweeps=1):
    """A bank that has observed new values and columns, around untrained networks."""
    torch.manual_seed(0)
    encoder = Encoder(Schema(FIELDS), hash_key=b"key").fit(ROWS)
    n, n_outputs = encoder.n_features, TASKS[task]
    if model == "wrapped":
        known = ROWS.select("line", "bucket")
        inner = LogisticRegression().fit(known, np.arange(120) % 2)
        network = Wrapped(inner, ["line", "bucket"], n, task, ["line", "bucket"])
    else:
        network = Network([RunningFATE(fate(model, n, n_outputs)) for _ in range(2)], task)
    n_outputs = 2 if task == "binary" else n_outputs
    state, batch = (Pooling(0.7, 3.0, True, 0.8, k) for k in (1, sweeps))
    evidence = LiveEvidence(n_outputs, task, state, batch)
    mixture = Mixture(n_outputs, task, trusts_evidence=trusts)
    classes = () if task == "regression" else tuple(range(n_outputs))
    bank = FeatureBank(
        encoder,
        network,
        classes,
        embeddings=embeddings,
        evidence=evidence,
        mixture=mixture,
        exclude=["target"],
        meta={"numeric": "linear"},
    )
    bank.observe(ROWS)
    bank.observe(LATER[:30])
    if labelled:
        again = network if model == "wrapped" else Network(network.members, task)
        bank.observe(LATER[30:], labels(task)[30:], retrain=lambda n_rows, encoder: again)
        assert bank.retrained is not None and bank.mixture.corrections is not None
    return bank


def fate(model, n, n_outputs):
    if model == "deepfm":
        return FATE(n, DeepFM(4, n_outputs, hidden=(4,)), GraphSAGE(4))
    if model == "context":
        plain = FATE(n, MLP(4, n_outputs, batch_norm=True))
        plain.extrapolator = ContextMap(4)
        plain.extrapolator.M.normal_()
        return plain
    options = {"extrapolator": GraphSAGE(4), "centred": True} if model == "sage" else {}
    return FATE(n, MLP(4, n_outputs, activate_sum=model == "mlp"), **options)


BANKS = [
    {},
    {"trusts": False},
    {"task": "multiclass", "sweeps": 2},
    {"task": "multilabel", "labelled": True},
    {"task": "regression", "labelled": True, "trusts": False},
    {"labelled": True, "trusts": False},
    {"model": "sage", "embeddings": 1.0},
    {"model": "sage", "embeddings": 0.6, "task": "regression", "labelled": True},
    {"model": "context", "embeddings": 0.5, "task": "multiclass", "labelled": True},
    {"model": "deepfm", "embeddings": 1.0},
    {"model": "wrapped"},
    {"model": "wrapped", "labelled": True, "trusts": False},
]
numbers = st.one_of(
    st.floats(-3, 3),
    st.sampled_from([0.0, 1e300, np.inf, -np.inf, 3, True, np.float32(0.3), np.int64(2), 2**70]),
)
texts = st.sampled_from(["cook", "nurse", "judge", "never", "", "é", "\ud800", 2, 2.0, True, 0.1])
missing = st.sampled_from([None, float("nan")])
odd = st.sampled_from(["2.5", "x", ["a"], (1, 2), datetime.date(2024, 1, 3), b"b", {}, 1 + 2j])
dates = st.sampled_from(
    ["2024-03-05T07:30", datetime.date(2024, 2, 3), datetime.datetime(2024, 1, 1)]
)
lists = st.lists(st.sampled_from(["a", "b", "new", None]), max_size=3)
CELLS = {
    "line": st.one_of(numbers, missing, odd),
    "bucket": st.one_of(numbers, missing),
    "value": st.one_of(numbers, missing),
    "log": st.one_of(numbers, missing),
    "job": st.one_of(texts, missing, odd),
    "name": st.one_of(texts, missing),
    "tags": st.one_of(lists, missing),
    "day": st.one_of(dates, missing),
    "city": st.one_of(texts, missing, odd),
    "pay": st.one_of(numbers, missing),
    "planet": st.one_of(texts, numbers, missing, odd),
    "target": st.one_of(texts, missing, odd),
    "": texts,
}
# Mostly what takes the quick way: one odd cell sends the row to the slow one.
SIMPLE = {
    name: st.one_of(some, missing)
    for name, some in [
        *((name, st.floats(-3, 3)) for name in ("line", "bucket", "value", "log", "pay")),
        *(
            (name, st.sampled_from(["cook", "judge", "Ann", "never", "é", 2]))
            for name in ("job", "name")
        ),
        *((name, st.sampled_from(["Rome", "never", 3, True])) for name in ("city", "planet")),
    ]
}
rows = st.one_of(
    st.fixed_dictionaries({}, optional=SIMPLE), st.fixed_dictionaries({}, optional=CELLS)
)
words = st.sampled_from(["extrapolate", "ignore", "warn", "error"])
policies = st.one_of(
    st.just(Policies()),
    st.builds(Policies, words, words, st.sampled_from(["ignore", "warn", "error"])),
    st.builds(Policies, new_values=st.fixed_dictionaries({"job": words, "*": words})),
)


def outcome(call):
    """What it gives, warns of or refuses."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = call()
        except Exception as error:
            return type(error), str(error), None
    return None, sorted(str(warning.message) for warning in caught), found


@pytest.mark.parametrize("options", BANKS, ids=str)
@settings(max_examples=40, deadline=None)
@given(
    cells=rows, graph=st.sampled_from(GRAPHS), use=st.sampled_from(["use", "drop"]), told=policies
)
def test_a_dict_is_predicted_and_refused_as_its_frame(options, cells, graph, use, told):
    bank = make(**options)
    given = {"graph": graph, "new_features": use, "policies": told}
    quick = outcome(lambda: bank.predict(cells, **given))
    slow = outcome(lambda: bank.predict(read_table(cells), **given))
    assert quick[:2] == slow[:2]
    if slow[2] is not None:
        np.testing.assert_allclose(quick[2], slow[2], rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("options", BANKS, ids=str)
def test_plain_cells_take_no_frame(options, monkeypatch):
    bank = make(**options)
    if options.get("model") == "wrapped":
        return
    cells = {"line": 0.5, "bucket": 1, "value": None, "job": "judge", "name": "Ann", "city": "Rome"}
    rows = [cells, cells | {"job": "never", "planet": "Mars"}, {}]
    slow = [bank.predict(read_table(row)) for row in rows]
    monkeypatch.setattr(FeatureBank, "run", None)
    monkeypatch.setattr(Encoder, "encode", None)
    for row, expected in zip(rows, slow, strict=True):
        np.testing.assert_allclose(bank.predict(row), expected, rtol=1e-9)


def test_a_row_changes_nothing_and_a_frame_of_it_is_the_same():
    bank = make()
    before = bank.encoder, {name: array.copy() for name, array in bank.state().items()}
    row = {"line": 0.5, "job": "nobody", "planet": "Mars"}
    expected = bank.predict(pl.DataFrame([row]))
    np.testing.assert_allclose(bank.predict(row), expected, rtol=1e-9)
    assert bank.encoder is before[0]
    assert all(np.array_equal(array, before[1][name]) for name, array in bank.state().items())


def test_estimators_take_a_row():
    rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
    clf = FATEClassifier(epochs=2, random_state=0).fit(rows, rows["job"])
    cells = {"job": "cook", "city": "Rome"}
    expected = clf.predict_proba(pl.DataFrame([cells]))
    np.testing.assert_allclose(clf.predict_proba(cells), expected, rtol=1e-9)
    assert clf.predict(cells).tolist() == clf.predict(pl.DataFrame([cells])).tolist()
    array = FATEClassifier(epochs=1).fit(np.arange(40.0).reshape(20, 2), [0, 1] * 10)
    with pytest.raises(InputError, match="fitted with an array"):
        array.predict_proba({"x0": 1.0})
