"""Shared by import and export: file formats, table columns, and Parquet if pyarrow is installed."""

import argparse
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from plainsql.bulk import quoted
from plainsql.client import Client
from plainsql.command.tables import json_of
from plainsql.errors import ResultError
from plainsql.parameters import encode_param

_FORMATS_BY_SUFFIX = {".csv": "csv", ".tsv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}
_COLUMNS = """
select attname::text as name, format_type(atttypid, atttypmod) as type from pg_attribute
where attrelid = to_regclass($1) and attnum > 0 and not attisdropped order by attnum
"""


# By Arrow's name of the type. Unsigned integers need the next larger type.
_SQL_TYPES = {
    "bool": "bool", "int8": "int2", "int16": "int2", "int32": "int4", "int64": "int8",
    "uint8": "int2", "uint16": "int4", "uint32": "int8", "uint64": "numeric(20, 0)",
    "halffloat": "float4", "float": "float4", "double": "float8", "binary": "bytea", "large_binary": "bytea",
    "binary_view": "bytea",
    "fixed_size_binary": "bytea", "date32": "date", "date64": "date", "time32": "time", "time64": "time",
    "duration": "interval",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """A table column with its SQL type, and how its values are read from a file.

    Files hold values as the service writes them, so an exported file can be imported: bytea as base64, arrays as JSON.
    PostgreSQL's own text formats, `\\x…` and `{…}`, are accepted, too.
    """

    name: str
    type: str
    # Its name in the file, if it is another.
    field: str | None = None

    @property
    def name_in_json(self) -> str:
        """The quoted name of its field."""
        return quoted(self.field or self.name)

    @property
    def type_in_json(self) -> str:
        """The type that `json_to_recordset` reads the column as."""
        return "text" if self.type == "bytea" else self.type

    def from_json(self) -> str:
        return _bytes_from(self.name_in_json) if self.type == "bytea" else self.name_in_json

    def from_csv(self, field: str) -> str:
        if self.type == "bytea":
            return _bytes_from(field)
        if self.type.endswith("[]"):
            # `[2:3]={…}` is PostgreSQL's text of an array with explicit bounds, not JSON.
            is_json = f"left({field}, 1) = '[' and {field} !~ '^\\[[-0-9:]+\\]'"
            record = f"json_to_record(json_build_object('a', {field}::json)) as t(a {self.type})"
            return f"case when {is_json} then (select a from {record}) else {field}::{self.type} end"
        return f"{field}::{self.type}"


def _bytes_from(text: str) -> str:
    return f"case when left({text}, 2) = '\\x' then {text}::bytea else decode({text}, 'base64') end"


def table_columns(db: Client, table: str) -> dict[str, Column]:
    """The table's columns by name."""
    rows = db.query(_COLUMNS, table)
    if not rows:
        raise ResultError(f"Table {table} doesn't exist. To create it, use plainsql import with --create.")
    return {row.name: Column(row.name, row.type) for row in rows}


def columns_for(names: Sequence[str], known: Mapping[str, Column], table: str) -> list[Column]:
    """The columns that a file's names mean: by their exact name, or by the only one that differs in case alone."""
    found = []
    for name in names:
        near = [column for column in known.values() if column.name.lower() == name.lower()]
        if name not in known and len(near) != 1:
            raise ValueError(f"Table {table} has no column {name!r}. Its columns are {', '.join(known)}.")
        found.append(known[name] if name in known else replace(near[0], field=name))
    if len({column.name for column in found}) != len(found):
        raise ValueError("A column is listed twice.")
    return found


def file_format(options: argparse.Namespace) -> str:
    """The format from --format, or from the file's name."""
    if options.format:
        return str(options.format)
    found = _FORMATS_BY_SUFFIX.get(Path(options.file).suffix.lower())
    if found is None:
        raise ValueError(f"Can't tell the format of {options.file!r}. Give --format csv, ndjson or parquet.")
    return found


class ParquetInput(NamedTuple):
    """A Parquet file as NDJSON, read in batches; its columns; their SQL types; its number of rows."""

    lines: BinaryIO
    names: list[str]
    types: dict[str, str]
    rows: int


def parquet_input(file: BinaryIO) -> ParquetInput:
    """Opens a Parquet file."""
    source = _pyarrow_parquet().ParquetFile(file)
    lines = cast(BinaryIO, io.BufferedReader(_Lines(source.iter_batches())))
    types = {field.name: sql_type(field.type) for field in source.schema_arrow}
    return ParquetInput(lines, list(source.schema_arrow.names), types, int(source.metadata.num_rows))


def sql_type(arrow_type: Any) -> str:
    """The SQL type for an Arrow type: text for those without a counterpart."""
    kinds = import_module("pyarrow").types
    if kinds.is_dictionary(arrow_type):
        return sql_type(arrow_type.value_type)
    if kinds.is_decimal(arrow_type):
        precision, scale = arrow_type.precision, arrow_type.scale
        return f"numeric({precision}, {scale})" if 0 <= scale <= precision else "numeric"
    if kinds.is_timestamp(arrow_type):
        return "timestamp" if arrow_type.tz is None else "timestamptz"
    if kinds.is_list(arrow_type) or kinds.is_large_list(arrow_type) or kinds.is_fixed_size_list(arrow_type):
        element = sql_type(arrow_type.value_type)
        # An array of PostgreSQL has rows of equal length; a list of lists need not.
        return "jsonb" if element == "jsonb" or element.endswith("[]") else f"{element}[]"
    if kinds.is_struct(arrow_type) or kinds.is_map(arrow_type):
        return "jsonb"
    name = re.sub(r"[[(].*", "", str(arrow_type))
    return _SQL_TYPES.get(name) or ("uuid" if "arrow.uuid" in str(arrow_type) else "text")


def _line(row: dict[str, Any]) -> str:
    """A row as JSON that PostgreSQL can read. Numerics are sent as text, to keep all digits."""
    return json_of({name: encode_param(value) for name, value in row.items()})


class _Lines(io.RawIOBase):
    """Arrow record batches as a readable stream of NDJSON."""

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
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError("Parquet requires pyarrow: pip install 'plainsql[arrow]'.") from error


def parquet_writer(path: Path, schema: Any) -> Any:
    """A writer of Arrow tables to a Parquet file."""
    return _pyarrow_parquet().ParquetWriter(path, schema)
