"""Making a session clean again, after the answer has left.

Owns which commands undo which session_state. Refuses to judge a statement; see `session_state.py`.
"""

import random

from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import DISCARD_SEQUENCES, read_row_count, run_command
from plainsql_server.engine.connection.session_state import SessionState

# What DISCARD ALL does, except for forgetting the statements that we prepared. Advisory locks are not ours to
# undo: tenants may not take any.
_SESSION = (
    b"close all", b"set session authorization default", b"reset all", b"unlisten *", b"discard temp", DISCARD_SEQUENCES
)  # fmt: skip
# A row if there is a statement that we did not prepare, or one that we did is gone.
_CHANGED_PREPARED = (
    b"select 1 from pg_catalog.pg_prepared_statements having pg_catalog.bool_or(from_sql)"
    b" or pg_catalog.count(*) operator(pg_catalog.<>) %d"
)
# No command forgets what setseed did; the next one who asks for random numbers must not know them.
_RESEED = b"select pg_catalog.setseed(%.17f)"


async def clean(connection: Connection, session_state: SessionState) -> None:
    """Undoes what a statement may have left. Raises ServiceError if the engine refuses; the connection is lost then."""
    if not connection.is_idle:
        # One that has not failed is a stream's that nobody reads any more, or what a statement managed to leave open.
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
    # One row is that of setseed.
    return await read_row_count(connection) > 1
