"""Finds the row and the column that made an import fail.

PostgreSQL reports what is wrong, but not where in the file. If the file has the same key twice, one query finds both
rows. Otherwise, a binary search finds the row, with statements that change nothing.
"""

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from plainsql.bulk import KEY_COLUMNS, Stage, quoted
from plainsql.client import Client
from plainsql.command.batches import BadRow, Batch
from plainsql.command.transfers import file_format
from plainsql.errors import ServiceError

if TYPE_CHECKING:
    from plainsql.command.importing import Plan

_UNIQUE_VIOLATION = "23505"
# ON CONFLICT DO UPDATE met a row twice.
_CARDINALITY_VIOLATION = "21000"
# Classes of errors that reading a value can cause. A timeout or a lost connection says nothing about the value.
_OF_VALUES = ("0A", "22", "23", "42", "P0")


def is_about_a_row(error: ServiceError) -> bool:
    """Whether a row caused the error: its values, a constraint, or a key that the file has twice."""
    state = error.sqlstate or ""
    return state == _CARDINALITY_VIOLATION or state.startswith(("22", "23"))


def locate_in_batch(
    db: Client, plan: "Plan", batch: Batch, error: ServiceError, statement: Callable[[str], str]
) -> BadRow | ServiceError:
    """The first row of the batch that PostgreSQL rejects, or the error itself if no row is to blame."""
    if _fault(db, plan, batch) is not None:
        return _bad_value(db, plan, batch, error)
    if not is_about_a_row(error):
        return error

    def rehearse(rows: int) -> ServiceError | None:
        sql, params = plan.select(batch.part(0, rows))
        return _rehearse(db, statement(sql), params)

    sql, params = plan.select(batch)
    source = f"({sql}) as t ({Stage.ROW}, {plan.target.names})"
    twice = _key_in_file_twice(db, plan, source, params, error)
    return twice or _first_violation(batch.first_row, batch.rows, rehearse, error)


def _bad_value(db: Client, plan: "Plan", batch: Batch, error: ServiceError) -> BadRow:
    """The first row with a value that does not fit its column."""
    low, high = 0, batch.rows
    while high - low > 1:
        middle = (low + high) // 2
        if _fault(db, plan, batch.part(low, middle)) is not None:
            high = middle
        else:
            low = middle
    row = batch.part(low, high)
    for at, column in enumerate(plan.columns):
        found = _fault(db, plan, row, only=at)
        if found is not None:
            return BadRow(row.first_row, found.message, column.name)
    return BadRow(row.first_row, error.message)


def _fault(db: Client, plan: "Plan", batch: Batch, only: int | None = None) -> ServiceError | None:
    sql, params = plan.select(batch, only)
    names = [f"c{at}" for at in range(len(plan.columns) if only is None else 1)]
    counted, aliases = ", ".join(f"count({name})" for name in names), ", ".join(names)
    try:
        db.query(f"select {counted} from ({sql}) as t (n, {aliases})", *params, read_only=True)
    except ServiceError as error:
        if (error.sqlstate or "")[:2] not in _OF_VALUES:
            raise
        return error
    return None


def locate_in_stage(db: Client, plan: "Plan", stage: Stage, rows: int, error: ServiceError) -> BadRow | ServiceError:
    """The first row that violates a constraint of the target table. Does not change the target."""
    twice = _key_in_file_twice(db, plan, stage.name, [], error)
    copy = stage.copy(f"where {Stage.ROW} <= $1")
    return twice or _first_violation(1, rows, lambda count: _rehearse(db, copy, [count]), error)


def _key_in_file_twice(
    db: Client, plan: "Plan", source: str, params: Sequence[Any], error: ServiceError
) -> BadRow | None:
    """The first row whose key an earlier row has, too, among the rows of `source`, which is SQL."""
    if error.sqlstate not in (_UNIQUE_VIOLATION, _CARDINALITY_VIOLATION):
        return None
    key = [row.name for row in db.query(KEY_COLUMNS, plan.table, error.constraint)]
    if not key or not set(key) <= set(plan.target.columns):
        return None
    names = list(map(quoted, key))
    values = ", ".join(f"left({name}::text, 100)" for name in names)
    condition = " and ".join(f"{name} is not null" for name in names)
    first = f"min({Stage.ROW}) over (partition by {', '.join(names)})"
    numbered = f"select {Stage.ROW} as n, {first} as earlier, array[{values}] as key from {source} where {condition}"
    sql = f"select n, earlier, key from ({numbered}) as numbered where n > earlier order by n limit 1"
    again = db.query(sql, *params, read_only=True, timeout_s=Stage.MOVE_S).first()
    if again is None:
        return None
    row, earlier, texts = again
    shown = ", ".join(f"{name}={text}" for name, text in zip(key, texts, strict=True))
    return BadRow(row, f"The key {shown}", earlier=earlier)


def _first_violation(
    first_row: int, rows: int, rehearse: Callable[[int], ServiceError | None], error: ServiceError
) -> BadRow | ServiceError:
    """The first of these rows that violates a constraint. `rehearse(count)` tries to insert the first `count` rows."""
    low, high, found = 0, rows, error
    while high - low > 1:
        middle = (low + high) // 2
        attempt = rehearse(middle)
        if attempt is None:
            low = middle
        else:
            high, found = middle, attempt
    # A deferred constraint is checked by a commit alone, so no row is known to violate it.
    if high == rows > 1 and rehearse(high) is None:
        return error
    return _of_constraint(found, first_row + high - 1)


def _rehearse(db: Client, sql: str, params: Sequence[Any]) -> ServiceError | None:
    """Runs a statement in a transaction that is always rolled back. Returns the error that a row causes, or None."""
    together = db.transaction(timeout_s=Stage.MOVE_S)
    together.add(sql, *params)
    together.add("select 1", expect_rows=0)
    try:
        together.run()
    except ServiceError as error:
        if error.code == "expectation_failed":
            return None
        if not is_about_a_row(error):
            raise
        return error
    raise AssertionError("The transaction committed although its expectation cannot hold.")


def without_sql(error: ServiceError) -> ServiceError:
    """The error without the statement, which is ours and not the user's."""
    error.sql = error.earlier_sql = error.position = error.statement_index = None
    return error


def _of_constraint(error: ServiceError, row: int) -> BadRow:
    detail = f" {error.detail}" if error.detail else ""
    return BadRow(row, sentence(error.message) + detail, error.column)


def sentence(message: str) -> str:
    """The message with a full stop. PostgreSQL's have none, those of the service have one."""
    return message.removesuffix(".") + "."


def lines_of(file: BinaryIO, rows: Collection[int], options: argparse.Namespace) -> dict[int, int]:
    """The numbers of the lines on which these rows of a CSV or NDJSON file begin. Keeps the file's position."""
    is_csv = file_format(options) == "csv"
    starts = _starts_of_rows(file) if is_csv else (at for at, line in enumerate(file, 1) if line.strip())
    first = 0 if is_csv and not options.columns else 1
    position = file.tell()
    try:
        file.seek(0)
        numbered = islice(enumerate(starts, first), max(rows, default=0) + 1 - first)
        return {row: line for row, line in numbered if row in rows}
    finally:
        file.seek(position)


def _starts_of_rows(file: BinaryIO) -> Iterator[int]:
    """The lines on which the rows of a CSV file begin. A row may span several lines."""
    is_within = False
    for number, line in enumerate(file, 1):
        if not is_within:
            yield number
        is_within ^= line.count(b'"') % 2 == 1
