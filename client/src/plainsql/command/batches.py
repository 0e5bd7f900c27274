"""Reads CSV and NDJSON files in batches of rows, which PostgreSQL splits.

A CSV batch is sent as one text. Its fields and rows are separated by characters that occur in no field, so neither side
processes single values. For most files this needs no parsing at all. As in PostgreSQL's COPY, an unquoted empty field
is NULL and a quoted one is the empty string.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from plainsql.errors import Error, ResultError

# Small enough for every tier's request limit, with room for JSON escapes. Large enough that round trips cost little.
BATCH_BYTES = 1 << 20
_FIELD = r'"((?:[^"]|"")*)"|([^"{0}\r\n]*)'
# Characters that can separate fields and rows or represent NULL. Those with a short JSON escape come first.
_SEPARATORS = "\t\n\x1f\x1e\x1d\x1c\x1b\x1a\x19\x18\x17\x16\x15\x14\x13\x12\x11\x10"
_FIRST_ROW = re.compile(rb'(?:[^"\n]|"[^"]*")*')
_ODD = re.compile("[\x01-\x1f]")
# The usual delimiters: the name, and how to write it in a shell.
_DELIMITERS = {",": ("comma", "','"), ";": ("semicolon", "';'"), "\t": ("tab", "$'\\t'"), "|": ("vertical bar", "'|'")}


class BadRow(Error):
    """A row that cannot be imported, counted from 1 without the header, and the faulty column if it is known.

    Row 0 is the header. `earlier` is the row that has the same key, if the file contains it twice.
    """

    def __init__(self, row: int, message: str, column: str | None = None, *, earlier: int | None = None) -> None:
        super().__init__(message)
        self.row = row
        self.column = column
        self.earlier = earlier


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as one text. `first_row` counts from 1. `size_bytes` is the batch's size in the file."""

    text: str
    rows: int
    first_row: int
    size_bytes: int
    field_separator: str = ","
    row_separator: str = "\n"
    null: str = ""

    def part(self, start: int, end: int) -> "Batch":
        """Rows `start` to `end` of this batch, counted from 0."""
        text = self.row_separator.join(self.text.split(self.row_separator)[start:end])
        kinds = (self.field_separator, self.row_separator, self.null)
        return Batch(text, end - start, self.first_row + start, 0, *kinds)


def csv_header(file: BinaryIO, delimiter: str, *, is_assumed: bool = False) -> list[str]:
    """The column names in the first line. If the delimiter is only assumed, raises ValueError if it looks wrong."""
    line = _text(file.readline(), 0).removeprefix("\ufeff")
    while line.count('"') % 2:
        more = file.readline()
        if not more:
            raise ResultError("Line 1: a quotation mark isn't closed.")
        line += _text(more, 0)
    if is_assumed:
        _check_delimiter(line, delimiter)
    (fields,) = parse_csv(line.rstrip("\r\n"), delimiter, 1)
    return [field or "" for field in fields]


def _check_delimiter(line: str, delimiter: str) -> None:
    """Raises ValueError if the first line has none of this delimiter, but others."""
    unquoted = re.sub('"[^"]*"', "", line)
    counts = {each: unquoted.count(each) for each in _DELIMITERS}
    other = max(counts, key=lambda each: counts[each])
    if counts[delimiter] or not counts[other]:
        return
    name, written = _DELIMITERS[other]
    found = f"{counts[other]} {name}{'' if counts[other] == 1 else 's'}"
    expected, assumed = _DELIMITERS[delimiter]
    advice = f"try plainsql import with --delimiter {written}. If it is one column, give --delimiter {assumed}."
    raise ValueError(f"The first line has no {expected} but {found}: {advice}")


def csv_batches(file: BinaryIO, delimiter: str, width: int, *, is_assumed: bool = False) -> Iterator[Batch]:
    """The rows of a CSV file; each must have `width` fields. If the delimiter is only assumed, checks the first row.

    Empty lines at the end of the file are ignored. In a file with one column, each is a row with NULL.
    """
    row = 1
    rest = b""
    while True:
        block = file.read(BATCH_BYTES)
        chunk = rest + block
        end = _last_row_end(chunk) if block else len(chunk)
        whole, rest = chunk[:end], chunk[end:]
        if not block and width > 1:
            whole = whole.rstrip(b"\r\n")
        if whole:
            if is_assumed and row == 1 < width and (first := _FIRST_ROW.match(whole)):
                _check_delimiter(first[0].decode(errors="replace"), delimiter)
            batch = _csv_batch(whole, delimiter, width, row)
            row += batch.rows
            yield batch
        if not block:
            return


def _last_row_end(chunk: bytes) -> int:
    """Where the last whole row ends: after a newline outside quotation marks.

    Trailing empty lines are left for the next batch, which decides whether they are at the end of the file.
    """
    end = chunk.rfind(b"\n") + 1
    if b'"' in chunk:
        quotes = chunk.count(b'"', 0, end)
        while end and quotes % 2:
            before = chunk.rfind(b"\n", 0, end - 1) + 1
            quotes -= chunk.count(b'"', before, end)
            end = before
    bare = len(chunk[:end].rstrip(b"\r\n"))
    return chunk.find(b"\n", bare, end) + 1


