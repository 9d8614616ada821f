"""Files of rows: whole-file types, batches that do not matter, and errors that name the line."""

from __future__ import annotations

import gzip
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import DataFileError, InputError
from openfate.table import Field, RowFile, dtypes, plain_types

CELLS = [
    *(
        None,
        "",
        "0",
        "-0",
        "01",
        "12",
        "-7",
        "1.5",
        "-0.25",
        ".5",
        "5.",
        "+3",
        "1e5",
        "1e999",
        "nan",
    ),
    *(
        "inf",
        "true",
        "False",
        "2013-01-01",
        "2013-13-01",
        "2013-01-01T10:00:00Z",
        "2013-01-01 10:00",
    ),
    *("9223372036854775807", "9223372036854775808", "123456789012345678", "1\n", " 1", "cook", "é"),
]
TABLE = "age,job,when\n31,cook,2013-01-01T10:00:00Z\n,pilot,2013-01-02T11:30:00Z\n27,cook,\n"


@pytest.fixture
def write(tmp_path):
    """Write a file of rows, packed where its name says so."""

    def write(text, name="rows.csv"):
        content = text if isinstance(text, bytes) else text.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


def column(path, **options):
    """The only column of a file."""
    (values,) = RowFile(path, **options).read().to_dict(as_series=False).values()
    return values


# ---- formats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.csv.gz", "my.rows.TSV.GZ"])
def test_text_files_are_read_by_their_suffix(write, name):
    text = TABLE.replace(",", "\t") if "tsv" in name.lower() else TABLE
    rows = RowFile(
        write(gzip.compress(text.encode()) if name.endswith("GZ") else text, name)
    ).read()
    assert rows.columns == ["age", "job", "when"]
    assert rows["age"].to_list() == [31, None, 27]
    assert rows["when"].dtype == pl.Datetime("us", "UTC")


def test_a_parquet_file_keeps_its_types(tmp_path):
    table = pl.DataFrame({"age": [1, 2], "tags": [["a"], []]}, schema_overrides={"age": pl.Int8})
    table.write_parquet(tmp_path / "rows.parquet")
    assert RowFile(tmp_path / "rows.parquet").read().equals(table)


def test_a_folder_of_parquet_is_one_table_in_the_order_of_names(tmp_path):
    for number in range(3):
        pl.DataFrame({"x": [number]}).write_parquet(tmp_path / f"part-{number}.parquet")
    assert RowFile(tmp_path).read()["x"].to_list() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\r\n1,x\r\n2,y\r\n", [(1, "x"), (2, "y")]),
        ("a,b\n1,x\n2,y", [(1, "x"), (2, "y")]),
        ("\ufeffa,b\n1,x\n", [(1, "x")]),
        ("a,b\n\n1,x\n\r\n2,y\n\n", [(1, "x"), (2, "y")]),
        ('a,b\n1,"x, y"\n2,"he said ""no"""\n', [(1, "x, y"), (2, 'he said "no"')]),
        ('a,b\n1,"two\nlines"\n2,""\n', [(1, "two\nlines"), (2, None)]),
        ('"a","b"\n"1",x\n', [(1, "x")]),
        ("a,b\n,\n1,x\n", [(None, None), (1, "x")]),
    ],
)
def test_text_is_read_as_spreadsheets_write_it(write, text, rows):
    assert RowFile(write(text)).read().rows() == rows


def test_with_one_column_a_blank_line_is_a_missing_cell(write):
    assert column(write("x\n1\n\n2\n")) == [1, None, 2]


def test_only_empty_cells_are_missing_unless_told(write):
    path = write("x\n1\nNA\n-\n\n")
    assert column(path) == ["1", "NA", "-", None]
    assert column(path, nulls=["NA", "-"]) == [1, None, None, None]


