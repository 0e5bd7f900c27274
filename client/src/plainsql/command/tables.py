"""Prints results as an aligned table, JSON, NDJSON or CSV.

Values are written as the service writes them, so a row looks the same in every format. In tables, control characters
are replaced by visible ones, so no value can send escape sequences to the terminal.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, TextIO
from unicodedata import combining, east_asian_width

from plainsql.result import Result, unique_names
from plainsql.values import encode_json

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SHOWN = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
_NUMBERS = frozenset(["int2", "int4", "int8", "numeric", "float4", "float8", "oid"])


def write_result(result: Result, output_format: str, out: TextIO | None = None) -> None:
    """Prints a result in one of the formats."""
    lines = {
        "table": table_lines,
        "expanded": _expanded_lines,
        "json": _json_lines,
        "ndjson": _ndjson_lines,
        "csv": _csv_lines,
    }[output_format]
    out = out or sys.stdout
    for line in lines(result):
        out.write(line + "\n")


def table_lines(result: Result) -> Iterator[str]:
    """An aligned table; nothing for a statement without columns."""
    if not result.columns:
        return
    yield from aligned(result.columns, [[cell(value) for value in row] for row in result.rows], result.types)


def _expanded_lines(result: Result) -> Iterator[str]:
    """Each row as a block with one line per column, for rows that are wider than the screen."""
    wide = max((width(name) for name in result.columns), default=0)
    for number, row in enumerate(result.rows, 1):
        yield f"-[ row {number} ]{'-' * max(0, wide - 8)}"
        for name, value in zip(result.columns, row, strict=True):
            yield f"{pad(name, wide, right=False)} | {cell(value)}"


def aligned(columns: Sequence[str], cells: Sequence[Sequence[str]], types: Sequence[str] = ()) -> Iterator[str]:
    """The lines of an aligned table. Numbers are right-aligned."""
    right = [name in _NUMBERS for name in types] or [False] * len(columns)
    widths = [max([width(name), *(width(row[at]) for row in cells)]) for at, name in enumerate(columns)]
    yield " " + " | ".join(pad(name, wide, right=False) for name, wide in zip(columns, widths, strict=True)).rstrip()
    yield "-" + "-+-".join("-" * wide for wide in widths) + "-"
    for row in cells:
        padded = (pad(text, wide, right=to_right) for text, wide, to_right in zip(row, widths, right, strict=True))
        yield " " + " | ".join(padded).rstrip()


def cell(value: Any) -> str:
    """A value in a table: one line, without control characters. NULL is shown as `NULL`, and that text as `'NULL'`."""
    if value is None:
        return "NULL"
    return "'NULL'" if value == "NULL" else visible(text_of(value))


def visible(text: str, *, keep: str = "") -> str:
    """The text with its control characters made visible, except those in `keep`."""
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else _shown(match[0]), text)


def _shown(character: str) -> str:
    return _SHOWN.get(character) or f"\\x{ord(character):02x}"


def text_of(value: Any) -> str:
    """A value as the service writes it, without quotation marks."""
    return value if isinstance(value, str) else json_of(value)


def json_of(value: Any) -> str:
    """A value as JSON, as the service writes it, with all digits."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(json_of(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_of(str(name))}:{json_of(each)}" for name, each in value.items()) + "}"
    return encode_json(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)


def _objects(result: Result) -> Iterator[str]:
    names = unique_names(result.columns)
    return (json_of(dict(zip(names, row, strict=True))) for row in result.rows)


def _json_lines(result: Result) -> Iterator[str]:
    yield "["
    rows = list(_objects(result))
    for at, row in enumerate(rows):
        yield row + ("," if at < len(rows) - 1 else "")
    yield "]"


def _ndjson_lines(result: Result) -> Iterator[str]:
    return _objects(result)


def _csv_lines(result: Result) -> Iterator[str]:
    if result.columns:
        yield csv_line(result.columns)
    for row in result.rows:
        yield csv_line([None if value is None else text_of(value) for value in row])


def csv_line(fields: Iterable[str | None]) -> str:
    """A CSV line. NULL is an empty field; the empty string is a pair of quotation marks."""
    return ",".join("" if field is None else _quoted(field) for field in fields)


def _quoted(field: str) -> str:
    if field and not any(each in field for each in ',"\r\n'):
        return field
    return '"' + field.replace('"', '""') + '"'


def pad(text: str, wide: int, *, right: bool) -> str:
    space = " " * (wide - width(text))
    return space + text if right else text + space


def width(text: str) -> int:
    """The text's width in terminal cells. East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(each) in "WF" else 0 if combining(each) else 1 for each in text)
