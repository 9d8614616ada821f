"""Policies: words for all fields or for some, and what is no policy."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.table import Policies

NEW = ("extrapolate", "ignore", "warn", "error")
names = st.text(min_size=1, max_size=3) | st.just("*")


def policy(words):
    return st.sampled_from(words) | st.dictionaries(names, st.sampled_from(words), max_size=3)


@given(policy(NEW), policy(NEW), policy(NEW[1:]))
def test_policies_survive_json(new_columns, new_values, missing_columns):
    policies = Policies(new_columns, new_values, missing_columns)
    assert Policies.from_dict(json.loads(json.dumps(policies.to_dict()))) == policies


@given(policy(NEW), names)
def test_a_field_takes_its_own_word_then_the_star_then_the_default(given, field):
    expected = given
    if isinstance(given, dict):
        expected = given.get(field, given.get("*", "extrapolate"))
    assert Policies(new_values=given).of("new_values", field) == expected


def test_the_defaults_use_what_is_new_and_go_on_without_what_is_missing():
    assert Policies().to_dict() == {
        "new_columns": "extrapolate",
        "new_values": "extrapolate",
        "missing_columns": "ignore",
    }
    assert Policies(missing_columns={"age": "error"}).of("missing_columns", "job") == "ignore"


def test_a_mapping_that_is_changed_later_changes_nothing():
    given = {"age": "error"}
    policies = Policies(new_values=given)
    given["age"] = "ignore"
    assert policies.of("new_values", "age") == "error"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Policies(new_columns="use"),
            'new_columns must be "extrapolate", "ignore", "warn" or "error", '
            "or a mapping from fields to those words, not 'use'.",
        ),
        (
            lambda: Policies(missing_columns="extrapolate"),
            'missing_columns must be "ignore", "warn" or "error", '
            "or a mapping from fields to those words, not 'extrapolate'.",
        ),
        (
            lambda: Policies(new_values={"job": "use"}),
            'new_values[\'job\'] must be "extrapolate", "ignore", "warn" or "error", not \'use\'.',
        ),
        (
            lambda: Policies(new_values=["warn"]),
            'new_values must be "extrapolate", "ignore", "warn" or "error", '
            "or a mapping from fields to those words, not ['warn'].",
        ),
        (
            lambda: Policies(new_values={3: "warn"}),
            "new_values: the key 3 is not a field's name.",
        ),
        (
            lambda: Policies.from_dict({"new_rows": "warn"}),
            "policies are a mapping with new_columns, new_values, missing_columns, "
            "not {'new_rows': 'warn'}.",
        ),
        (
            lambda: Policies.from_dict("warn"),
            "policies are a mapping with new_columns, new_values, missing_columns, not 'warn'.",
        ),
    ],
)
def test_what_is_no_policy_is_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == message
