"""Prepared ids equal a plain Python twin's, whatever the format, the chunks or a kill."""

from __future__ import annotations

import csv
import fcntl
import gzip
import json
import math
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openfate.errors import DataFileError, InputError
from openfate.table import PreparedData, TextFile, prepare, values_of
from openfate.table.logs import AVAZU_COLUMNS, is_invalid
from openfate.table.preparation import _Writer

# ---- the twin ----------------------------------------------------------------------------------


def log_value(text):
    """Criteo's discretisation, by the paper's words."""
    if text == "":
        return None
    v = int(text)
    return str(math.floor(math.log(v) ** 2) if v > 2 else v - 2)


def twin(columns, parts, threshold=4, count_on="train"):
    """Give ids to values: columns of values (None: missing), the part of each row -> rows of ids.

    Observed ones by field, then new ones by field; the commonest first, ties by value, rare last.
    """
    observed, new, groups = [], [], []
    for f, column in enumerate(columns):
        train = Counter(v for v, part in zip(column, parts, strict=True) if part == 0)
        every = Counter(column)
        basis = train if count_on == "train" else every
        ranked = sorted(
            every, key=lambda v: (-train[v], -every[v] * (not train[v]), v is None, v or "")
        )
        is_rare = {v: basis[v] < threshold and (count_on == "all" or train[v] > 0) for v in every}
        rare = [v for v in ranked if is_rare[v]]
        groups.append({v: (f, "rare") if is_rare[v] else (f, v) for v in every})
        own = [v for v in ranked if not is_rare[v]]
        observed += [(f, v) for v in own if train[v]]
        new += [(f, v) for v in own if not train[v]]
        if rare:
            (observed if any(train[v] for v in rare) else new).append((f, "rare"))
    ids = {feature: j for j, feature in enumerate([*observed, *new])}
    rows = zip(
        *[[ids[group[v]] for v in column] for column, group in zip(columns, groups, strict=True)],
        strict=True,
    )
    return [list(row) for row in rows], len(observed), len(ids)


