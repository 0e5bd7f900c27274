"""`plainsql import`: loads a file into a table, all rows or none.

A small file is one statement. A larger file is loaded in batches into a staging table (`plainsql.bulk.Stage`), and from
there into the target table in one transaction. If anything fails, the staging table is dropped and the target is
unchanged. Every batch has its own idempotency key, so a broken connection neither loses nor duplicates rows.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, NamedTuple

from plainsql.bulk import KEY_COLUMNS, InsertTarget, Stage, conflict_clause
from plainsql.client import Client
from plainsql.command.batches import BadRow, Batch, csv_batches, csv_header, fields_of, ndjson_batches
from plainsql.command.creating import create_table, fitting_types, in_lower_case, odd_cells
from plainsql.command.faults import (
    is_about_a_row,
    lines_of,
    locate_in_batch,
    locate_in_stage,
    sentence,
    without_sql,
)
from plainsql.command.progress import Progress
from plainsql.command.tables import visible
from plainsql.command.target import connect
from plainsql.command.terminal import say
from plainsql.command.transfers import Column, columns_for, file_format, parquet_input, table_columns
from plainsql.errors import Error, ServiceError

# One batch is read while another is in transit and a third is being stored.
_IN_FLIGHT = 3
_NAME = "select to_regclass($1)::text"
_QUOTED = "select quote_ident(name) from unnest($1::text[]) with ordinality as t (name, at) order by at"
# Autovacuum analyzes a table after as many new rows, but only minutes later.
_IS_LARGE_PART = "select reltuples <= 10 * $2::float8 from pg_class where oid = to_regclass($1)"
_ANALYZE_S = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to import, and into which columns. `rows` is the number of rows if the file states it."""

    table: str
    columns: list[Column]
    batches: Iterator[Batch]
    is_csv: bool
    rows: int | None = None
    # The ON CONFLICT clause, or nothing.
    conflict: str = ""

    @property
    def target(self) -> InsertTarget:
        return InsertTarget(self.table, [column.name for column in self.columns], self.conflict)

    def select(self, batch: Batch, only: int | None = None) -> tuple[str, list[str]]:
        """The query that splits a batch into the number of the row and the typed columns, and its parameters.

        With `only`, the query has just that column.
        """
        if not self.is_csv:
            columns = self.columns if only is None else [self.columns[only]]
            listed = ", ".join(f"{column.name_in_json} {column.type_in_json}" for column in columns)
            fields = ", ".join(column.from_json() for column in columns)
            names = ", ".join(column.name_in_json for column in columns)
            sql = (
                f"select $2::int8 + {Stage.ROW} - 1, {fields}"
                f" from rows from (json_to_recordset($1::text::json) as ({listed}))"
                f" with ordinality as lines ({names}, {Stage.ROW})"
            )
            return sql, ["[" + batch.text.replace("\n", ",") + "]", str(batch.first_row)]
        numbered = enumerate(self.columns)
        fields = ", ".join(column.from_csv(f"f[{at + 1}]") for at, column in numbered if only in (None, at))
        sql = (
            f"select n, {fields} from (select $2::int8 + ordinality - 1 as n, string_to_array(line, $3, $4) as f"
            " from string_to_table($1, $5) with ordinality as lines(line, ordinality) offset 0) as split"
        )
        return sql, [batch.text, str(batch.first_row), batch.field_separator, batch.null, batch.row_separator]


def run_import(options: argparse.Namespace) -> int:
    with connect(options) as db:
        return import_file(db, options)


def import_file(db: Client, options: argparse.Namespace) -> int:
    """Imports the file that the options name, and returns the exit code."""
    with ExitStack() as stack:
        path = None if options.file == "-" else options.file
        file = sys.stdin.buffer if path is None else stack.enter_context(open(path, "rb"))
        progress = Progress("Importing")
        plan = None
        try:
            with ExitStack() as created:
                plan = _plan(db, file, options, created)
                is_counted = plan.rows is not None or path is None
                progress.total_bytes = None if is_counted else os.fstat(file.fileno()).st_size
                progress.total_rows = plan.rows
                _load(db, plan, progress)
        except BadRow as error:
            progress.finish("Nothing was imported. Read")
            say(visible(f"{options.file}, {_described(error, file, options)}"))
            return 1
        except ServiceError as error:
            if plan is not None and error.outcome not in ("unknown", "committed"):
                progress.finish("Nothing was imported. Read")
            raise without_sql(error) from None
    progress.finish(f"Imported into {plan.table}")
    if progress.rows:
        _analyze(db, plan.table, progress.rows)
    return 0


