"""Bundles from elsewhere: what they could do before, and what is left of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path

import joblib
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    TheilSenRegressor,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from openfate import FATEClassifier, FeatureBank, OpenWorldClassifier, OpenWorldRegressor, load
from openfate.bank.bundle import _digest
from openfate.bank.lightgbm_text import clean_lightgbm
from openfate.bank.parquet_footer import read_footer
from openfate.bank.sklearn_models import Unchecked, read_sklearn
from openfate.bank.trial import try_out
from openfate.errors import DataFileError, OpenFATEError
from openfate.openworld import Pooling

skops = pytest.importorskip("skops.io")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y2, Y3, NUMBERS = (X[:, 0] > 0).astype(int), RNG.integers(0, 3, 120), np.abs(X[:, 0]) + 0.1
POOLING = Pooling(strength=0.5)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    rows = pl.DataFrame({"a": X[:, 0], "b": RNG.choice(["x", "y", "z"], 120)})
    model = FATEClassifier(epochs=2, random_state=0).fit(rows, Y2)
    model.observe(rows.with_columns(c=pl.lit("new")), Y2)
    path = tmp_path_factory.mktemp("seed") / "model"
    model.save(path)
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


def write(bundle, folder, role="", content=b"", **meta) -> Path:
    """A bundle with one file changed and meta.json too, and fresh hashes."""
    told = json.loads(bundle["meta.json"]) | meta
    folder.mkdir()
    for name, old in bundle.items():
        if name == "meta.json":
            continue
        part = name.partition("-")[0]
        new = content if part == role else old
        sha256 = hashlib.sha256(new).hexdigest()
        fresh = f"{part}-{sha256[:16]}.{name.rpartition('.')[2]}"
        told["files"][part] |= {"name": fresh, "sha256": sha256, "bytes": len(new)}
        if part == role:
            told["files"][part].pop("rows", None)
        (folder / fresh).write_bytes(new)
    told["digest"] = ""
    try:
        told["digest"] = _digest(told)
    except UnicodeEncodeError:
        pass
    (folder / "meta.json").write_text(json.dumps(told))
    return folder


# ---- wrapped models ------------------------------------------------------------------------------


def both(model, y, frame=X):
    model.fit(frame, y)
    again = read_sklearn(skops.dumps(model))
    name = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    return getattr(model, name)(frame), getattr(again, name)(frame)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (LogisticRegression(), Y3),
        (SGDClassifier(loss="log_loss", random_state=np.random.RandomState(0)), Y2),
        (Ridge(), NUMBERS),
        (PoissonRegressor(), NUMBERS),
        (GaussianNB(), Y2),
        (MLPClassifier((4,), max_iter=3), Y2),
        (DecisionTreeClassifier(), Y3),
        (RandomForestClassifier(n_estimators=3), Y3),
        (ExtraTreesRegressor(n_estimators=3), NUMBERS),
        (GradientBoostingClassifier(n_estimators=3), Y3),
        (GradientBoostingClassifier(n_estimators=3, init="zero"), Y2),
        (GradientBoostingRegressor(n_estimators=3), NUMBERS),
        (HistGradientBoostingClassifier(max_iter=3), Y3),
        (HistGradientBoostingRegressor(max_iter=3), NUMBERS),
        (AdaBoostClassifier(n_estimators=3), Y2),
        (VotingClassifier([("a", GaussianNB()), ("b", LogisticRegression())], voting="soft"), Y2),
        (StackingClassifier([("a", GaussianNB())], LogisticRegression(), cv=2), Y2),
        (CalibratedClassifierCV(GaussianNB(), cv=2, method="isotonic"), Y2),
        (make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()), Y2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_is_read_without_skops_to_the_last_bit(model, y):
    before, after = both(model, y)
    assert np.array_equal(before, after)


def test_columns_of_text_are_read_to_the_last_bit():
    frame = pl.DataFrame({"a": X[:, 0], "t": RNG.choice(["u", "v", "w"], 120)}).to_pandas()
    for encoder in (OneHotEncoder(min_frequency=2), OrdinalEncoder()):
        columns = ColumnTransformer([("t", encoder, ["t"])], remainder="passthrough")
        before, after = both(make_pipeline(columns, LogisticRegression()), Y2, frame)
        assert np.array_equal(before, after)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("run-by-the-bundle",)


def test_a_pipeline_with_a_cache_in_a_stack_that_calls_fit_runs_nothing(tmp_path, monkeypatch):
    """What `openfate predict` ran once: joblib's pickles from a folder of the bundle."""
    monkeypatch.chdir(tmp_path)
    cached = Pipeline([("s", StandardScaler()), ("l", LogisticRegression())], memory="evil/cache")
    stack = StackingClassifier([("a", cached)], LogisticRegression(), cv=2).fit(X, Y2)
    for output in (tmp_path / "evil").rglob("output.pkl"):
        joblib.dump(Evil(), output)
    stack.stack_method_ = ["fit"]
    with pytest.raises(Unchecked, match=r"memory|would call"):
        read_sklearn(skops.dumps(stack))
    stack.estimators_[0].memory = stack.estimators[0][1].memory = None
    stack.named_estimators_ = {}
    with pytest.raises(Unchecked, match=r"would call \['fit'\]"):
        read_sklearn(skops.dumps(stack))
    assert not (tmp_path / "run-by-the-bundle").exists()