# ---- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        (["1", "-2", "0"], pl.Int64()),
        (["1", "2.5", "1e3", ".5", "nan", "-inf"], pl.Float64()),
        (["true", "False", "TRUE"], pl.Boolean()),
        (["01", "2"], pl.String()),
        (["1", "123456789012345678901"], pl.String()),
        (["1.5", "123456789012345678901"], pl.String()),
        (["1", "true"], pl.String()),
        (["2013-01-01", "2013-12-31"], pl.Date()),
        (["2013-01-01", "2013-13-01"], pl.String()),
        (["2013-01-01", "2013-01-01 10:00"], pl.Datetime("us")),
        (["2013-01-01T10:00:00.5", "2013-01-01 10:00"], pl.Datetime("us")),
        (["2013-01-01T10:00:00Z", "2013-01-01 10:00+02:00", "2013-01-01 10:00:00+0200"],
         pl.Datetime("us", "UTC")),
        (["2013-01-01T10:00:00Z", "2013-01-01T10:00:00"], pl.String()),
        (["", ""], pl.Null()),
        (["1", "x"], pl.String()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reverse", [False, True])
def test_a_column_has_the_least_type_that_holds_all_its_cells(write, cells, dtype, reverse):
    path = write("x,y\n" + "".join(f"{cell},0\n" for cell in cells[:: -1 if reverse else 1]))
    assert RowFile(path).types["x"] == dtype
    missing = RowFile(path).read()["x"].null_count()
    assert missing == cells.count("")


def test_times_are_instants(write):
    path = write(
        "x,y\n2013-01-01T10:00:00Z,0\n2013-01-01 12:00+02:00,0\n2013-01-01 12:00:00+0200,0"
    )
    assert RowFile(path).read()["x"].n_unique() == 1


def test_text_far_down_the_file_makes_every_batch_text(write):
    path = write("x,y\n" + "1,0\n" * 5000 + "late,0\n")
    assert {rows["x"].dtype for rows in RowFile(path).batches(size=100)} == {pl.String()}
    assert RowFile(path).read()["x"].to_list() == ["1"] * 5000 + ["late"]


@pytest.mark.parametrize(
    ("before", "now", "cells"),
    [
        ("x\n01\n", "x\n02\n10\n", ["02", "10"]),
        ("x\n517.0\n1.5\n", "x\n517.0\nlate\n", ["517", "late"]),
        ("x\n1\n", "x\n2.5\n", [2.5]),
        ("x\nTrue\n", "x\nFALSE\nmaybe\n", ["false", "maybe"]),
        ("x\n1\n", "x,new\n2,05\n", [2]),
    ],
)
def test_a_column_keeps_the_type_that_another_file_gave_it(write, before, now, cells):
    """A zip code 01 of training must not become 1 because the next file happens to hold numbers."""
    types = plain_types(RowFile(write(before)).types)
    assert RowFile(write(now, "now.csv"), types=types).read()["x"].to_list() == cells


# ---- batches -------------------------------------------------------------------------------------


@pytest.fixture(params=["csv", "csv.gz", "parquet"])
def hundred(request, tmp_path):
    table = pl.DataFrame({"n": range(100), "x": [i / 4 for i in range(100)], "w": ["a", "b"] * 50})
    path = tmp_path / f"rows.{request.param}"
    if request.param == "parquet":
        table.write_parquet(path, row_group_size=33)
    else:
        text = table.write_csv().encode()
        path.write_bytes(gzip.compress(text) if request.param.endswith("gz") else text)
    return path, table


@pytest.mark.parametrize("size", [1, 7, 50, 100, 1000])
def test_batches_are_the_table_cut_into_pieces(hundred, size):
    path, table = hundred
    pieces = list(RowFile(path).batches(size=size))
    assert [len(piece) for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
    assert pl.concat(pieces).equals(table)


def test_where_keeps_the_rows_numbers_in_the_file(hundred):
    path, _ = hundred
    found = list(RowFile(path).numbered(size=7, where="n >= 20 AND n < 23 AND w = 'a'"))
    assert [number for numbers, _ in found for number in numbers] == [21, 23]
    assert pl.concat([rows for _, rows in found])["n"].to_list() == [20, 22]


def test_columns_are_chosen_and_the_condition_may_use_others(hundred):
    path, _ = hundred
    rows = RowFile(path).read(where="x = 0.25", columns=["w", "n"])
    assert rows.rows() == [("b", 1)]


def test_where_nothing_fits_the_columns_are_still_there(hundred):
    path, _ = hundred
    assert RowFile(path).read(where="n > 1000").schema == RowFile(path).read().schema


def test_memory_is_bounded_by_the_batch_not_by_the_file(tmp_path):
    """A gz of 100 MB of text is read in a tenth of that, above what the imports take."""
    path = tmp_path / "rows.csv.gz"
    line = b"123456,some text that is the same,0.25,2013-01-01T10:00:00Z\n"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"a,b,c,d\n")
        for _ in range(170):
            file.write(line * 10_000)
    code = (
        "import resource, sys, polars\n"
        "from openfate.table import RowFile\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak()\n"
        "n = sum(len(rows) for rows in RowFile(sys.argv[1]).batches(10_000))\n"
        "print(n, peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    n_rows, megabytes = map(int, done.stdout.split())
    assert n_rows == 1_700_000
    assert megabytes < 200


# ---- surveys -------------------------------------------------------------------------------------


def test_a_survey_knows_kinds_and_bounds_of_the_whole_file(hundred):
    path, _ = hundred
    schema = RowFile(path).survey(["x", "w"])
    assert schema.fields == (
        Field("x", "numeric", bounds=(0.0, 24.75)),
        Field("w", "categorical"),
    )


def test_a_survey_looks_only_at_the_rows_asked_for(hundred):
    path, _ = hundred
    assert RowFile(path).survey(["x"], where="n < 5")["x"].bounds == (0.0, 1.0)


def test_a_survey_takes_what_is_known_better(write):
    path = write("n,m\n" + "".join(f"{i},{i}\n" for i in range(50)))
    known = [Field("n", "categorical"), Field("m", "numeric", bounds=(0, 99))]
    assert RowFile(path).survey(["n", "m"], overrides=known).fields == tuple(known)


def test_a_column_without_a_value_is_no_field_yet(write):
    assert RowFile(write("x,y\n,0\n,1\n")).survey(["x", "y"]).names == ("y",)


def test_infinite_and_missing_numbers_give_no_bounds(write):
    schema = RowFile(write("x,y\ninf,0\n1.5,0\n,0\n2.5,0\nnan,0\n")).survey(["x"])
    assert schema["x"].bounds == (1.5, 2.5)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.csv", "", "the file is empty; the first line must name the columns."),
        ("rows.csv", "\n\n", "the file is empty; the first line must name the columns."),
        ("rows.csv.gz", "", "the file is empty; the first line must name the columns."),
        ("rows.csv", "\na,b\n1,2\n",
         "it starts with a blank line; the first line must name the columns."),
        ("rows.csv", ",a\n0,1\n",
         "column 1 has no name; give it one in the first line."),
        ("rows.csv", "a,b\n", "the file has a first line but no rows; give one with rows."),
        ("rows.csv", "a,b", "the file has a first line but no rows; give one with rows."),
        ("rows.csv", "a,b,a\n1,2,3\n", "two columns are called 'a'; rename one in the first line."),
        ("rows.csv", "a;b\n1;2\n",
         "the first line has no ',' but ';'; write the file with ',' between its cells."),
        ("rows.txt", "a,b\n1,2\n",
         "unknown suffix; rows are read from .csv, .tsv (or .csv.gz, .tsv.gz), .parquet and "
         "folders of them."),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_named(write, name, text, message):
    path = write(text, name)
    with pytest.raises(DataFileError) as error:
        RowFile(path).read()
    assert str(error.value) == f"{path}: {message}"


def test_a_path_that_is_not_there_is_named(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere.csv")  # it matched itself, for ever
    with pytest.raises(DataFileError, match=r"link\.csv: there is no such file; check the path"):
        RowFile(tmp_path / "link.csv").read()
    with pytest.raises(DataFileError, match=r"nowhere\.csv: there is no such file; check the path"):
        RowFile(tmp_path / "nowhere.csv").read()


@pytest.mark.parametrize(
    "content",
    [b"no gzip at all", gzip.compress(b"a,b\n1,2\n" * 99)[:-20]],
    ids=["not packed", "cut off"],  # WHY: a packed text holds the time, so two processes differ
)
def test_a_broken_gzip_is_named(tmp_path, content):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=r"rows\.csv\.gz: not a whole gzip file \(.*fetch it"):
        RowFile(path).read()


def test_a_folder_without_rows_is_named(tmp_path):
    with pytest.raises(
        DataFileError, match=r"the folder holds no \.csv, \.tsv or \.parquet file; give"
    ):
        RowFile(tmp_path).read()


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(DataFileError, match=r"rows\.parquet: cannot be read as Parquet \("):
        RowFile(tmp_path / "rows.parquet").read()


def test_a_parquet_without_rows_is_named(tmp_path):
    pl.DataFrame({"x": []}).write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataFileError, match="has columns but no rows"):
        RowFile(tmp_path / "rows.parquet").read()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("ag = 31", "where ag = 31: there is no column 'ag'; did you mean 'age'? "
         "(columns: age, job, when)."),
        ("age =", "where age =: not an SQL expression (unable to parse 'age =' as Expr); "
         "write it like month = 1 AND origin = 'JFK'."),
        ("age", "where age: it gives Int64, not true or false; compare it with something, "
         "as in month = 1."),
        ("age > AVG(age)",
         "where age > AVG(age): AVG looks at other rows; an expression speaks of one row at a "
         "time."),
        ("row_number() over (order by age) < 3",
         "where row_number() over (order by age) < 3: row_number looks at other rows; an "
         "expression speaks of one row at a time."),
        ("age > approx_quantile(age, 0.5)",
         "where age > approx_quantile(age, 0.5): it looks at other rows; an expression speaks of "
         "one row at a time."),
        ("1 = 1", "where 1 = 1: it speaks of no column; name one (columns: age, job, when)."),
        ("columns('age')",
         "where columns('age'): it may give several columns; name the one that counts."),
        ("age.b > 1",
         "where age.b > 1: there is no field 'b' in that column; a name with a dot in it is "
         'written in quotes, as in "a.b" > 1.'),
    ],
)  # fmt: skip
def test_a_bad_condition_is_explained(write, where, message):
    with pytest.raises(InputError) as error:
        RowFile(write(TABLE)).read(where=where)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "where", ["CAST(job AS INT) = 1", "job > 5", "EXISTS (SELECT 1)", "age @@ 3 = '"]
)
def test_a_condition_that_cannot_be_computed_is_an_input_error(write, where):
    with pytest.raises(InputError, match=r"^where "):
        RowFile(write(TABLE)).read(where=where)


def test_words_in_quotes_are_no_functions(write):
    assert len(RowFile(write(TABLE)).read(where="job <> 'max (1)'")) == 3


def test_an_unknown_column_is_named(write):
    path = write(TABLE)
    with pytest.raises(InputError, match=r"has no column 'jobs'; did you mean 'job'\?"):
        RowFile(path).read(columns=["jobs"])


def test_a_batch_has_a_row_or_more(write):
    with pytest.raises(InputError, match="a batch of 0 rows"):
        list(RowFile(write(TABLE)).batches(size=0))


@given(st.lists(st.sampled_from(CELLS), min_size=1, max_size=4))
def test_few_cells_have_the_type_that_polars_sees_in_them(cells):
    column = pl.Series(cells, dtype=pl.String)
    few = dtypes.type_of(column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dtypes, "FEW_ROWS", 0)
        assert dtypes.type_of(column) == few
