"""Statements of our own in a customer's database, several in one flush.

Owns the sending and the reading. What the engine says to them is told as it is to a customer's statement, because it
is the customer's database, rights and disk that they meet. Refuses to begin or commit by itself.
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

# Names mean the engine's own, whatever a customer has called alike; objects of theirs are named with their schema.
SAFE_PATH = b"set local search_path = pg_catalog, pg_temp"


@dataclass(slots=True)
class Answer:
    """What one statement gave back: its rows, as the engine's text."""

    rows: list[Row] = field(default_factory=list)


async def run_batch(connection: Connection, statements: Sequence[bytes | Own]) -> list[Answer]:
    """The answers, in order. Raises the first failure, with the statement's index; what follows it was not run.

    The connection is settled then, and in a failed transaction if one was begun.
    """
    for statement in statements:
        sql, params = (statement, None) if isinstance(statement, bytes) else statement
        connection.send_query(sql, 0, params)
    connection.sync()
    answers = [Answer()]
    failure: ServiceError | None = None
    while connection.syncs_due:
        result = await connection.fetch()
        if result is None:
            answers.append(Answer())
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
