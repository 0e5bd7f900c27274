"""Files in batches: whatever a CSV file holds and wherever its batches end, its rows come out of them."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql.command import batches
from plainsql.command.arguments import parse
from plainsql.command.importing import _read
from plainsql.command.tables import csv_line

pytestmark = pytest.mark.unit

FIELDS = st.one_of(st.none(), st.text(st.sampled_from('ax,"\n\r\té\x1f\x1e'), max_size=4))


@st.composite
def tables(draw: st.DrawFn) -> list[list[str | None]]:
    width = draw(st.integers(1, 3))
    return draw(st.lists(st.lists(FIELDS, min_size=width, max_size=width), min_size=1, max_size=12))


@given(rows=tables(), end=st.sampled_from(["\n", "\r\n"]), size=st.integers(1, 40), has_last_end=st.booleans())
def test_the_rows_of_a_file_are_those_of_its_batches(
    rows: list[list[str | None]], end: str, size: int, has_last_end: bool
) -> None:
    # A last row that is nothing but NULL, without an end, is no row to anybody.
    tail = end if has_last_end or not any(field is not None for field in rows[-1]) else ""
    text = end.join(csv_line(fields) for fields in rows) + tail
    found: list[list[str | None]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BATCH_BYTES", size)
        for batch in batches.csv_batches(io.BytesIO(text.encode()), ",", len(rows[0])):
            assert batch.first_row == len(found) + 1
            lines = batch.text.split(batch.row_separator)
            assert len(lines) == batch.rows
            found += [
                [None if each == batch.null else each for each in line.split(batch.field_separator)] for line in lines
            ]
    assert found == rows


def test_another_delimiter_is_recognized_without_a_header() -> None:
    def rows(text: str, *more: str) -> int:
        options = parse(["import", "in.csv", "--table", "t", "--columns", "a,b", *more])
        return sum(batch.rows for batch in _read(io.BytesIO(text.encode()), options).batches)

    with pytest.raises(ValueError, match="The first line has no comma but 1 semicolon"):
        rows("1;2\n3;4\n")
    assert rows("1;2\n3;4\n", "--delimiter", ";") == 2
    assert rows('"x;y\nz",1\n') == 1
    with pytest.raises(batches.BadRow, match=r"Expected 2 fields, got 1\."):
        rows("1\n")
