"""Files in batches of rows that PostgreSQL can take apart by itself.

Owns reading CSV and NDJSON. A batch of CSV goes as one text whose fields and rows are separated by characters that
occur in no field, so that neither side handles single values. Most files need no parsing for that at all. An
unquoted empty field is NULL and a quoted one is the empty string, as PostgreSQL's COPY has it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from plainsql.errors import Error, ResultError

# Small enough for every tier's requests, with room for JSON's escapes; large enough that the trips cost little.
BATCH_BYTES = 1 << 20
_FIELD = r'"((?:[^"]|"")*)"|([^"{0}\r\n]*)'
# What may separate fields and rows, and stand for NULL: short in JSON first.
_SEPARATORS = "\t\n\x1f\x1e\x1d\x1c\x1b\x1a\x19\x18\x17\x16\x15\x14\x13\x12\x11\x10"
_ODD = re.compile("[\x01-\x1f]")


class BadRow(Error):
    """A row, counted from 1 without the header, that cannot be imported, and perhaps the column that is at fault."""

    def __init__(self, row: int, message: str, column: str | None = None) -> None:
        super().__init__(message)
        self.row = row
        self.column = column


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as one text. `first_row` counts from 1; `size_bytes` are the file's."""

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


def csv_header(file: BinaryIO, delimiter: str) -> list[str]:
    """The names in the first line."""
    line = file.readline().decode("utf-8-sig")
    while line.count('"') % 2:
        more = file.readline()
        if not more:
            raise ResultError("Line 1: a quotation mark is not closed.")
        line += more.decode()
    (fields,) = parse_csv(line.rstrip("\r\n"), delimiter, 1)
    return [field or "" for field in fields]


def csv_batches(file: BinaryIO, delimiter: str, width: int) -> Iterator[Batch]:
    """The rows of a CSV file, each checked to have `width` fields. Empty lines at its end are no rows, unless there is
    one column: then each is a NULL."""
    row = 1
    rest = b""
    while True:
        piece = file.read(BATCH_BYTES)
        chunk = rest + piece
        end = _last_row_end(chunk) if piece else len(chunk)
        whole, rest = chunk[:end], chunk[end:]
        if not piece and width > 1:
            whole = whole.rstrip(b"\r\n")
        if whole:
            batch = _csv_batch(whole, delimiter, width, row)
            row += batch.rows
            yield batch
        if not piece:
            return


def _last_row_end(chunk: bytes) -> int:
    """Where the last whole row ends: after a newline that is not within quotation marks.

    Line breaks before it stay with the row that follows, so that those at the file's end are seen together.
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
    return BadRow(row, f"It has {fields} fields, and the header has {width}.")


def _text(whole: bytes, row: int) -> str:
    """The text of whole rows; where it is no UTF-8, the row is named."""
    try:
        return whole.decode()
    except UnicodeDecodeError as error:
        before = whole[: error.start]
        at = before.count(b"\n")
        raise BadRow(row + at, f"The byte 0x{whole[error.start]:02x} is no UTF-8.") from error


def _joined(rows: list[list[str | None]], row: int, size_bytes: int) -> Batch:
    within = {each for fields in rows for field in fields if field for each in _ODD.findall(field)}
    free = [each for each in _SEPARATORS if each not in within]
    if len(free) < 3:
        raise BadRow(row, "This row and those after it use too many control characters.")
    field_separator, row_separator, null = free[:3]
    joined = row_separator.join(
        field_separator.join(null if field is None else field for field in fields) for fields in rows
    )
    return Batch(joined, len(rows), row, size_bytes, field_separator, row_separator, null)


def parse_csv(text: str, delimiter: str, row: int) -> list[list[str | None]]:
    """Rows of fields; None is an empty field without quotation marks."""
    pattern = re.compile(f"(?:{_FIELD.format(re.escape(delimiter))})({re.escape(delimiter)}|\r?\n|$)")
    rows: list[list[str | None]] = []
    fields: list[str | None] = []
    at = 0
    for match in pattern.finditer(text):
        if match.start() != at:
            raise BadRow(row + len(rows), "A quotation mark stands where none can be.")
        at = match.end()
        quoted, bare, separator = match.groups()
        fields.append(quoted.replace('""', '"') if quoted is not None else bare or None)
        if separator != delimiter:
            rows.append(fields)
            fields = []
            if not separator:
                break
    if at != len(text):
        raise BadRow(row + len(rows), "A quotation mark is not closed, or stands where none can be.")
    return rows


def ndjson_batches(file: BinaryIO, known: Sequence[str], rest: bytes = b"") -> Iterator[Batch]:
    """The lines of an NDJSON file, joined to JSON arrays' insides; a field that is not known would be lost.

    `rest` is what was read of the file already.
    """
    row = 1
    while True:
        piece = file.read(BATCH_BYTES)
        chunk = rest + piece
        end = chunk.rfind(b"\n") + 1 if piece else len(chunk)
        whole, rest = chunk[:end], chunk[end:]
        lines = [line for line in _text(whole, row).split("\n") if line.strip()]
        if lines:
            _check_fields(lines, known, row)
            yield Batch("\n".join(lines), len(lines), row, len(whole))
            row += len(lines)
        if not piece:
            return


def fields_of(line: bytes) -> list[str]:
    """The names in the first line."""
    return list(_object(_text(line, 1), 1)) if line.strip() else []


def _check_fields(lines: list[str], known: Sequence[str], row: int) -> None:
    names = frozenset(known)
    try:
        # At once, which is many times faster than one by one.
        found = json.loads("[" + ",".join(lines) + "]")
        if len(found) == len(lines) and all(isinstance(each, dict) and names.issuperset(each) for each in found):
            return
    except ValueError:
        # The line that is at fault is found below.
        found = []
    for at, line in enumerate(lines):
        for name in _object(line, row + at):
            if name not in names:
                raise BadRow(row + at, f"There is no such column in what is imported: {', '.join(known)}.", name)


def _object(line: str, row: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise BadRow(row, f"It is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise BadRow(row, "It is no JSON object.")
    return found
