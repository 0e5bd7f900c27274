"""Making a session clean again, after the answer has left.

Owns which commands undo which leftovers. Refuses to judge a statement; see `leftovers.py`.
"""

from plainsql_server.engine.connection import Connection
from plainsql_server.engine.execution import read_row_count, run_command
from plainsql_server.engine.leftovers import Leftovers

DISCARD_SEQUENCES = b"discard sequences"

# What DISCARD ALL does, except for forgetting the statements that we prepared. Advisory locks are not ours to
# undo: tenants may not take any.
_SESSION = (b"close all", b"reset all", b"unlisten *", b"discard temp", DISCARD_SEQUENCES)
_FOREIGN_PREPARED = b"select 1 from pg_catalog.pg_prepared_statements where from_sql"


async def clean(connection: Connection, leftovers: Leftovers) -> None:
    """Undoes what a statement may have left. Raises ServiceError if the engine refuses; the connection is lost then."""
    if connection.in_failed_transaction:
        await run_command(connection, b"rollback")
    if not connection.is_idle:
        # A statement that managed to leave a transaction open: nothing about this session can be trusted.
        return
    if leftovers is Leftovers.SESSION and not await _has_foreign_statements_after_reset(connection):
        connection.must_discard_sequences = False
        return
    await run_command(connection, b"discard all")
    connection.prepared.clear()
    connection.must_discard_sequences = False


async def _has_foreign_statements_after_reset(connection: Connection) -> bool:
    for command in _SESSION:
        connection.send_query(command)
    connection.send_query(_FOREIGN_PREPARED)
    connection.sync()
    return await read_row_count(connection) > 0
