"""Each bad input is one line with the remedy, and changes nothing."""

from __future__ import annotations

from resource import RLIMIT_FSIZE, setrlimit

import polars as pl
import pytest

from cli.tables import QUICK, digest, people, process


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--target", "ric"], ["--target ric", "no column 'ric'; did you mean 'rich'?"]),
        (["--target", "age > AVG(age)"], ["AVG looks at other rows"]),
        (["--target", "age >"], ["not an SQL expression"]),
        (["--target", "rich", "--exclude", "idd"],
         ["--exclude idd", "did you mean 'id'?", "--new-columns NAME=ignore"]),
        (["--target", "rich", "--where", "age > 500"], ["--where age > 500", "no row"]),
        (["--target", "rich", "--where", "age"], ["where age:", "true or false"]),
        (["--target", "rich", "--where", "rich IS NULL"], ["missing in every row"]),
        (["--target", "rich", "--where", "rich"], ["one class"]),
        (["--target", "age / 7.0"], ["numbers such as", "--task regression"]),
        (["--target", "job", "--task", "regression"], ["--target job", "no number"]),
        (["--target", "rich", "--task", "ranking"], ["--task ranking", "classification"]),
        (["--target", "rich,job"], ["--target job", "0 or 1"]),
        (["--target", "rich", "--kinds", "age"], ["--kinds age", "NAME=WORD"]),
        (["--target", "rich", "--kinds", "age=number"], ["'age'", "'number'", "numeric"]),
        (["--target", "rich", "--hidden", "8,x"], ["--hidden 8,x", "64,32"]),
        (["--target", "rich", "--numeric", "bins"], ["--numeric bins", "value, linear or log"]),
        (["--target", "rich", "--loss", "log"], ["--loss log", "squared_error"]),
        (["--target", "rich", "--new-columns", "use"], ["new_columns", "extrapolate", "'use'"]),
        (["--target", "rich", "--new-values", "warn,error"], ["--new-values warn,error"]),
        (["--target", "rich", "--class-weight", "yes=2"], ["--class-weight yes", "false, true"]),
        (["--target", "rich", "--class-weight", "true=much"], ["true=much", "not a number"]),
        (["--target", "rich", "--class-weight", "true=0,false=0"], ["every row weighs nothing"]),
        (["--target", "rich", "--tensorboard", __file__], ["is a file: name a folder"]),
        (["--target", "rich", "--n-folds", "1"], ["n_folds=1", "from 2 up"]),
        (["--target", "rich", "--strategy", "fate", "--dropout", "1.5"], ["dropout=1.5", "below"]),
        (["--target", "rich", "--strategy", "none", "--drop-edge", "-1"], ["drop_edge=-1", "0 up"]),
        (["--target", "rich", "--exclude", "id,job,age,zip"], ["leave no column to learn"]),
        (["--target", "rich", "--hashed", "jb"], ["--hashed jb", "did you mean 'job'?"]),
        (["--target", "rich", "--not-yet", "agee"], ["--not-yet agee", "did you mean 'age'?"]),
        (["--target", "rich,nope"], ["--target nope", "no column 'nope'"]),
        (["--target", "rich,rich"], ["--target rich,rich", "'rich' is in it twice"]),
        (["--target", "1=1"], ["--target 1=1", "no column"]),
        (["--target", "columns('.*')"], ["--target columns('.*')", "several columns"]),
    ],
)  # fmt: skip
def test_fit_refuses_bad_flags_in_one_line(tables, tmp_path, refused, flags, parts):
    line = refused("fit", tables / "train.csv", "--out", tmp_path / "m", "--epochs", 1, *flags)
    for part in parts:
        assert part in line
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.csv", b"", ["t.csv: the file is empty"]),
        ("t.csv", b"x,y\n", ["no rows"]),
        ("t.csv", b"x,y\n1,2\n1\n", ["t.csv, line 3: 1 cells"]),
        ("t.csv", b"x,y\n1,caf\xe9\n", ["t.csv, line 2: byte 0xe9 is not UTF-8"]),
        ("t.csv", b"x,x\n1,2\n", ["two columns are called 'x'"]),
        (
            "t.csv",
            b"x,y\r1,2\r",
            ["t.csv: its lines end in CR alone; write names"],
        ),
        ("t.csv", b"x" * 200_000 + b",y\n1,2\n", ["t.csv: its first line, field larger than"]),
        ("t.xlsx", b"PK", ["t.xlsx: unknown suffix", ".csv"]),
        ("t.csv.gz", b"x,y\n1,2\n", ["not a whole gzip file"]),
        ("t.parquet", b"x,y\n1,2\n", ["cannot be read as Parquet"]),
    ],
)
def test_every_command_refuses_a_bad_file_in_one_line(
    fitted, tmp_path, refused, name, content, parts
):
    (tmp_path / name).write_bytes(content)
    before = digest(fitted)
    for command in (
        ["fit", tmp_path / name, "--target", "y", "--out", tmp_path / "m"],
        ["predict", fitted, tmp_path / name, "--out", tmp_path / "p.csv"],
        ["observe", fitted, tmp_path / name],
        ["evaluate", fitted, tmp_path / name],
    ):
        line = refused(*command)
        for part in parts:
            assert part in line
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert digest(fitted) == before


