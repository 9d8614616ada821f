"""What differs from the training rows is reported, warned of or refused, as the policies say."""

from __future__ import annotations

import json
import math
import warnings

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError, OpenWorldWarning
from openfate.table import (
    Encoder,
    Field,
    Policies,
    Schema,
    SchemaReport,
    compare,
    enforce,
    read_table,
)
from openfate.table.changes import Allowed, ColumnChange

NEW = ("extrapolate", "ignore", "warn", "error")
ROWS = {"job": ["cook", "pilot", None], "age": [0.0, 4.5, 10.0], "city": ["Rome", "Oslo", "Rome"]}
LATER = {
    "age": [5.5, None, 0.0, 5.1],
    "job": ["judge", None, "cook", "nurse"],
    "shift": ["day", "day", None, "night"],
}


@pytest.fixture
def encoder():
    rows = pl.DataFrame(ROWS)
    return Encoder(Schema.from_frame(rows)).fit(rows)


# ---- the report --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_the_report_tells_known_new_and_missing_columns_apart(encoder, make):
    report = compare(encoder, make(LATER), Policies(new_columns="ignore", missing_columns="warn"))
    assert report.n_rows == 4
    assert (report.known, report.new, report.missing) == (("job", "age"), ("shift",), ("city",))
    job, age, city, shift = report.columns
    new = ("'judge'", "'nurse'")
    why = "has 2 new values ('judge', 'nurse'); extrapolated from their rows."
    shares = 2 / 3, 0.25
    assert job == ColumnChange("job", "known", "categorical", 2, *shares, new, "extrapolate", why)
    new, why = ("5 to 6", "missing"), why.replace("'judge', 'nurse'", "5 to 6, missing")
    assert age == ColumnChange("age", "known", "numeric", 2, *shares, new, "extrapolate", why)
    why = "not a column of this frame; it gives no feature, with a warning."
    assert city == ColumnChange("city", "missing", "categorical", 0, 0.0, 1.0, (), "warn", why)
    new, why = ("'day'", "'night'", "missing"), "was not there in training; ignored."
    assert shift == ColumnChange("shift", "new", "categorical", 3, 1.0, 0.25, new, "ignore", why)


def test_the_report_is_a_table_of_what_differs(encoder):
    assert str(compare(encoder, pl.DataFrame(LATER), Policies())).splitlines() == [
        "4 rows; 2 columns known, 1 new, 1 missing",
        "column  status   kind         new values  unseen  missing  action       examples",
        "job     known    categorical           2     67%      25%  extrapolate  'judge', 'nurse'",
        "age     known    numeric               2     67%      25%  extrapolate  5 to 6, missing",
        "city    missing  categorical           0      0%     100%  ignore",
        "shift   new      categorical           3    100%      25%  extrapolate  "
        "'day', 'night', missing",
    ]


def test_a_report_of_known_rows_is_one_line(encoder):
    report = compare(encoder, pl.DataFrame(ROWS), Policies(new_values="error"))
    assert str(report) == "3 rows; 3 columns known (3 with nothing new), 0 new, 0 missing"
    assert {column.action for column in report.columns} == {"use"}
    assert report.columns[0].why == "every value is known."


def test_the_report_is_plain_json(encoder):
    report = compare(encoder, pl.DataFrame(LATER), Policies())
    data = json.loads(report.to_json())
    assert data == report.to_dict()
    again = [ColumnChange(**{**c, "examples": tuple(c["examples"])}) for c in data["columns"]]
    assert SchemaReport(tuple(again), data["n_rows"]) == report


def test_html_in_names_and_values_is_text(encoder):
    later = pl.DataFrame({"<b>": ["<script>alert(1)</script>"]})
    page = compare(encoder, later, Policies())._repr_html_()
    assert "<td>&lt;b&gt;</td>" in page and "<script>" not in page
    assert page.startswith("<p>1 row; 0 columns known, 1 new, 3 missing</p><table>")