def _analyze(db: Client, table: str, rows: int) -> None:
    """Updates the table's row estimate, which would be absent or wrong until autovacuum does it."""
    # The rows are imported, whether this works or not.
    try:
        if db.query(_IS_LARGE_PART, table, rows, timeout_s=_ANALYZE_S).value():
            db.query(f"analyze {table}", timeout_s=_ANALYZE_S)
    except (Error, KeyboardInterrupt) as error:
        reason = error.message if isinstance(error, Error) else "Interrupted."
        say(visible(f"The row estimate was not updated: {sentence(reason)}"))


def _described(error: BadRow, file: BinaryIO, options: argparse.Namespace) -> str:
    """The place of the faulty row, and what is wrong with it."""
    place, *earlier = _places(file, [error.row] if error.earlier is None else [error.row, error.earlier], options)
    column = f", column {error.column!r}" if error.column else ""
    again = f" is already {'on' if earlier[0].startswith('line') else 'in'} {earlier[0]}." if earlier else ""
    return f"{place}{column}: {error.message}{again}"


def _places(file: BinaryIO, rows: Sequence[int], options: argparse.Namespace) -> list[str]:
    """Where rows are: their lines, if the file has lines and can be read again."""
    lines: dict[int, int] = {}
    if options.file != "-" and file_format(options) != "parquet" and file.seekable():
        with suppress(OSError):
            lines = lines_of(file, rows, options)
    return [f"line {lines[row]}" if row in lines else f"row {row}" if row else "header" for row in rows]


def _plan(db: Client, file: BinaryIO, options: argparse.Namespace, created: ExitStack) -> Plan:
    """What to import. If `created` is left with an error, the table is dropped if this function created it."""
    source = _read(file, options)
    if len(set(source.names)) != len(source.names):
        raise ValueError("A column is listed twice.")
    for option, is_given in (("--primary-key", options.primary_key), ("--lower-case", options.lower_case)):
        if is_given and not options.create:
            raise ValueError(f"{option} is for a new table: it needs --create.")
    is_csv = file_format(options) == "csv"
    batches = source.batches
    is_new = options.create and not db.query(_NAME, options.table).value()
    if is_new:
        # The first batch also shows whether the file can be read at all.
        first = next(batches, None)
        batches = batches if first is None else chain([first], batches)
        created.enter_context(_created(db, options, source, first))
        if source.types is None:
            _say_why_text(file, options, source.names, first)
    known = table_columns(db, options.table)
    # PostgreSQL may have folded the name to lower case.
    table = str(db.query(_NAME, options.table).value())
    columns = columns_for(source.names, known, table)
    # A new table without a key has nothing to conflict with.
    conflict = "" if is_new and not options.primary_key else _conflict(db, options, [column.name for column in columns])
    return Plan(table, columns, batches, is_csv=is_csv, rows=source.rows, conflict=conflict)


@contextmanager
def _created(db: Client, options: argparse.Namespace, source: "_Input", first: Batch | None) -> Iterator[None]:
    """Creates the table, and says with which columns. Drops it if the block fails."""
    key = _names(options.primary_key) if options.primary_key else []
    types = source.types or fitting_types(source.names, first, is_csv=file_format(options) == "csv")
    if options.lower_case:
        types, key = in_lower_case(types), [name.lower() for name in key]
    create_table(db, options.table, types, key)
    try:
        _say_created(db, options.table, types)
        yield
    except BaseException:
        _drop_if_empty(db, options.table)
        raise


def _say_created(db: Client, name: str, types: Mapping[str, str]) -> None:
    table = db.query(_NAME, name).value()
    names = [row[0] for row in db.query(_QUOTED, list(types))]
    columns = ", ".join(f"{name} {each}" for name, each in zip(names, types.values(), strict=True))
    say(visible(f"Created table {table}: {columns}."))
    _say_how_to_write([name for name in names if name.startswith('"')])


def _say_why_text(file: BinaryIO, options: argparse.Namespace, names: Sequence[str], first: Batch | None) -> None:
    """Says which single values made a column text."""
    cells = list(odd_cells(names, first, is_csv=file_format(options) == "csv"))
    for cell, place in zip(cells, _places(file, [cell.row for cell in cells], options), strict=True):
        found = f"{options.file}, {place} has {cell.value!r}"
        say(visible(f"Column {cell.column!r} is text and not {cell.other_type}: {found}."))


def _say_how_to_write(names: list[str]) -> None:
    """Says that these names, as SQL has them, need their quotation marks."""
    if names:
        more = " To have them in lower case, import into a new table with --lower-case."
        is_folded = any(name != name.lower() for name in names)
        say(visible(f"In SQL, write these names with quotation marks: {', '.join(names)}.{more if is_folded else ''}"))


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",")]


def _conflict(db: Client, options: argparse.Namespace, names: list[str]) -> str:
    if not options.on_conflict:
        return ""
    key = [row.name for row in db.query(KEY_COLUMNS, options.table, None)]
    return " " + conflict_clause(options.on_conflict, names, key)