def tenths(n):
    return [i * 10 // n for i in range(n)]


def read_all(data):
    """All rows in the order of the parts."""
    read = [data.read(part) for part in data.parts]
    return np.concatenate([ids for ids, _ in read]).tolist(), np.concatenate(
        [y for _, y in read]
    ).tolist()


def assert_is_twin(data, columns, labels, parts, **settings):
    expected, n_observed, n_features = twin(columns, parts, **settings)
    order = sorted(range(len(parts)), key=lambda i: parts[i])
    ids, y = read_all(data)
    assert ids == [expected[i] for i in order]
    assert y == [labels[i] for i in order]
    assert (data.n_observed, data.n_features) == (n_observed, n_features)


def criteo_lines(n, seed=0):
    rng = random.Random(seed)
    lines = []
    for i in range(n):
        integers = [
            rng.choice(["", "-1", "0", "2", "3", str(rng.randrange(5000))]) for _ in range(13)
        ]
        hashes = [rng.choice(["", f"{rng.randrange(1 + f + i // 20):08x}"]) for f in range(26)]
        lines.append("\t".join([str(rng.randrange(2)), *integers, *hashes]))
    return lines


def write_criteo(path, n=300, seed=0):
    lines = criteo_lines(n, seed)
    path.write_text("\n".join(lines) + "\n")
    return path, [line.split("\t") for line in lines]


def criteo_columns(cells):
    columns = list(zip(*cells, strict=True))
    integers = [[log_value(v) for v in column] for column in columns[1:14]]
    return [*integers, *[[v or None for v in column] for column in columns[14:]]]


def avazu_rows(n=200, n_days=10, seed=0):
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        day = 21 + i * n_days // n
        rest = [f"{rng.randrange(1 + f + i // 30)}" for f in range(21)]
        rows.append(
            [str(2**64 + i), str(rng.randrange(2)), f"1410{day}{rng.randrange(24):02}", *rest]
        )
    return rows


def write_csv(path, header, rows, delimiter=","):
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    return path


# ---- equal to the twin -------------------------------------------------------------------------


@pytest.mark.parametrize("count_on", ["train", "all"])
@pytest.mark.parametrize("threshold", [1, 2, 4])
def test_criteo_ids_equal_the_twins(tmp_path, threshold, count_on):
    path, cells = write_criteo(tmp_path / "train.txt", seed=threshold)
    settings = {"threshold": threshold, "count_on": count_on}
    data = prepare(path, tmp_path / "out", "criteo", **settings)
    labels = [int(row[0]) for row in cells]
    assert_is_twin(data, criteo_columns(cells), labels, tenths(len(cells)), **settings)
    assert data.parts == ("train", "validation", *(f"T{t}" for t in range(1, 9)))
    assert [data.rows_in(part) for part in data.parts] == [30] * 10


@pytest.mark.parametrize("hour", ["raw", "of-day"])
def test_avazu_ids_equal_the_twins_and_parts_are_calendar_days(tmp_path, hour):
    rows = avazu_rows()
    random.Random(1).shuffle(rows)  # the day decides, not the order
    path = write_csv(tmp_path / "train.csv", AVAZU_COLUMNS, rows)
    data = prepare(path, tmp_path / "out", "avazu", hour=hour)
    columns = [list(column) for column in zip(*rows, strict=True)]
    parts = [int(text[4:6]) - 21 for text in columns[2]]
    hours = columns[2] if hour == "raw" else [text[6:] for text in columns[2]]
    assert_is_twin(data, [hours, *columns[3:]], [int(y) for y in columns[1]], parts)
    assert data.fields == AVAZU_COLUMNS[2:]


cells = st.sampled_from(["", "a", "b", 'say "x"', "a,b", "two\nlines", "é"])


@settings(max_examples=40)
@given(st.lists(st.tuples(cells, cells), min_size=10, max_size=60), st.integers(1, 200))
def test_csv_with_quotes_equals_the_twin_at_any_chunk_size(tmp_path_factory, pairs, chunk_bytes):
    folder = tmp_path_factory.mktemp("csv")
    rows = [[str(i % 2), *pair] for i, pair in enumerate(pairs)]
    path = write_csv(folder / "rows.csv", ["click", "x", "y"], rows)
    data = prepare(
        path, folder / "out", "csv", target="click", threshold=2, chunk_bytes=chunk_bytes
    )
    columns = [[pair[f] or None for pair in pairs] for f in range(2)]
    labels = [i % 2 for i in range(len(pairs))]
    assert_is_twin(data, columns, labels, tenths(len(pairs)), threshold=2)


def test_tsv_parquet_gz_and_a_folder_of_files_give_the_same(tmp_path):
    rows = [[str(i % 2), f"v{i % 7}", "" if i % 3 else str(i // 9)] for i in range(90)]
    header = ["click", "x", "y"]
    places = {
        "csv": tmp_path / "a.csv",
        "tsv": tmp_path / "a.tsv",
        "parquet": tmp_path / "a.parquet",
    }
    write_csv(places["csv"], header, rows)
    write_csv(places["tsv"], header, rows, "\t")
    frame = pl.DataFrame(rows, schema=header, orient="row")
    numbers = pl.col("y").replace("", None).cast(pl.Int64)
    frame.with_columns(numbers, pl.col("click").cast(pl.Int8)).write_parquet(places["parquet"])
    places["gz"] = tmp_path / "packed.csv.gz"
    places["gz"].write_bytes(gzip.compress(places["csv"].read_bytes()))
    places["folder"] = tmp_path / "folder"
    places["folder"].mkdir()
    write_csv(places["folder"] / "1.csv", header, rows[:40])
    (places["folder"] / "2.csv.gz").write_bytes(
        gzip.compress(write_csv(tmp_path / "2.csv", header, rows[40:]).read_bytes())
    )
    (places["folder"] / "notes.md").write_text("not data")
    read = {
        kind: read_all(prepare(path, tmp_path / f"out-{kind}", "csv", target="click"))
        for kind, path in places.items()
    }
    assert all(found == read["csv"] for found in read.values())


@pytest.mark.parametrize("as_text", [str, lambda t: f"2013-01-{t + 1:02}"])
def test_a_time_column_splits_into_ten_parts_and_keeps_ties_together(tmp_path, as_text):
    times = [i // 4 for i in range(100)]  # 25 times, 4 rows each
    random.Random(0).shuffle(times)
    rows = [[str(i % 2), as_text(time), f"v{i % 5}"] for i, time in enumerate(times)]
    path = write_csv(tmp_path / "a.csv", ["click", "when", "x"], rows)
    data = prepare(path, tmp_path / "out", "csv", target="click", time="when")
    assert data.fields == ("x",)
    parts = [4 * time * 10 // 100 for time in times]
    assert_is_twin(data, [[row[2] for row in rows]], [i % 2 for i in range(100)], parts)


def test_too_few_times_are_refused(tmp_path):
    rows = [[str(i % 2), str(i % 3), "v"] for i in range(50)]
    path = write_csv(tmp_path / "a.csv", ["click", "when", "x"], rows)
    with pytest.raises(DataFileError, match="the times in 'when' are too few, or too unequal, for"):
        prepare(path, tmp_path / "out", "csv", target="click", time="when")


@given(st.integers(-5, 10**7) | st.sampled_from([2, 3, 4, 7, 8, 20, 54, 55, 148, 149]))
def test_the_log_discretisation_is_the_papers(number):
    assert values_of(pl.Series([str(number)]), "log").to_list() == [log_value(str(number))]


def test_the_vocabulary_lists_every_value_with_its_id_and_counts(tmp_path):
    values = ["a"] * 6 + ["b", "c"] + [""] * 4 + ["d"] * 2 + ["a"] * 106
    rows = [[str(i % 2), v] for i, v in enumerate(values)]  # 12 rows train, 12 validate
    path = write_csv(tmp_path / "a.csv", ["click", "x"], rows)
    data = prepare(path, tmp_path / "out", "csv", target="click")
    table = (
        data.vocabulary().select("value", "id", "kind", "train", "validation", "count").collect()
    )
    assert table.rows() == [
        ("a", 0, "observed", 6, 10, 112),
        (None, 1, "observed", 4, 0, 4),
        ("b", 2, "rare", 1, 0, 1),
        ("c", 2, "rare", 1, 0, 1),
        ("d", 3, "new", 0, 2, 2),
    ]
    assert data.manifest["fields"][0]["rare"] == 2
    assert data.report["features"] == {"in_training": 3, "new_in_validation": 1, "new_in_test": 0}
    assert data.report["new_cells"]["validation"] == round(2 / 12, 6)


# ---- the same whatever the threads, the chunks and the kills -----------------------------------


def content_of(folder):
    """Every file of a prepared data set but what names the folder itself."""
    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(("chunk_bytes", "workers"), [(1, 1), (500, 3), (20_000, 2), (1 << 25, 1)])
def test_files_are_the_same_bytes_at_any_chunk_size_and_any_threads(tmp_path, chunk_bytes, workers):
    path, _ = write_criteo(tmp_path / "a.txt", 120)
    prepare(path, tmp_path / "one", "criteo", shard_rows=50)
    prepare(
        path, tmp_path / "two", "criteo", shard_rows=50, chunk_bytes=chunk_bytes, workers=workers
    )
    assert content_of(tmp_path / "one") == content_of(tmp_path / "two")


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("stage", "at"),
    [("reading", 1), ("reading", 7), ("counting", 1), ("writing", 1), ("writing", 4)],
)
def test_an_interrupted_preparation_goes_on_and_ends_the_same(tmp_path, monkeypatch, stage, at):
    path, _ = write_criteo(tmp_path / "a.txt", 200)
    settings = {"shard_rows": 30, "chunk_bytes": 3000, "workers": 2}
    prepare(path, tmp_path / "whole", "criteo", **settings)
    seen = Counter()

    def stop(now, done, total):
        seen[now] += 1
        if now == stage and seen[now] == at:
            raise Killed

    with pytest.raises(Killed):
        prepare(path, tmp_path / "out", "criteo", on_progress=stop, **settings)
    with pytest.raises(DataFileError, match="no prepared data here"):
        PreparedData(tmp_path / "out")
    parsed, written = Counter(), Counter()
    count_calls(monkeypatch, TextFile, "parse", parsed)
    count_calls(monkeypatch, _Writer, "_gather", written)
    prepare(path, tmp_path / "out", "criteo", **settings)
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")
    if stage == "reading":
        assert 0 < parsed["parse"] <= seen_chunks(path) - at
    else:
        assert parsed["parse"] == 0
    if stage == "writing":
        assert written["_gather"] < 10


def count_calls(monkeypatch, module, name, counter):
    original = getattr(module, name)

    def counted(*args):
        counter[name] += 1
        return original(*args)

    monkeypatch.setattr(module, name, counted)


def seen_chunks(path):
    return path.stat().st_size // 1000 + 1


def test_a_killed_process_goes_on_and_ends_the_same(tmp_path):
    path, _ = write_criteo(tmp_path / "a.txt", 3000)
    code = (
        "import sys, time; from openfate.table import prepare; "
        "prepare(sys.argv[1], sys.argv[2], 'criteo', chunk_bytes=9000, shard_rows=99, "
        "on_progress=lambda *_: time.sleep(0.01))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path), str(tmp_path / "out")])
    journal = tmp_path / "out" / ".work" / "blocks" / "journal.jsonl"
    while process.poll() is None and not (journal.exists() and journal.read_text().count("\n") > 5):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "manifest.json").exists()
    settings = {"chunk_bytes": 9000, "shard_rows": 99}
    prepare(path, tmp_path / "out", "criteo", **settings)
    prepare(path, tmp_path / "whole", "criteo", **settings)
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


def test_half_a_line_of_the_journal_is_not_a_block(tmp_path):
    path, _ = write_criteo(tmp_path / "a.txt", 200)

    def stop(now, done, total):
        if now == "counting":
            raise Killed

    with pytest.raises(Killed):
        prepare(path, tmp_path / "out", "criteo", chunk_bytes=3000, on_progress=stop)
    journal = tmp_path / "out" / ".work" / "blocks" / "journal.jsonl"
    journal.write_text(journal.read_text()[:-10])
    prepare(path, tmp_path / "out", "criteo", chunk_bytes=3000)
    prepare(path, tmp_path / "whole", "criteo")
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


@pytest.mark.parametrize("limit", [100, 1000, 6000, None])
def test_a_disk_that_fills_up_is_an_error_and_nothing_is_lost(tmp_path, limit):
    """Wherever the space ends; with more of it the preparation goes on."""
    path, _ = write_criteo(tmp_path / "a.txt", 1000)
    settings = {"chunk_bytes": 9000, "shard_rows": 90}
    prepare(path, tmp_path / "whole", "criteo", **settings)
    largest = max(len(content) for content in content_of(tmp_path / "whole").values())
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit or largest - 1, old[1]))
    try:
        with pytest.raises(DataFileError, match=r"cannot be written \("):
            prepare(path, tmp_path / "out", "criteo", **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    prepare(path, tmp_path / "out", "criteo", **settings)
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


def test_a_second_preparation_in_the_same_folder_is_refused(tmp_path):
    path, _ = write_criteo(tmp_path / "a.txt", 100)
    out, messages = tmp_path / "out", []

    def meanwhile(stage, done, total):
        if not messages:
            messages.append(refuse(InputError, path, out, "criteo"))

    prepare(path, out, "criteo", on_progress=meanwhile)
    assert messages == [
        f"{out}: another process is writing there; wait for it, or give another folder."
    ]


def test_who_opened_the_lock_before_another_ended_still_holds_it(tmp_path):
    """The file was deleted after use: a third preparation made it anew, and both wrote."""
    write_criteo(tmp_path / "a.txt", 100)
    out, opened = tmp_path / "out", []  # beside the raw file: the lock is no raw file

    def meanwhile(stage, done, total):
        if not opened:
            opened.append((tmp_path / ".out.lock").open("w"))

    prepare(tmp_path, out, "criteo", on_progress=meanwhile)
    with opened[0] as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        message = refuse(InputError, tmp_path, out, "criteo", overwrite=True)
    assert "another process is writing there" in message
    assert prepare(tmp_path, out, "criteo", overwrite=True).n_rows == 100


# ---- what is refused ---------------------------------------------------------------------------


def refuse(kind, *args, **kwargs):
    with pytest.raises(kind) as error:
        prepare(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize("chunk_bytes", [100, 1 << 25])
def test_a_line_with_another_number_of_columns_is_named(tmp_path, chunk_bytes):
    lines = criteo_lines(50)
    lines[20] += "\tmore"  # one too many and one too few: their sum is right
    lines[30] = lines[30].rsplit("\t", 1)[0]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines))
    message = refuse(DataFileError, path, tmp_path / "out", "criteo", chunk_bytes=chunk_bytes)
    assert message.startswith(f"{path}, line 21: 41 cells, but the table has 40 columns;")
    assert "; repair it, or allow 10 bad lines to be left out" in message


def test_bad_lines_are_left_out_and_counted_up_to_a_number(tmp_path):
    lines = criteo_lines(53)
    good = [line.split("\t") for i, line in enumerate(lines) if i not in (7, 8, 40)]
    lines[7], lines[8], lines[40] = "half a line", lines[8] + "\t", ""
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines) + "\n\n")
    data = prepare(path, tmp_path / "out", "criteo", bad_lines=2, chunk_bytes=2000)
    assert data.manifest["n_bad_lines"] == 2  # a blank line is no line
    assert_is_twin(data, criteo_columns(good), [int(row[0]) for row in good], tenths(50))
    message = refuse(DataFileError, path, tmp_path / "two", "criteo", bad_lines=1)
    assert message.startswith(f"{path}, line 8: 1 cells, but the table has 40 columns;")
    assert "(2 such lines so far)" in message


@pytest.mark.parametrize(
    ("column", "text", "says"),
    [
        (0, "2", "column 'label' holds '2'; a label is 0 or 1."),
        (0, "", "column 'label' holds nothing; a label is 0 or 1."),
        (3, "x9", "column 'I3' holds 'x9'; give numbers, or leave cells empty."),
    ],
)
def test_a_cell_that_cannot_be_used_is_named(tmp_path, column, text, says):
    rows = [line.split("\t") for line in criteo_lines(60)]
    rows[44][column] = text
    path = tmp_path / "a.txt"
    path.write_text("\n".join("\t".join(row) for row in rows))
    for chunk_bytes in (300, 1 << 25):
        out = tmp_path / f"out{chunk_bytes}"
        message = refuse(DataFileError, path, out, "criteo", chunk_bytes=chunk_bytes)
        assert message == f"{path}, line 45: {says}"


def test_integers_beyond_64_bits_are_no_trouble(tmp_path):
    """An `id` is text, so none of them meet; an integer falls into the bucket of its logarithm."""
    ids = [str(2**64 + i) for i in range(20)] + ["9" * 40, "-" + "9" * 40]
    rows = [[str(i % 2), name] for i, name in enumerate(ids)]
    path = write_csv(tmp_path / "a.csv", ["click", "id"], rows)
    data = prepare(path, tmp_path / "out", "csv", target="click", threshold=1)
    assert data.n_features == len(ids)
    assert set(data.vocabulary().collect()["value"]) == set(ids)
    rows = [line.split("\t") for line in criteo_lines(60)]
    rows[44][3] = str(10**30)
    (tmp_path / "b.txt").write_text("\n".join("\t".join(row) for row in rows))
    data = prepare(tmp_path / "b.txt", tmp_path / "b", "criteo", threshold=1)
    values = data.vocabulary().filter(pl.col("field") == "I3").collect()["value"]
    assert str(math.floor(math.log(10**30) ** 2)) in set(values)


def test_a_whole_gz_takes_the_place_of_a_truncated_one(tmp_path):
    path, _ = write_criteo(tmp_path / "a.txt", 400)
    whole, packed = gzip.compress(path.read_bytes()), tmp_path / "a.txt.gz"
    packed.write_bytes(whole[:-9])
    out = tmp_path / "out"
    refuse(DataFileError, packed, out, "criteo", chunk_bytes=9000)
    assert not (out / "manifest.json").exists()
    packed.write_bytes(whole)
    assert refuse(InputError, packed, out, "criteo", chunk_bytes=9000) == (
        f"{out}: holds an unfinished preparation of other files or settings; "
        "overwrite it, or give a new folder."
    )
    prepare(packed, out, "criteo", chunk_bytes=9000, overwrite=True)
    prepare(path, tmp_path / "plain", "criteo")
    shards = [content_of(folder / "shards") for folder in (out, tmp_path / "plain")]
    assert shards[0] == shards[1]


def test_a_bad_hour_is_named(tmp_path):
    rows = avazu_rows(50)
    rows[9][2] = "14102124"
    path = write_csv(tmp_path / "a.csv", AVAZU_COLUMNS, rows)
    message = refuse(DataFileError, path, tmp_path / "out", "avazu")
    assert message == f"{path}, line 11: column 'hour' holds '14102124'; give YYMMDDHH."


def test_avazu_needs_three_days(tmp_path):
    path = write_csv(tmp_path / "a.csv", AVAZU_COLUMNS, avazu_rows(50, n_days=2))
    message = refuse(DataFileError, path, tmp_path / "out", "avazu")
    assert message.startswith(f"{path}: 2 calendar days in 'hour'; a day each for training,")


def test_missing_empty_and_unfitting_files_are_named(tmp_path):
    out, empty, folder = tmp_path / "out", tmp_path / "a.txt", tmp_path / "folder"
    empty.write_text("")
    folder.mkdir()
    (folder / "readme.md").write_text("x")
    absent = tmp_path / "absent"
    assert (
        refuse(DataFileError, absent, out, "criteo")
        == f"{absent}: no such file or folder; check the path."
    )
    assert refuse(DataFileError, empty, out, "criteo") == (
        f"{empty}: the file is empty; fetch it again."
    )
    assert refuse(DataFileError, folder, out, "criteo") == (
        f"{folder}: holds no file of *.txt, *.tsv (or .gz of them); give a folder that does."
    )
    few = write_criteo(tmp_path / "few.txt", 9)[0]
    assert refuse(DataFileError, few, out, "criteo") == (
        f"{few}: 9 rows cannot be split into 10 parts; give 10 rows or more."
    )


def test_another_header_is_named(tmp_path):
    test_file = write_csv(tmp_path / "test.csv", ["id", *AVAZU_COLUMNS[2:]], [])
    message = refuse(DataFileError, test_file, tmp_path / "out", "avazu")
    assert message.startswith(f"{test_file}: its columns are id, hour, C1,")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, header in (("1.csv", ["click", "x"]), ("2.csv", ["click", "y"])):
        write_csv(folder / name, header, [["1", "a"]] * 10)
    message = refuse(DataFileError, folder, tmp_path / "out", "csv", target="click")
    assert message == (
        f"{folder / '2.csv'}: its columns are click, y, not click, x; give files of one kind."
    )


def test_columns_that_are_not_there_are_named(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["click", "x"], [["1", "a"]] * 10)
    out = tmp_path / "out"
    assert refuse(InputError, path, out, "csv") == (
        "give the label's column as target; columns: click, x."
    )
    message = f"{path} has no column 'y'; it has click, x."
    assert refuse(InputError, path, out, "csv", target="y") == message
    assert refuse(InputError, path, out, "csv", target="click", drop=["y"]) == message
    message = refuse(InputError, path, out, "csv", target="click", drop=["x"])
    assert message == f"{path}: no column is left to be a field of click, x; drop fewer."
    assert not out.exists()


@pytest.mark.parametrize("cut", [-9, 100])
def test_a_truncated_gz_is_named(tmp_path, cut):
    path, _ = write_criteo(tmp_path / "a.txt", 400)
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes())[:cut])
    message = refuse(DataFileError, packed, tmp_path / "out", "criteo")
    assert message.startswith(f"{packed}: not a whole gzip file (")
    assert message.endswith("; fetch it again.")


