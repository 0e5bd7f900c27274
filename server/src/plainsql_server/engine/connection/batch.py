"""Runs several service statements in a tenant's database in one exchange.

    answers = await run_batch(connection, [b"begin", SAFE_PATH, (b"select $1::int4", [b"1"]), b"commit"])

Errors are raised as they would be for a tenant's statement, because these statements run in the tenant's database, with
the tenant's privileges and disk space. `run_batch` never begins or commits on its own: pass the commands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg.pq import ExecStatus

from plainsql_server.core.errors import ServiceError
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.sqlstate import error_from_result

_FATAL_ERROR = int(ExecStatus.FATAL_ERROR)
_PIPELINE_SYNC = int(ExecStatus.PIPELINE_SYNC)

Row = list[bytes | None]
Own = tuple[bytes, Sequence[bytes | None]]

# Unqualified names resolve to PostgreSQL's own objects, even if the tenant has objects of the same name. Name the
# tenant's objects with their schema.
SAFE_PATH = b"set local search_path = pg_catalog, pg_temp"


@dataclass(slots=True)
class BatchResult:
    """The result of one statement: its rows, in PostgreSQL's text format."""

    rows: list[Row] = field(default_factory=list)


async def run_batch(connection: Connection, statements: Sequence[bytes | Own]) -> list[BatchResult]:
    """Runs the statements and returns their results in order.

    Raises the first error, with the statement's index; PostgreSQL skips the statements after it. The exchange is read
    to its end even then, and the connection is in a failed transaction if one was begun.
    """
    for statement in statements:
        sql, params = (statement, None) if isinstance(statement, bytes) else statement
        connection.send_query(sql, 0, params)
    connection.sync()
    answers = [BatchResult()]
    failure: ServiceError | None = None
    while connection.syncs_due:
        result = await connection.fetch()
        if result is None:
            answers.append(BatchResult())
        elif result.status == _FATAL_ERROR:
            if failure is None:
                failure = error_from_result(result)
                failure.statement_index = len(answers) - 1
        elif result.status != _PIPELINE_SYNC:
            columns = range(result.nfields)
            answers[-1].rows += [[result.get_value(row, at) for at in columns] for row in range(result.ntuples)]
    if failure is not None:
        raise failure
    return answers[: len(statements)]