def parts_of(model) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(skops.dumps(model))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(parts) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return file.getvalue()


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeClassifier(max_depth=3, random_state=0),
        RandomForestClassifier(2, max_depth=3, random_state=0),
        GradientBoostingClassifier(n_estimators=2),
        HistGradientBoostingClassifier(max_iter=2),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("number", [-7, 0, 1, 10**6])
def test_a_tree_that_leads_astray_or_in_a_circle_is_refused(model, number):
    parts = parts_of(model.fit(X, Y3))
    n_tried = 0
    for name in [name for name in parts if name.endswith(".npy")]:
        nodes = np.load(io.BytesIO(parts[name]))
        for column in {"left_child", "left", "feature", "feature_idx"} & set(
            nodes.dtype.names or ()
        ):
            if number == 0 and column.startswith("feature"):
                continue  # there is one
            if number == 1 and "left" not in column:
                continue
            spoilt = nodes.copy()
            inner = np.flatnonzero(
                nodes["is_leaf"] == 0
                if "is_leaf" in nodes.dtype.names
                else nodes["left_child"] >= 0
            )[-1:]
            if not len(inner) or (number == 1 and inner[0] == 0):
                continue
            spoilt[column][inner] = np.array(number).astype(spoilt[column].dtype)
            file = io.BytesIO()
            np.save(file, spoilt)
            with pytest.raises(Unchecked, match="a tree"):
                read_sklearn(zipped(parts | {name: file.getvalue()}))
            n_tried += 1
    assert n_tried


def test_attributes_classes_and_nodes_that_are_not_on_the_lists_are_refused():
    model = LogisticRegression().fit(X, Y2)
    model.predict_proba = 1
    with pytest.raises(Unchecked, match="attribute 'predict_proba'"):
        read_sklearn(skops.dumps(model))
    with pytest.raises(Unchecked, match="KNeighborsClassifier"):
        read_sklearn(skops.dumps(KNeighborsClassifier().fit(X, Y2)))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", b" " * 10**6)
    with pytest.raises(Unchecked, match="compressed"):
        read_sklearn(file.getvalue())
    for content in (b"", b"PK", zipped({}), zipped({"schema.json": b"[" * 10**5})):
        with pytest.raises(Unchecked):
            read_sklearn(content)


def test_a_model_that_cannot_be_checked_needs_trust(tmp_path):
    frame = pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}).to_pandas()
    model = OpenWorldRegressor(TheilSenRegressor(), pooling=POOLING).fit(frame, NUMBERS)
    with pytest.warns(UserWarning, match="loaded with trusted=True alone"):
        model.save(tmp_path / "model")
    with pytest.raises(DataFileError, match=r"not one that can be checked.*give trusted=True"):
        load(tmp_path / "model")
    again = load(tmp_path / "model", trusted=True)
    assert np.array_equal(again.predict(frame), model.predict(frame))
    FeatureBank.load(tmp_path / "model", trusted=True)


def test_a_wrapped_model_of_other_classes_is_refused(tmp_path):
    frame = pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}).to_pandas()
    OpenWorldClassifier(GaussianNB(), pooling=POOLING).fit(frame, Y2).save(tmp_path / "model")
    files = {f.name: f.read_bytes() for f in (tmp_path / "model").iterdir() if f.name != ".lock"}
    other = skops.dumps(GaussianNB().fit(frame, Y3))
    with pytest.raises(DataFileError, match="classes"):
        load(write(files, tmp_path / "other", "estimator", other))


