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

_FORMS = {".csv": "csv", ".tsv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}
_COLUMNS = """
select attname::text as name, format_type(atttypid, atttypmod) as type from pg_attribute
where attrelid = to_regclass($1) and attnum > 0 and not attisdropped order by attnum
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, with its type as SQL writes it."""

    name: str
    type: str


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


def parquet_lines(file: BinaryIO) -> BinaryIO:
    """A Parquet file as lines of JSON, read batch by batch."""
    source = _pyarrow_parquet().ParquetFile(file)
    return cast(BinaryIO, io.BufferedReader(_Lines(source.iter_batches())))


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
            self._rest = "".join(json_of(row) + "\n" for row in batch.to_pylist()).encode()
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