def test_text_that_is_not_utf8_is_named(tmp_path):
    path, _ = write_criteo(tmp_path / "a.txt", 20)
    path.write_bytes(path.read_bytes().replace(b"00000001", b"\xff\xfe", 1))
    message = refuse(DataFileError, path, tmp_path / "out", "criteo")
    assert message.startswith(f"{path}, line 1: byte 0xff is not UTF-8;")


def test_an_open_quote_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("click,x\n" + "1,a\n" * 20 + '0,"open\n' + "1,a\n" * 20)
    message = refuse(DataFileError, path, tmp_path / "out", "csv", target="click")
    assert message == (
        f"{path}, line 22: a quote is opened and never closed; "
        'close it, and write a quote inside a quoted cell twice ("").'
    )


def test_what_is_in_the_way_is_kept(tmp_path):
    path, _ = write_criteo(tmp_path / "a.txt", 40)
    out, other = tmp_path / "out", tmp_path / "other"
    prepare(path, out, "criteo")
    before = content_of(out)
    message = f"{out}: holds prepared data already; overwrite it, or give a new folder."
    assert refuse(InputError, path, out, "criteo") == message
    assert content_of(out) == before
    prepare(path, out, "criteo", overwrite=True)
    assert content_of(out) == before
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    message = refuse(InputError, path, other, "criteo", overwrite=True)
    assert message == f"{other}: is not empty and holds no prepared data; give a new folder."
    assert refuse(InputError, path, path, "criteo") == f"{path}: is a file; give a folder."