@pytest.mark.parametrize("objective", ["binary", "multiclass", "regression", "poisson"])
def test_the_checked_text_of_lightgbm_predicts_the_same_bits(objective):
    import lightgbm

    frame = pl.DataFrame({"a b": X[:, 0], "c": RNG.integers(0, 9, 120)}).to_pandas()
    frame["c"] = frame["c"].astype("category")
    classes = {"binary": 2, "multiclass": 3}.get(objective, 0)
    kind = LGBMClassifier if classes else LGBMRegressor
    y = {2: (frame["c"].astype(int) % 2).to_numpy(), 3: Y3, 0: NUMBERS}[classes]
    model = kind(n_estimators=5, verbose=-1, n_jobs=1, objective=objective, min_child_samples=2)
    text = model.fit(frame, y).booster_.model_to_string()
    clean = clean_lightgbm(text.encode(), classes)
    expected = lightgbm.Booster(model_str=text).predict(frame)
    assert np.array_equal(lightgbm.Booster(model_str=clean).predict(frame), expected)
    assert "parameters:\nend" in clean


@pytest.mark.parametrize(
    "change",
    [
        ("left_child", "99"),
        ("left_child", "0"),
        ("right_child", "-99"),
        ("split_feature", "4"),
        ("threshold", "nan"),
        ("leaf_value", "inf"),
        ("num_leaves", "2147483647"),
        ("num_cat", "1"),
        ("decision_type", "1"),
        ("num_class", "7"),
        ("max_feature_idx", "1"),
        ("objective", "multiclass num_class:900"),
        ("num_tree_per_iteration", "0"),
    ],
)
def test_a_text_of_lightgbm_that_lies_is_refused(change):
    model = LGBMClassifier(n_estimators=2, num_leaves=4, verbose=-1, n_jobs=1).fit(X, Y2)
    name, value = change
    lines = model.booster_.model_to_string().split("\n")
    at = next(n for n, line in enumerate(lines) if line.startswith(f"{name}="))
    tokens = lines[at].partition("=")[2].split(" ")
    lines[at] = f"{name}={' '.join([*tokens[:-1], value]) if len(tokens) > 1 else value}"
    if name == "objective":
        lines[at] = f"objective={value}"
    with pytest.raises(Unchecked):
        clean_lightgbm("\n".join(lines).encode(), 2)


def test_what_cannot_be_checked_is_tried_in_another_process():
    assert "CatBoostError" in (try_out("catboost", b"CBM1 and nothing more", 2) or "")


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["meta", "state", ".lock"])
@pytest.mark.parametrize("kind", ["pipe", "link", "device", "dangling", "folder"])
def test_what_is_no_regular_file_is_neither_waited_for_nor_followed(network, tmp_path, role, kind):
    path = write(network, tmp_path / "model")
    file = path / ".lock" if role == ".lock" else next(path.glob(f"{role}*"))
    file.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "link":
            (tmp_path / "secret").write_text("mine")
            file.symlink_to(tmp_path / "secret")
        case "device":
            file.symlink_to("/dev/zero")
        case "dangling":
            file.symlink_to(tmp_path / "created")
        case _:
            file.mkdir()
    if role == ".lock":
        bank = load(path).bank_  # a reader needs no lock
        with pytest.raises(DataFileError, match=r"\.lock: is no regular file"):
            bank.save(path, overwrite=True)
    else:
        with pytest.raises(DataFileError, match=r"is a link|no regular file|cannot be read"):
            load(path)
    assert not (tmp_path / "created").exists()


def test_a_file_that_is_longer_than_told_is_not_read(network, tmp_path):
    path = write(network, tmp_path / "model")
    with next(path.glob("state-*")).open("r+b") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    with pytest.raises(DataFileError, match="was changed"):
        load(path)
    told = json.loads((path / "meta.json").read_text())
    told["files"]["state"]["bytes"] = 1 << 60
    told["digest"] = _digest(told)
    (path / "meta.json").write_text(json.dumps(told))
    with pytest.raises(DataFileError, match="memory"):
        load(path)