def test_a_bundle_that_is_there_needs_overwrite(tables, bundle, openfate, refused):
    fit = ["fit", tables / "train.csv", "--target", "rich", *QUICK, "--exclude", "id"]
    fit += ["--seed", "1", "--out", bundle]
    before = digest(bundle)
    line = refused(*fit)
    assert line == f"openfate: {bundle} holds a bundle already: give --overwrite to replace it.\n"
    assert digest(bundle) == before
    openfate(*fit, "--overwrite")
    assert digest(bundle) != before


def test_out_is_checked_before_training(tables, tmp_path, refused):
    (tmp_path / "notes.txt").write_text("mine")
    fit = ["fit", tables / "train.csv", "--target", "rich", "--overwrite", "--out"]
    assert "a folder with other things in it" in refused(*fit, tmp_path)
    assert "notes.txt is a file" in refused(*fit, tmp_path / "notes.txt")
    assert "there is no folder" in refused(*fit, tmp_path / "no" / "model")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "a link to nothing" in refused(*fit, tmp_path / "link")


def test_what_a_crash_left_of_a_first_bundle_is_no_hindrance(tables, fitted, tmp_path, openfate):
    torn = tmp_path / "model"
    torn.mkdir()
    for file in fitted.iterdir():
        if file.name != "meta.json":  # written last
            (torn / file.name).write_bytes(file.read_bytes())  # each whole: renamed into place
    (torn / ".lock").touch()
    fit = ["fit", tables / "train.csv", "--target", "rich", *QUICK, "--exclude", "id", "--out"]
    openfate(*fit, torn)
    openfate(*fit, tmp_path / "fresh")
    files = [{file.name for file in (tmp_path / name).iterdir()} for name in ("model", "fresh")]
    assert files[0] - {".lock"} == files[1] - {".lock"}  # what name and hash prove ours is swept
    told = [openfate("inspect", tmp_path / name, "--json") for name in ("model", "fresh")]
    assert told[0]["fields"] == told[1]["fields"] != []


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--out", "p.txt"], ["--out p.txt", ".csv or a .parquet"]),
        (["--out", "/no/such/p.csv"], ["there is no folder /no/such"]),
        (["--out", "p.csv", "--graph", "all"], ["--graph all", "auto, state or batch"]),
        (["--out", "p.csv", "--exclude", "cty"], ["--exclude cty", "did you mean 'city'?"]),
        (["--out", "p.csv", "--keep", "cty"], ["--keep cty", "did you mean 'city'?"]),
        (["--out", "p.csv", "--where", "wage > 99"], ["--where wage > 99", "no row"]),
    ],
)
def test_predict_refuses_bad_flags_in_one_line(
    tables, fitted, tmp_path, refused, monkeypatch, flags, parts
):
    monkeypatch.chdir(tmp_path)
    line = refused("predict", fitted, tables / "later.csv", *flags)
    for part in parts:
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_rows_without_a_column_of_use_are_refused(fitted, tmp_path, refused):
    (tmp_path / "rows.csv").write_text("id,rich\n1,true\n")
    line = refused("predict", fitted, tmp_path / "rows.csv", "--out", tmp_path / "p.csv")
    assert "rows.csv: it has no column that the model may use; exclude fewer." in line