def _csv_batch(whole: bytes, delimiter: str, width: int, row: int) -> Batch:
    text = _text(whole, row)
    if "\r" in text:
        text = text.replace("\r\n", "\n") if '"' not in text else text
    text = text[:-1] if text.endswith("\n") else text
    if '"' not in text and "\r" not in text:
        lines = text.split("\n")
        wrong = next((at for at, line in enumerate(lines) if line.count(delimiter) != width - 1), None)
        if wrong is not None:
            raise _wrong_width(row + wrong, lines[wrong].count(delimiter) + 1, width)
        return Batch(text, len(lines), row, len(whole), delimiter)
    rows = parse_csv(text.removesuffix("\r"), delimiter, row)
    wrong = next((at for at, fields in enumerate(rows) if len(fields) != width), None)
    if wrong is not None:
        raise _wrong_width(row + wrong, len(rows[wrong]), width)
    return _joined(rows, row, len(whole))


def _wrong_width(row: int, fields: int, width: int) -> BadRow:
    expected = "1 field" if width == 1 else f"{width} fields"
    return BadRow(row, f"Expected {expected}, got {fields}.")


def _text(whole: bytes, row: int) -> str:
    """Decodes whole rows. If a byte is not valid UTF-8, raises BadRow with its row."""
    try:
        return whole.decode()
    except UnicodeDecodeError as error:
        before = whole[: error.start]
        at = before.count(b"\n")
        message = f"The byte 0x{whole[error.start]:02x} isn't valid UTF-8."
        remedy = "If the file is in Latin-1, convert it with `iconv -f latin1 -t utf8`."
        raise BadRow(row + at, f"{message} {remedy}") from error


def _joined(rows: list[list[str | None]], row: int, size_bytes: int) -> Batch:
    within = {each for fields in rows for field in fields if field for each in _ODD.findall(field)}
    free = [each for each in _SEPARATORS if each not in within]
    if len(free) < 3:
        raise BadRow(row, "This row and the rows after it use too many different control characters.")
    field_separator, row_separator, null = free[:3]
    joined = row_separator.join(
        field_separator.join(null if field is None else field for field in fields) for fields in rows
    )
    return Batch(joined, len(rows), row, size_bytes, field_separator, row_separator, null)


def parse_csv(text: str, delimiter: str, row: int) -> list[list[str | None]]:
    """Rows of fields. An unquoted empty field is None."""
    pattern = re.compile(f"(?:{_FIELD.format(re.escape(delimiter))})({re.escape(delimiter)}|\r?\n|$)")
    rows: list[list[str | None]] = []
    fields: list[str | None] = []
    at = 0
    for match in pattern.finditer(text):
        if match.start() != at:
            raise BadRow(row + len(rows), "Unclosed or unexpected quotation mark.")
        at = match.end()
        quoted, bare, separator = match.groups()
        fields.append(quoted.replace('""', '"') if quoted is not None else bare or None)
        if separator != delimiter:
            rows.append(fields)
            fields = []
            if not separator:
                break
    if at != len(text):
        raise BadRow(row + len(rows), "Unclosed or unexpected quotation mark.")
    return rows


def ndjson_batches(file: BinaryIO, known: Sequence[str], rest: bytes = b"") -> Iterator[Batch]:
    """The lines of an NDJSON file, in batches. A field that is not in `known` raises BadRow, since it would be lost.

    `rest` is the part of the file that has already been read.
    """
    row = 1
    while True:
        block = file.read(BATCH_BYTES)
        chunk = rest + block
        end = chunk.rfind(b"\n") + 1 if block else len(chunk)
        whole, rest = chunk[:end], chunk[end:]
        lines = [line for line in _text(whole, row).split("\n") if line.strip()]
        if lines:
            _check_fields(lines, known, row)
            yield Batch("\n".join(lines), len(lines), row, len(whole))
            row += len(lines)
        if not block:
            return


def fields_of(line: bytes) -> list[str]:
    """The field names in the first line."""
    return list(_object(_text(line, 1), 1)) if line.strip() else []


def _check_fields(lines: list[str], known: Sequence[str], row: int) -> None:
    names = frozenset(known)
    try:
        # Parsing all lines at once is many times faster than one by one.
        found = json.loads("[" + ",".join(lines) + "]")
        if len(found) == len(lines) and all(isinstance(each, dict) and names.issuperset(each) for each in found):
            return
    except ValueError:
        # The loop below finds the faulty line.
        found = []
    for at, line in enumerate(lines):
        for name in _object(line, row + at):
            if name not in names:
                raise BadRow(row + at, f"Unknown column; the import has {', '.join(known)}.", name)


def _object(line: str, row: int) -> dict[str, Any]:
    try:
        # Only the names matter, and Python's own integers have a limited number of digits.
        found = json.loads(line, parse_int=str)
    except ValueError as error:
        raise BadRow(row, f"Invalid JSON: {error}.") from error
    if not isinstance(found, dict):
        raise BadRow(row, "Not a JSON object.")
    return found
