"""Resets a session after the response has been sent, so that the connection can serve another request.

`session_state.py` classifies what a statement may have left behind; this module runs the commands that undo it.
"""

import random

from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import DISCARD_SEQUENCES, read_row_count, run_command
from plainsql_server.engine.connection.session_state import SessionState

# What DISCARD ALL does, except that prepared statements survive. Advisory locks need no release: tenants cannot take
# any.
_SESSION = (
    b"close all", b"set session authorization default", b"reset all", b"unlisten *", b"discard temp", DISCARD_SEQUENCES
)  # fmt: skip
# Returns a row if the session has a statement that the service did not prepare, or lacks one that it did.
_CHANGED_PREPARED = (
    b"select 1 from pg_catalog.pg_prepared_statements having pg_catalog.bool_or(from_sql)"
    b" or pg_catalog.count(*) operator(pg_catalog.<>) %d"
)
# No command undoes setseed. Without a new seed, the next request's random numbers would be predictable.
_RESEED = b"select pg_catalog.setseed(%.17f)"


async def clean(connection: Connection, session_state: SessionState) -> None:
    """Rolls back and resets whatever a statement may have left behind in the session.

    Raises ServiceError if PostgreSQL rejects a command; then the connection must be closed.
    """
    if not connection.is_idle:
        # A transaction that is open but has not failed belongs to an abandoned stream, or a statement left it open.
        session_state = session_state if connection.in_failed_transaction else SessionState.EVERYTHING
        await run_command(connection, b"rollback")
    if session_state is SessionState.SESSION and not await _has_changed_statements_after_reset(connection):
        connection.must_discard_sequences = False
        return
    await run_command(connection, b"discard all")
    await run_command(connection, _RESEED % random.random())
    connection.prepared.clear()
    connection.must_discard_sequences = False


async def _has_changed_statements_after_reset(connection: Connection) -> bool:
    for command in _SESSION:
        connection.send_query(command)
    connection.send_query(_RESEED % random.random())
    connection.send_query(_CHANGED_PREPARED % len(connection.prepared))
    connection.sync()
    # setseed returns one row; a second one comes from _CHANGED_PREPARED.
    return await read_row_count(connection) > 1