def test_predictions_may_not_be_written_into_the_bundle(tables, fitted, refused):
    before = digest(fitted)
    line = refused("predict", fitted, tables / "later.csv", "--out", fitted / "p.csv")
    assert f"p.csv: it is in the bundle, {fitted}; choose another path." in line
    assert digest(fitted) == before and not (fitted / "p.csv").exists()


def test_a_bundle_may_not_be_written_among_the_rows(tables, tmp_path, refused):
    (tmp_path / "parts").mkdir()
    pl.read_csv(tables / "train.csv").write_parquet(tmp_path / "parts" / "1.parquet")
    out = tmp_path / "parts" / "model"
    line = refused("fit", tmp_path / "parts", "--target", "rich", "--out", out)
    assert f"that would change the rows, {tmp_path / 'parts'}; choose another path." in line


def test_rows_without_any_known_column_are_predicted_with_a_warning(fitted, tmp_path):
    (tmp_path / "odd.csv").write_text("nobody,knows\n1,2\n")
    there = process("predict", fitted, tmp_path / "odd.csv", "--out", tmp_path / "p.csv")
    output, errors = there.communicate()
    assert there.returncode == 0 and "Predicted 1 row." in output
    assert f"warning: {tmp_path / 'odd.csv'}: it has none of the model's columns." in errors


def test_full_memory_is_one_line(tables, tmp_path, refused):
    words = ("fit", tables / "train.csv", "--target", "rich", "--out", tmp_path / "m")
    assert "memory is full" in refused(*words, "--width", 10**15)


def test_a_kept_column_may_not_hide_a_prediction(tables, fitted, tmp_path, refused):
    rows = pl.read_csv(tables / "later.csv", infer_schema=False).with_columns(row=pl.lit(1))
    rows.write_csv(tmp_path / "rows.csv")
    line = refused("predict", fitted, tmp_path / "rows.csv", "--out", tmp_path / "p.csv", "--keep",
                   "row")  # fmt: skip
    assert "--keep row" in line
    assert not (tmp_path / "p.csv").exists()


def test_a_kept_column_must_fit_into_the_file(tables, fitted, tmp_path, openfate, refused):
    rows = pl.read_csv(tables / "later.csv", schema_overrides={"zip": pl.String})
    rows.with_columns(tags=pl.concat_list("city")).write_parquet(tmp_path / "rows.parquet")
    predict = ["predict", fitted, tmp_path / "rows.parquet", "--keep", "tags", "--out"]
    line = refused(*predict, tmp_path / "p.csv")
    assert "--keep tags: a CSV cannot hold List(String)" in line
    assert f"--out {tmp_path / 'p.parquet'}" in line
    assert not (tmp_path / "p.csv").exists()
    openfate(*predict, tmp_path / "p.parquet")
    assert pl.read_parquet(tmp_path / "p.parquet")["tags"].dtype == pl.List(pl.String)


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tables, fitted, tmp_path, name):
    there = process("predict", fitted, tables / "later.csv", "--out", tmp_path / name,
                    preexec_fn=lambda: setrlimit(RLIMIT_FSIZE, (1024, 1024)))  # fmt: skip
    out, errors = there.communicate()
    assert (there.returncode, out) == (2, "")
    assert errors.startswith(f"openfate: {tmp_path / name}: cannot be written (")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_answer_redirected_to_a_full_disk_is_one_line(fitted, flags):
    with open("/dev/full", "w") as full:
        there = process("inspect", fitted, *flags, stdout=full)
        _, errors = there.communicate()
    assert there.returncode == 2
    assert errors == (
        "openfate: standard output: cannot be written (No space left on device); what the command "
        "made is there all the same.\n"
    )


