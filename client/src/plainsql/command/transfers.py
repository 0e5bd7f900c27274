"""What import and export share: a file's form, a table's columns, Parquet where pyarrow is installed."""

import argparse
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from plainsql.client import Client
from plainsql.command.tables import json_of
from plainsql.errors import ResultError
from plainsql.parameters import encode_param

_FORMS = {".csv": "csv", ".tsv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}
_COLUMNS = """
select attname::text as name, format_type(atttypid, atttypmod) as type from pg_attribute
where attrelid = to_regclass($1) and attnum > 0 and not attisdropped order by attnum
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, with its type as SQL writes it, and how its values are read from a file.

    Files have values as the service writes them, so that what was exported can be imported: bytea as base64 and arrays
    as JSON's. PostgreSQL's own text of them, `\\x…` and `{…}`, is read as well.
    """

    name: str
    type: str

    @property
    def type_in_json(self) -> str:
        """As what `json_to_recordset` reads it."""
        return "text" if self.type == "bytea" else self.type

    def from_json(self) -> str:
        return _bytes_from(quoted(self.name)) if self.type == "bytea" else quoted(self.name)

    def from_csv(self, field: str) -> str:
        if self.type == "bytea":
            return _bytes_from(field)
        if self.type.endswith("[]"):
            # `[2:3]={…}` is PostgreSQL's, an array with bounds of its own.
            is_json = f"left({field}, 1) = '[' and {field} !~ '^\\[[-0-9:]+\\]'"
            record = f"json_to_record(json_build_object('a', {field}::json)) as t(a {self.type})"
            return f"case when {is_json} then (select a from {record}) else {field}::{self.type} end"
        return f"{field}::{self.type}"


def _bytes_from(text: str) -> str:
    return f"case when left({text}, 2) = '\\x' then {text}::bytea else decode({text}, 'base64') end"


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def table_columns(db: Client, table: str) -> dict[str, Column]:
    """The table's columns by name."""
    rows = db.query(_COLUMNS, table)
    if not rows:
        raise ResultError(f"There is no table {table}.")
    return {row.name: Column(row.name, row.type) for row in rows}


def file_format(options: argparse.Namespace) -> str:
    """What is asked for, or what the file's name says."""
    if options.format:
        return str(options.format)
    found = _FORMS.get(Path(options.file).suffix.lower())
    if found is None:
        raise ValueError(f"The form of {options.file!r} is not clear: say --format csv, ndjson or parquet.")
    return found


def parquet_lines(file: BinaryIO) -> tuple[BinaryIO, list[str], int]:
    """A Parquet file as lines of JSON, read batch by batch; its columns; and how many rows it has."""
    source = _pyarrow_parquet().ParquetFile(file)
    lines = cast(BinaryIO, io.BufferedReader(_Lines(source.iter_batches())))
    return lines, list(source.schema_arrow.names), int(source.metadata.num_rows)


def _line(row: dict[str, Any]) -> str:
    """A row as JSON whose values PostgreSQL reads; numbers keep their digits as text."""
    return json_of({name: encode_param(value) for name, value in row.items()})


class _Lines(io.RawIOBase):
    """Record batches as bytes of NDJSON."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            batch = next(self._batches, None)
            if batch is None:
                return 0
            self._rest = "".join(_line(row) + "\n" for row in batch.to_pylist()).encode()
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _pyarrow_parquet() -> Any:
    from importlib import import_module  # noqa: PLC0415  # an optional dependency

    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install 'plainsql[arrow]'.") from error


def parquet_writer(path: Path, schema: Any) -> Any:
    """Writes Arrow batches to a Parquet file."""
    return _pyarrow_parquet().ParquetWriter(path, schema)