def test_a_vocabulary_that_would_fill_the_memory_is_not_unpacked(network, tmp_path):
    n, file = 2_000_000, io.BytesIO()
    rows = pl.select(
        field=pl.repeat(0, n, dtype=pl.Int32),
        value=pl.repeat("a", n),
        bucket=pl.repeat(None, n, dtype=pl.Int32),
    )
    rows.write_parquet(file)
    assert len(file.getvalue()) < 20_000
    with pytest.raises(DataFileError, match="promises 2,000,000 rows"):
        load(write(network, tmp_path / "model", "vocabulary", file.getvalue()))
    files = json.loads(network["meta.json"])["files"]
    files["vocabulary"]["rows"] += 1
    with pytest.raises(DataFileError, match=r"the vocabulary has [0-9]+ rows, not"):
        load(write(network, tmp_path / "other", files=files))


def test_a_footer_tells_what_pyarrow_tells():
    for n in (0, 1, 300_000):
        file = io.BytesIO()
        pl.DataFrame({"field": range(n), "value": [str(i) for i in range(n)]}).write_parquet(file)
        told = pq.read_metadata(file)
        footer = read_footer(file.getvalue())
        groups = [told.row_group(at) for at in range(told.num_row_groups)]
        columns = [group.column(at) for group in groups for at in range(told.num_columns)]
        assert footer.n_rows == told.num_rows == n
        assert (
            footer.n_bytes
            <= sum(c.total_uncompressed_size for c in columns)
            <= (footer.n_bytes + 200 * max(1, len(columns)) + 100 * len(file.getvalue()) // 1000)
        )


# ---- arrays and meta -----------------------------------------------------------------------------


def spoil(name, change):
    def act(arrays):
        arrays[name] = change(arrays[name])

    return act


@pytest.mark.parametrize(
    ("role", "change", "match"),
    [
        ("weights", spoil("0.W", lambda a: a * np.float32(np.nan)), "0.W has numbers"),
        ("weights", spoil("0.W", lambda a: a + np.float32(np.inf)), "0.W has numbers"),
        ("weights", spoil("0.W", lambda a: np.zeros((), np.float32)), "fit together"),
        ("weights", spoil("0.W", lambda a: a.astype(np.int64)), "0.W has the type"),
        ("state", spoil("rows", lambda a: np.zeros(())), "rows has the shape"),
        ("state", spoil("rows", lambda a: -a - 1), "rows has numbers"),
        ("state", spoil("n_rows", lambda a: a[:0]), "n_rows has the shape"),
        ("state", lambda a: a.update({"0.messages": a["rows"][:, None] * np.nan}), "has numbers"),
        ("state", spoil("evidence.row_total", lambda a: a[:1]), "row_total has the shape"),
        ("state", spoil("evidence.boxes", lambda a: a[:-1]), "expected has the shape"),
        ("state", spoil("evidence.boxes", lambda a: a - 1), "boxes has means"),
        ("state", spoil("evidence.sample_votes", lambda a: a + 9), "no probability"),
        ("state", spoil("mixture.counts", lambda a: a * 0), "is due at 0"),
        ("state", spoil("mixture.y", lambda a: a + 7), "mixture.y have numbers"),
        ("state", spoil("mixture.weights", lambda a: a - 2), "weights has numbers"),
        ("state", lambda arrays: arrays.update(evil=np.zeros(1)), "'evil' is not known"),
    ],
)
def test_an_array_of_another_type_shape_or_size_is_refused(network, tmp_path, role, change, match):
    name = next(name for name in network if name.startswith(role))
    arrays = safetensors.numpy.load(network[name])
    change(arrays)
    content = safetensors.numpy.save(arrays)
    with pytest.raises(DataFileError, match=match):
        load(write(network, tmp_path / "model", role, content))


@pytest.mark.parametrize(
    "meta",
    [
        {"task": "regression"},
        {"task": "multilabel"},
        {"task": ["binary"]},
        {"classes": ["a", "b", "c"]},
        {"classes": ["a", "\ud800"]},
        {"exclude": ["\ud800"]},
        {"exclude": "all"},
        {"embeddings": float("nan")},
        {"decision": {}},
        {"mixture": {"trusts_evidence": True, "bounds": [1, 0]}},
        {"policies": {"new_columns": ["error"]}},
    ],
    ids=str,
)
def test_a_meta_of_other_values_is_refused(network, tmp_path, meta):
    with pytest.raises(OpenFATEError):
        load(write(network, tmp_path / "model", **meta))


def test_the_whole_bundle_is_fine(network, tmp_path):
    load(write(network, tmp_path / "model"))