def test_other_settings_do_not_go_on_with_an_unfinished_preparation(tmp_path):
    path, _ = write_criteo(tmp_path / "a.txt", 100)
    lines = path.read_text()
    path.write_text(lines + "short\n")
    refuse(DataFileError, path, tmp_path / "out", "criteo", chunk_bytes=2000)
    message = refuse(InputError, path, tmp_path / "out", "criteo", threshold=2)
    assert message == (
        f"{tmp_path / 'out'}: holds an unfinished preparation of other files or settings; "
        "overwrite it, or give a new folder."
    )
    path.write_text(lines)
    prepare(path, tmp_path / "out", "criteo", overwrite=True)
    prepare(path, tmp_path / "whole", "criteo")
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


def test_another_target_does_not_go_on_with_an_unfinished_preparation(tmp_path):
    rows = [[str(i % 2), str(i % 2)] for i in range(9)]  # too few to be split
    path = write_csv(tmp_path / "a.csv", ["x", "y"], rows)
    refuse(DataFileError, path, tmp_path / "out", "csv", target="x")
    message = refuse(InputError, path, tmp_path / "out", "csv", target="y")
    assert "holds an unfinished preparation of other files or settings" in message


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"threshold": 0}, "threshold=0: choose an integer from 1 up."),
        ({"count_on": "test"}, "count_on='test' is unknown: choose 'train' or 'all'."),
        ({"hour": "noon"}, "hour='noon' is unknown: choose 'raw' or 'of-day'."),
        (
            {"target": "y"},
            "target, time, drop and log belong to the format \"csv\", not 'criteo'.",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path, settings, says):
    path, _ = write_criteo(tmp_path / "a.txt", 40)
    assert refuse(InputError, path, tmp_path / "out", "criteo", **settings) == says
    assert not (tmp_path / "out").exists()


def test_labels_may_be_booleans_or_whole_floats():
    assert is_invalid(pl.Series(["0", "1.0", "True", "false"]), "label").to_list() == [False] * 4


# ---- the command -------------------------------------------------------------------------------


def test_the_command_prints_what_it_took(tmp_path):
    path, _ = write_criteo(tmp_path / "a.txt", 40)
    run = [sys.executable, "-c", "from openfate.cli import main; main()", "prepare", str(path)]
    flags = ["--format", "criteo", "--out", str(tmp_path / "out"), "--measure", "--json"]
    done = subprocess.run([*run, *flags], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["rows"] == 40 and result["rows_per_second"] > 0 and result["peak_bytes"] > 1e6
    assert result["scan_multiple"] > 0
    again = subprocess.run([*run, *flags], capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr == (
        f"openfate: {tmp_path / 'out'}: holds prepared data already; "
        "overwrite it, or give a new folder.\n"
    )
