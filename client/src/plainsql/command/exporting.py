"""`plainsql export`: saves a table or a query result to a file.

The data is written under a temporary name and renamed when it is complete; a failure removes it. CSV and NDJSON are
copied from the service byte for byte, in constant memory. Parquet is written in batches.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

from plainsql.client import Client
from plainsql.command.progress import Progress
from plainsql.command.target import connect
from plainsql.command.transfers import file_format, parquet_writer
from plainsql.errors import ServiceError
from plainsql.frames import arrow_table
from plainsql.result import Row
from plainsql.transport.protocol import StreamFormat

# Rows in one Parquet row group.
_GROUP_ROWS = 50_000


def run_export(options: argparse.Namespace) -> int:
    if bool(options.table) == bool(options.sql):
        raise ValueError("Give either --table or --sql.")
    with connect(options) as db:
        export_file(db, options)
    return 0


def export_file(db: Client, options: argparse.Namespace) -> None:
    """Exports what the options name."""
    sql = options.sql or f"select * from {options.table}"
    output_format = "csv" if options.file == "-" and not options.format else file_format(options)
    # The remaining time is shown on a terminal only.
    progress = Progress("Exporting", total_rows=_estimated_rows(db, sql) if sys.stderr.isatty() else None)
    if options.file == "-":
        if output_format == "parquet":
            raise ValueError("Parquet can't be written to standard output; give a file name.")
        _pass_on(db, sql, output_format, sys.stdout.buffer, progress, life_s=options.timeout)
    else:
        _to_file(db, sql, output_format, Path(options.file), progress, life_s=options.timeout)
    progress.finish(f"Exported to {options.file}")


def _estimated_rows(db: Client, sql: str) -> int | None:
    """PostgreSQL's estimate of the rows, or None if EXPLAIN fails; the export itself will then report the error."""
    try:
        plan = db.query(f"explain (format json) {sql}", read_only=True).value()
    except ServiceError:
        return None
    return int(plan[0]["Plan"]["Plan Rows"])


def _to_file(db: Client, sql: str, output_format: str, path: Path, progress: Progress, *, life_s: float | None) -> None:
    partial = path.with_name(f".{path.name}.part")
    try:
        if output_format == "parquet":
            _write_parquet(db, sql, partial, progress, life_s=life_s)
        else:
            with partial.open("wb") as file:
                _pass_on(db, sql, output_format, file, progress, life_s=life_s)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _pass_on(
    db: Client, sql: str, output_format: str, out: BinaryIO, progress: Progress, *, life_s: float | None
) -> None:
    is_csv = output_format == "csv"
    with db.stream_bytes(
        sql, stream_format=StreamFormat.CSV if is_csv else StreamFormat.OBJECTS, timeout_s=life_s
    ) as chunks:
        # The header is not a row. Line breaks in quoted fields are counted as rows; the number is only for display.
        header = 1 if is_csv else 0
        for chunk in chunks:
            out.write(chunk)
            progress.advance(chunk.count(b"\n") - header, len(chunk))
            header = 0


def _write_parquet(db: Client, sql: str, path: Path, progress: Progress, *, life_s: float | None) -> None:
    with db.stream(sql, timeout_s=life_s) as rows:
        writer = None
        group: list[Row] = []
        for batch in rows.batches():
            group += batch
            if len(group) >= _GROUP_ROWS:
                writer = _write_group(writer, path, rows.columns, rows.types, group)
                progress.advance(len(group), 0)
                group = []
        progress.advance(len(group), 0)
        if group or writer is None:
            writer = _write_group(writer, path, rows.columns, rows.types, group)
        writer.close()


def _write_group(writer: Any, path: Path, columns: tuple[str, ...], types: tuple[str, ...], rows: list[Row]) -> Any:
    table = arrow_table(columns, types, rows, is_part=True)
    if writer is None:
        writer = parquet_writer(path, table.schema)
    writer.write_table(table)
    return writer
