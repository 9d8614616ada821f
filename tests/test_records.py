"""A record has the shape that its reader relies on, or is refused with the key that is wrong."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import DataFileError
from openfate.records import Between, fault, read_record

RECORD = {
    "seed": int,
    "kind": ("kshot", "nfold"),
    "note": (str, None),
    "tenths": [float] * 2,
    "lrs": [float],
    "results": {re.compile("[a-z_]+"): {"score": Between(0, 1), "seconds": Between(0)}},
}


def record(**changes):
    results = {"fate": {"score": 0.5, "seconds": 1}}
    plain = {"seed": 0, "kind": "kshot", "tenths": [0.5, 1], "lrs": [], "results": results}
    return {**plain, **changes}


def test_a_record_of_its_shape_has_no_fault():
    assert fault(record(), RECORD) is None
    assert fault(record(note="x", more=[1], lrs=[1, 2.5]), RECORD) is None
    assert fault(record(note=None), RECORD) is None


FAULTS = [
    ({"seed": True}, "seed is True, not an integer"),
    ({"seed": 1.0}, "seed is 1.0, not an integer"),
    ({"seed": None}, "seed is null, not an integer"),
    ({"kind": "other"}, "kind is 'other', not 'kshot' or 'nfold'"),
    ({"note": 3}, "note is 3, not text"),
    ({"tenths": [0.5]}, "tenths has 1 entries, not 2"),
    ({"tenths": {}}, "tenths is a mapping, not a list"),
    ({"lrs": [1, "x"]}, "lrs[1] is 'x', not a number"),
    ({"lrs": [math.nan]}, "lrs[0] is nan, not a number"),
    ({"lrs": [10**400]}, "lrs[0] is 1000000000000000000000000000000000000..., not a number"),
    ({"results": []}, "results is a list, not a mapping"),
    ({"results": {"fate": 3}}, "results.fate is 3, not a mapping"),
    ({"results": {"fate": {"score": 0.5}}}, "results.fate.seconds is missing"),
    ({"results": {"FATE": {}}}, "results has 'FATE', which is none of its names"),
    (
        {"results": {"fate": {"score": 7, "seconds": 1}}},
        "results.fate.score is 7, not a number from 0 to 1",
    ),
    (
        {"results": {"fate": {"score": 1, "seconds": -1}}},
        "results.fate.seconds is -1, not a number from 0 up",
    ),
]


@pytest.mark.parametrize(("changes", "said"), FAULTS)
def test_what_is_wrong_is_named_by_its_key(changes, said):
    assert fault(record(**changes), RECORD) == said


@pytest.mark.parametrize(
    "name", ["x\ny\x1b[31m", "\ud800", "k" * 100_000], ids=["control", "surrogate", "long"]
)
def test_a_fault_is_one_short_line_whatever_the_key(name):
    told = fault({"results": {name: "a"}}, {"results": {str: int}})
    assert len(told) < 100 and told.isprintable()
    told.encode()


def test_a_function_gives_the_shape_of_the_content():
    def shape(content):
        return {"parts": [str], "scores": dict.fromkeys(content["parts"], float)}

    assert fault({"parts": ["T1"], "scores": {"T1": 1}}, shape) is None
    assert fault({"parts": ["T1"], "scores": {}}, shape) == "scores.T1 is missing"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(content=ANYTHING, shape=st.sampled_from([RECORD, [float], (int, None), {str: [str]}]))
def test_whatever_the_content_it_is_judged(content, shape):
    found = fault(content, shape)
    assert found is None or " " in found


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), ("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("[]", "the whole")],
)
def test_a_file_is_named_with_its_fault_and_the_remedy(tmp_path, text, said):
    path = tmp_path / "trial.json"
    path.write_text(text)
    with pytest.raises(DataFileError) as caught:
        read_record(path, RECORD, "delete it")
    assert str(caught.value).startswith(f"{path}: {said}")
    assert str(caught.value).endswith("; delete it.")


def test_bytes_that_are_no_text_and_folders_are_named(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.json").mkdir()
    for name, said in (("a.json", "is not JSON"), ("b.json", "cannot be read")):
        with pytest.raises(DataFileError, match=said):
            read_record(tmp_path / name, RECORD, "delete it")


def test_a_good_file_is_read(tmp_path):
    (tmp_path / "trial.json").write_text(json.dumps(record()))
    assert read_record(tmp_path / "trial.json", RECORD, "delete it") == record()
