"""Text in chunks of whole records: every cell comes back, and errors name the line."""

from __future__ import annotations

import csv
import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import DataFileError
from openfate.table import TextFile

cells = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4) | st.sampled_from(
    ["1", "2.5", "true", "01", '"', ",", "\n", "a\r\nb", "2013-01-01"]
)


@given(
    st.integers(1, 3).flatmap(
        lambda d: st.lists(st.lists(cells, min_size=d, max_size=d), min_size=1, max_size=8)
    ),
    st.integers(1, 40),
)
def test_what_csv_writes_comes_back_whatever_the_chunk(tmp_path_factory, table, chunk_bytes):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(
        [[f"c{at}" for at in range(len(table[0]))], *table]
    )
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes(text.getvalue().encode())
    read = [list(row) for rows in TextFile(path).rows(chunk_bytes) for row in rows.cells.rows()]
    assert [[cell or None for cell in row] for row in read] == [
        [cell or None for cell in row] for row in table
    ]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000, -1])
def test_a_file_is_read_on_from_any_chunk(tmp_path, chunk_bytes, packed):
    text = b'\xef\xbb\xbfa,"b\nb"\n' + b"".join(b'%d,"x\n%d"\n' % (i, i) for i in range(9)) + b"9,z"
    path = tmp_path / ("rows.csv.gz" if packed else "rows.csv")
    path.write_bytes(gzip.compress(text) if packed else text)
    file = TextFile(path)
    chunks = list(file.chunks(chunk_bytes))
    assert file.columns == ("a", "b\nb")
    assert [rows.line_of(0) for rows in map(file.parse, chunks)] == [c.line for c in chunks]
    assert chunks[0].line == 3 and chunks[-1].stop == len(text)
    for number, chunk in enumerate(chunks):
        assert list(file.chunks(chunk_bytes, chunk.stop)) == chunks[number + 1 :]


def test_lines_of_another_width_are_listed_and_the_others_keep_their_lines(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_bytes(b"1 2\n\n3\n4 5\r\n6 7 8\n")
    file = TextFile(path, " ", ["a", "b"])
    (rows,) = map(file.parse, file.chunks())
    assert rows.cells.rows() == [("1", "2"), ("4", "5")]
    assert [rows.line_of(row) for row in range(2)] == [1, 4]
    assert rows.bad == [(3, 1), (5, 3)]


@pytest.fixture
def write(tmp_path):
    def write(content):
        (tmp_path / "rows.csv").write_bytes(content)
        return tmp_path / "rows.csv"

    return write


@pytest.mark.parametrize("chunk_bytes", [3, 1 << 20])
@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"a,b\n1,2\n1\n", 3,
         "1 cells, but the table has 2 columns; give every line as many."),
        (b"a,b\n1,2\n\n1,2,3\n", 4,
         "3 cells, but the table has 2 columns; give every line as many."),
        (b'a,b\n"1\n\n1",2\n1,2,3\n', 5,
         "3 cells, but the table has 2 columns; give every line as many."),
        (b"a,b\n1,2\n1,caf\xe9\n", 3, "byte 0xe9 is not UTF-8; save the file as UTF-8."),
        (b"a,caf\xe9\n1,2\n", 1, "byte 0xe9 is not UTF-8; save the file as UTF-8."),
        (b'a,b\n1,2\n1,"x\n1,2\n', 3,
         'a quote is opened and never closed; close it, and write a quote inside a quoted cell '
         'twice ("").'),
        (b'a,b\n1,2\n1,5" 6"\n1,2\n', 3,
         'a quote inside a cell; put the whole cell in quotes and write the quote inside it '
         'twice ("").'),
        (b'a,b\n1,2\n1,"x"y\n1,2\n', 3,
         'a quote inside a cell; put the whole cell in quotes and write the quote inside it '
         'twice ("").'),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_number(write, text, line, message, chunk_bytes):
    path = write(text)
    with pytest.raises(DataFileError) as error:
        list(TextFile(path).rows(chunk_bytes))
    assert str(error.value) == f"{path}, line {line}: {message}"


@pytest.mark.parametrize("columns", [None, ["a"]])
def test_a_file_that_cannot_be_read_is_named(tmp_path, columns):
    with pytest.raises(DataFileError, match=r"a\.csv: cannot be read \(No such file"):
        TextFile(tmp_path / "a.csv", columns=columns)