def test_a_column_that_is_missing_is_warned_of_once(tables, with_evidence, tmp_path):
    rows = pl.read_csv(tables / "later.csv", infer_schema=False)
    rows.select("rich", "zip", "city").write_csv(tmp_path / "rows.csv")
    _, errors = process("evaluate", with_evidence, tmp_path / "rows.csv").communicate()
    assert errors.count("leans on columns that are missing") == 1


@pytest.mark.parametrize("command", ["predict", "observe", "evaluate", "inspect", "export"])
def test_a_path_that_is_no_bundle_is_named(tables, tmp_path, refused, command):
    rows = [tables / "later.csv"] if command in ("predict", "observe", "evaluate") else []
    out = {"predict": ["--out", tmp_path / "p.csv"], "export": ["--out", tmp_path / "m.onnx"]}
    line = refused(command, tmp_path / "none", *rows, *out.get(command, []))
    assert f"{tmp_path / 'none'} is not a bundle" in line
    assert list(tmp_path.iterdir()) == []


def test_inspect_refuses_fewer_than_no_neighbours(fitted, refused):
    assert "from 0 up" in refused("inspect", fitted, "--feature", "job=cook", "--nearest", -2)


@pytest.mark.parametrize(
    ("feature", "parts"),
    [
        ("job", ["FIELD=VALUE"]),
        ("jb=cook", ["'jb'", "did you mean 'job'?"]),
        ("job=astronaut", ["'astronaut'"]),
        ("age=old", ["'age' is numeric", "'old'"]),
    ],
)
def test_inspect_refuses_what_is_no_feature(fitted, refused, feature, parts):
    line = refused("inspect", fitted, "--feature", feature)
    for part in parts:
        assert part in line


def test_a_bundle_made_in_python_has_no_target_to_remember(tables, tmp_path, openfate, refused):
    from openfate import FATEClassifier

    rows = pl.read_csv(tables / "train.csv").drop_nulls()
    FATEClassifier(epochs=2).fit(rows.drop("rich", "id"), rows["rich"]).save(tmp_path / "m")
    assert "--target" in refused("evaluate", tmp_path / "m", tables / "later.csv")
    openfate("evaluate", tmp_path / "m", tables / "later.csv", "--target", "rich")
    later = [tmp_path / "m", tables / "later.csv", "--exclude", "rich,id", "--json"]
    result = openfate("predict", *later, "--out", tmp_path / "p.csv")
    assert result["new_columns"] == ["city", "wage"]
    result = openfate("evaluate", *later, "--target", "wage > 9")
    assert result["new_columns"] == ["city"]
    assert openfate("observe", *later)["new_columns"] == ["city", "wage"]
    assert "id" not in openfate("inspect", tmp_path / "m", "--json")["exclude"]  # not for ever


def test_names_of_a_file_are_no_words_to_the_terminal(tmp_path, openfate, refused):
    """Neither an escape sequence nor rich's markup, wherever a column or a value is told."""
    escape, target = "\x1b[2J[/b]", "[/i]:smile:"
    rows = people(60, 0).select(pl.col("job").alias(escape), pl.col("rich").alias(target))
    rows = rows.drop_nulls()
    rows.write_csv(tmp_path / "a.csv")
    later = rows.with_columns(pl.lit(at).alias(f"new {at}\x9b31m") for at in range(200))
    later.write_csv(tmp_path / "b.csv")
    bundle = tmp_path / "model"
    told = [
        openfate("fit", tmp_path / "a.csv", "--target", target, *QUICK, "--out", bundle),
        openfate("predict", bundle, tmp_path / "b.csv", "--out", tmp_path / "p.csv"),
        openfate("evaluate", bundle, tmp_path / "a.csv"),
        openfate("observe", bundle, tmp_path / "b.csv"),
        openfate("inspect", bundle),
        openfate("inspect", bundle, "--feature", f"{escape}=cook"),
        refused("predict", bundle, tmp_path / "b.csv", "--exclude", f"{escape}?", "--out",
                tmp_path / "q.csv"),
    ]  # fmt: skip
    assert not any(set("\x1b\x9b") & set(text) for text in told)
    assert all("and 180 more" in told[at] and "new 199" not in told[at] for at in (1, 3))
    assert target in told[2] and "\\x1b[2J[/b]" in told[4]