class _Input(NamedTuple):
    """The names of the columns; the rows; and how many rows there are, and of which types, if the file says so."""

    names: list[str]
    batches: Iterator[Batch]
    rows: int | None = None
    types: dict[str, str] | None = None


def _read(file: BinaryIO, options: argparse.Namespace) -> _Input:
    given = _names(options.columns) if options.columns else None
    input_format = file_format(options)
    if input_format == "csv":
        delimiter = options.delimiter or ("\t" if options.file.lower().endswith(".tsv") else ",")
        if len(delimiter) != 1:
            raise ValueError("The delimiter must be one character.")
        names = given or [name.strip() for name in csv_header(file, delimiter, is_assumed=not options.delimiter)]
        is_unsure = given is not None and not options.delimiter
        return _Input(names, csv_batches(file, delimiter, len(names), is_assumed=is_unsure))
    if input_format == "ndjson":
        first = file.readline()
        names = given or fields_of(first)
        return _Input(names, ndjson_batches(file, names, first))
    parquet = parquet_input(file)
    names = given or parquet.names
    types = {name: parquet.types.get(name, "text") for name in names}
    return _Input(names, ndjson_batches(parquet.lines, names), parquet.rows, types)


def _drop_if_empty(db: Client, table: str) -> None:
    """Drops the table, unless there are rows in it, which are another job's, or an error occurs."""
    together = db.transaction()
    # Nobody can insert rows from here on.
    together.add(f"lock table {table} in access exclusive mode")
    together.add(f"select 1 from {table} limit 1", expect_rows=0)
    together.add(f"drop table {table}")
    try:
        together.run()
    except Error as error:
        has_rows = isinstance(error, ServiceError) and error.code == "expectation_failed"
        say(visible(f"Table {table} stays: {sentence('there are rows in it' if has_rows else error.message)}"))
    else:
        say(visible(f"Dropped table {table} again."))


def _load(db: Client, plan: Plan, progress: Progress) -> None:
    first = next(plan.batches, None)
    if first is None:
        return
    second = next(plan.batches, None)
    if second is None:
        into, names = f"insert into {plan.table} ({plan.target.names})", plan.target.names
        rows = f"as t ({Stage.ROW}, {names}){plan.conflict}"
        _store(db, plan, first, lambda sql: f"{into} select {names} from ({sql}) {rows}")
        progress.advance(first.rows, first.size_bytes)
        return
    stage = Stage(plan.target)
    db.query(stage.create())
    try:
        _store_all(db, plan, chain((first, second), plan.batches), stage.name, progress)
        _move(db, plan, stage, progress.rows)
    except BaseException:
        # Its own error must not replace this one, which says whether the rows were imported.
        with suppress(Error):
            db.query(stage.drop())
        raise


def _store_all(db: Client, plan: Plan, batches: Iterator[Batch], stage: str, progress: Progress) -> None:
    """Stores several batches concurrently. If some fail, raises the failure with the earliest rows."""

    def store(batch: Batch) -> Batch:
        _store(db, plan, batch, lambda sql: f"insert into {stage} {sql}")
        return batch

    in_progress: list[Future[Batch]] = []
    with ThreadPoolExecutor(_IN_FLIGHT) as threads:
        try:
            for batch in batches:
                in_progress.append(threads.submit(store, batch))
                if len(in_progress) > _IN_FLIGHT:
                    stored = in_progress.pop(0).result()
                    progress.advance(stored.rows, stored.size_bytes)
            for each in in_progress:
                stored = each.result()
                progress.advance(stored.rows, stored.size_bytes)
        except BaseException:
            for each in in_progress:
                each.cancel()
            raise


def _store(db: Client, plan: Plan, batch: Batch, statement: Callable[[str], str]) -> None:
    sql, params = plan.select(batch)
    try:
        db.query(statement(sql), *params)
    except ServiceError as error:
        if error.sqlstate is None:
            raise
        found: Error = error
        # If this fails, too, the first error is the one to report.
        with suppress(Error):
            found = locate_in_batch(db, plan, batch, error, statement)
        raise found from error


def _move(db: Client, plan: Plan, stage: Stage, rows: int) -> None:
    """Moves all rows from the staging table into the target and drops the staging table, in one transaction."""
    together = db.transaction(timeout_s=Stage.MOVE_S)
    together.add(stage.copy(), expect_affected=None if plan.conflict else rows)
    together.add(stage.drop())
    try:
        together.run()
    except ServiceError as error:
        if not is_about_a_row(error):
            raise
        found: Error = error
        with suppress(Error):
            found = locate_in_stage(db, plan, stage, rows, error)
        raise found from error
