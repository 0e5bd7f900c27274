"""Finds the row and the column that made an import fail.

PostgreSQL reports what is wrong, but not where in the file. A binary search finds the row, with statements that change
nothing.
"""

import argparse
from itertools import islice
from typing import TYPE_CHECKING

from plainsql.bulk import Stage
from plainsql.client import Client
from plainsql.command.batches import BadRow, Batch
from plainsql.errors import ServiceError

if TYPE_CHECKING:
    from plainsql.command.importing import Plan


def locate_in_batch(db: Client, plan: "Plan", batch: Batch, error: ServiceError) -> BadRow | ServiceError:
    """The first row of the batch that PostgreSQL rejects, or the error itself if it accepts every value."""
    if _fault(db, plan, batch) is None:
        return _of_constraint(error, batch.first_row) if batch.rows == 1 else error
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
        if error.sqlstate is None:
            raise
        return error
    return None


def locate_in_stage(db: Client, stage: Stage, rows: int, error: ServiceError) -> BadRow:
    """The first row that violates a constraint of the target table. Does not change the target."""
    low, high, found = 0, rows, error
    while high - low > 1:
        middle = (low + high) // 2
        attempt = _rehearse(db, stage, middle)
        if attempt is None:
            low = middle
        else:
            high, found = middle, attempt
    return _of_constraint(found, high)


def _rehearse(db: Client, stage: Stage, rows: int) -> ServiceError | None:
    """Moves the first rows in a transaction that is always rolled back. Returns the error they cause, or None."""
    together = db.transaction(timeout_s=Stage.MOVE_S)
    together.add(stage.copy(f"where {Stage.ROW} <= $1"), rows)
    together.add("select 1", expect_rows=0)
    try:
        together.run()
    except ServiceError as error:
        return None if error.code == "expectation_failed" else error
    raise AssertionError("The transaction committed although its expectation cannot hold.")


def _of_constraint(error: ServiceError, row: int) -> BadRow:
    detail = f" {error.detail}" if error.detail else ""
    return BadRow(row, error.message + "." + detail, error.column)


def line_of_object(path: str, row: int) -> int | None:
    """The line number of a row in an NDJSON file. Empty lines are not rows."""
    with open(path, "rb") as file:
        lines = (number for number, line in enumerate(file, 1) if line.strip())
        return next(islice(lines, row - 1, None), None)


def line_of_row(path: str, row: int, options: argparse.Namespace) -> int | None:
    """The line number on which a row of a CSV file begins. A row may span several lines."""
    wanted = row + (0 if options.columns else 1)
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        text, seen = "", 0
        for number, each in enumerate(file, 1):
            if not text:
                seen += 1
                if seen == wanted:
                    return number
            text = "" if (text + each).count('"') % 2 == 0 else text + each
    return None