def test_names_that_cannot_be_printed_and_long_values_stay_on_one_line(encoder):
    later = pl.DataFrame({"a\nb": ["x" * 100 + "\n"]})
    lines = str(compare(encoder, later, Policies(new_columns="error"))).splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("'a\\nb'") and len(lines[-1]) < 140


def test_a_new_column_is_what_it_is_declared_to_be(encoder):
    later = pl.DataFrame({"floor": [1, 2]})
    declared = [Field("floor", "numeric", numeric="value")]
    column = compare(encoder, later, Policies(), declared).columns[-1]
    assert (column.kind, column.n_values, column.examples) == ("numeric", 1, ("a number",))


def test_a_new_column_without_a_value_stays_new(encoder):
    column = compare(encoder, pl.DataFrame({"floor": [None]}), Policies()).columns[-1]
    assert column.why == "has no value yet, and stays new until one comes."


@pytest.mark.parametrize(
    ("later", "name", "why"),
    [
        (
            {"age": ["old"]},
            "age",
            "numeric field 'age' holds 'old'; give numbers, or declare it categorical.",
        ),
        (
            {"size": [math.inf]},
            "size",
            "numeric field 'size' holds inf, which leaves no edges for its buckets; "
            "make it finite or missing.",
        ),
    ],
)
def test_cells_that_cannot_be_used_are_reported_and_not_refused(encoder, later, name, why):
    report = compare(encoder, pl.DataFrame(later), Policies())
    (column,) = [column for column in report.columns if column.name == name]
    assert (column.action, column.why) == ("error", why)


def test_hashed_values_are_shown_as_hashes():
    rows = pl.DataFrame({"name": ["ann"]})
    encoder = Encoder(Schema([Field("name", "categorical", hashed=True)])).fit(rows)
    report = compare(encoder, pl.DataFrame({"name": ["bob"]}), Policies())
    assert "bob" not in report.to_json()


def test_a_report_of_no_rows_is_a_report(encoder):
    report = compare(encoder, pl.DataFrame(ROWS).clear(), Policies())
    assert report.n_rows == 0 and report.known == ("job", "age", "city")


# ---- enforcement ------------------------------------------------------------------------------


def test_an_error_names_everything_that_is_refused(encoder):
    policies = Policies("error", {"job": "error", "age": "ignore"}, "error")
    before = encoder.to_parts()
    with pytest.raises(InputError) as error:
        enforce(encoder, pl.DataFrame(LATER), policies)
    assert str(error.value) == (
        "the policies refuse this frame: column 'shift' is new (new_columns=error); "
        "column 'city' is missing (missing_columns=error); "
        "field 'job' has 2 new values ('judge', 'nurse') (new_values=error); "
        "mend the frame, or choose another policy."
    )
    assert encoder.to_parts()[0] == before[0] and encoder.to_parts()[1].equals(before[1])


def test_one_warning_names_everything_and_growth_goes_on(encoder):
    with pytest.warns(OpenWorldWarning) as caught:
        growth = enforce(encoder, pl.DataFrame(LATER), Policies("warn", "warn", "warn"))
    assert [str(one.message) for one in caught] == [
        "this frame differs from the training rows: column 'shift' is new (new_columns=warn); "
        "column 'city' is missing (missing_columns=warn); "
        "field 'job' has 2 new values ('judge', 'nurse') (new_values=warn); "
        "field 'age' has 2 new values (5 to 6, missing) (new_values=warn)."
    ]
    assert growth == Allowed(("shift",), None)


@pytest.mark.parametrize("word", ["warn", "error"])
def test_rows_like_those_of_training_pass_every_policy(encoder, word):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        growth = enforce(encoder, pl.DataFrame(ROWS), Policies(word, word, word))
    assert growth.columns == ()


def test_more_new_values_than_examples_are_counted(encoder):
    later = pl.DataFrame(ROWS).with_columns(city=pl.Series(["a", "b", "c"]))
    later = pl.concat([later, later.with_columns(city=pl.lit("d"))])
    with pytest.raises(InputError, match=r"has 4 new values \(e\.g\. 'a', 'b', 'c'\)"):
        enforce(encoder, later, Policies(new_values="error"))


def test_a_missing_cell_is_a_new_value_only_where_none_was_missing_before(encoder):
    policies = Policies(new_values="error")
    enforce(encoder, pl.DataFrame({"job": [None]}), policies)
    with pytest.raises(InputError, match=r"field 'city' has 1 new value \(missing\)"):
        enforce(encoder, pl.DataFrame({"city": [None, "Rome"]}), policies)
    rows = pl.DataFrame(ROWS)
    without = Encoder(Schema.from_frame(rows), missing="none").fit(rows)
    enforce(without, pl.DataFrame({"city": [None, "Rome"]}), policies)


def test_the_word_missing_is_not_a_missing_cell(encoder):
    column = compare(encoder, pl.DataFrame({"city": ["missing"]}), Policies()).columns[2]
    assert column.examples == ("'missing'",)


@pytest.mark.parametrize(
    ("policies", "columns", "values"),
    [
        (Policies(), ("shift",), None),
        (Policies("ignore", "ignore"), (), frozenset()),
        (Policies({"shift": "ignore"}, {"job": "ignore"}), (), frozenset({"age", "city"})),
        (Policies({"*": "ignore", "shift": "extrapolate"}, {"*": "extrapolate"}), ("shift",), None),
    ],
)
def test_growth_is_what_the_policies_allow(encoder, policies, columns, values):
    table = read_table(pl.DataFrame(LATER))
    growth = enforce(encoder, table, policies)
    assert growth == Allowed(columns, values)
    grown = encoder.grow_copy(table, columns=growth.columns, values=growth.values)
    assert set(grown.fields) - set(encoder.fields) == set(columns)


def test_a_new_column_without_a_value_may_be_added_only_where_it_is_declared(encoder):
    later = pl.DataFrame({"floor": [None]})
    assert enforce(encoder, later, Policies()).columns == ()
    declared = Schema([Field("floor", "numeric")])
    assert enforce(encoder, later, Policies(), declared).columns == ("floor",)


def test_nothing_is_looked_up_where_no_policy_asks_for_it(encoder):
    table = read_table(pl.DataFrame(LATER))
    enforce(encoder, table, Policies(new_columns="ignore", missing_columns="ignore"))
    assert not table.memo
    enforce(encoder, table, Policies(new_values={"job": "ignore", "age": "ignore"}))
    assert not table.memo


cells = st.lists(st.sampled_from(["cook", "pilot", "judge", None]), min_size=1, max_size=4)


@given(cells, st.sampled_from(NEW))
def test_report_and_enforcement_agree(jobs, word):
    rows = pl.DataFrame({"job": ["cook", "pilot"]})
    encoder = Encoder(Schema.from_frame(rows)).fit(rows)
    later, policies = (
        pl.DataFrame({"job": pl.Series(jobs, dtype=pl.String)}),
        Policies("ignore", word),
    )
    column = compare(encoder, later, policies).columns[0]
    is_new = not set(jobs) <= {"cook", "pilot"}
    assert column.action == (word if is_new else "use")
    assert column.n_values == len(set(jobs) - {"cook", "pilot"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if is_new and word == "error":
            with pytest.raises(InputError):
                enforce(encoder, later, policies)
        else:
            enforce(encoder, later, policies)
    assert len(caught) == (is_new and word == "warn")


# ---- policies alone --------------------------------------------------------------------------


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
            "new_columns='use' is unknown: choose 'extrapolate', 'ignore', 'warn' or 'error'.",
        ),
        (
            lambda: Policies(missing_columns="extrapolate"),
            "missing_columns='extrapolate' is unknown: choose 'ignore', 'warn' or 'error'.",
        ),
        (
            lambda: Policies(new_values={"job": "use"}),
            "new_values['job']='use' is unknown: choose 'extrapolate', 'ignore', 'warn' or "
            "'error'.",
        ),
        (
            lambda: Policies(new_values=["warn"]),
            "new_values=['warn'] is unknown: choose 'extrapolate', 'ignore', 'warn' or 'error'.",
        ),
        (
            lambda: Policies(new_values={3: "warn"}),
            "new_values: the key 3 is not a field's name; give text.",
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
