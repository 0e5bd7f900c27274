"""Idempotency records: what was done under an idempotency key, stored in the tenant's database. Also the
limit on the size of a recorded answer.

A record must be written in the same transaction as the work, and so by the tenant's role, but to tables that the tenant
cannot write. So the tables in the schema `plainsql` belong to the cell's admin. SECURITY DEFINER functions access them,
and require a secret that only the service knows. The database stores a hash of it.

A request claims its key before its statements (`claim`) and stores its response before the commit (`finish`).

Nothing here reads the tables in a serializable transaction. Keys share index pages, so under SSI, requests with
different keys would conflict. Claiming and finishing therefore only insert, each into its own table, and lookups run in
a READ COMMITTED transaction of their own.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psycopg import AsyncConnection, sql
from psycopg.pq.abc import PGresult

from plainsql_server.core.errors import (
    ConflictError,
    EngineError,
    InternalError,
    LimitError,
    RequestError,
    ServiceError,
)
from plainsql_server.core.result import Result
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import fail
from plainsql_server.engine.connection.queries import ask

KEPT_HOURS = 24
_RETRY_AFTER_MS = 100
# How many old records one purge statement removes: some milliseconds of work.
_PURGED_AT_ONCE = 1_000

_IN_PROGRESS = "PLS01"
_RECORDED = "PLS02"
_QUERY_CANCELED = "57014"
_WRONG_SECRET = "PLS03"
_SEEN = "PLS04"
_NO_SCHEMA = "3F000"

# Seeds of the advisory locks on a key or request id. Seed 0 serializes the requests that use one key. Running requests
# hold a shared lock with _RUNS, and lookups serialize with _LOOKS while they check for it.
_RUNS = 1
_LOOKS = 2

# Without a search_path of their own, the functions could be made to call a tenant's functions.
_DEFINER = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp"
_TABLES = """
    CREATE SCHEMA IF NOT EXISTS plainsql;
    CREATE TABLE IF NOT EXISTS plainsql.secrets (hash bytea NOT NULL);
    CREATE TABLE IF NOT EXISTS plainsql.requests (
        key text PRIMARY KEY,
        request_id text NOT NULL,
        body_hash bytea NOT NULL,
        claimed_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX IF NOT EXISTS requests_request_id ON plainsql.requests (request_id);
    CREATE INDEX IF NOT EXISTS requests_claimed_at ON plainsql.requests (claimed_at);
    CREATE TABLE IF NOT EXISTS plainsql.responses (
        key text PRIMARY KEY,
        body bytea NOT NULL,
        finished_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
"""
_FUNCTIONS = f"""
    CREATE OR REPLACE FUNCTION plainsql.check_secret(sent text) RETURNS void {_DEFINER} AS $$
    BEGIN
        IF NOT EXISTS (SELECT FROM plainsql.secrets WHERE hash = sha256(sent::bytea)) THEN
            RAISE SQLSTATE '{_WRONG_SECRET}' USING MESSAGE = 'this function is the service''s';
        END IF;
    END $$;

    CREATE OR REPLACE FUNCTION plainsql.claim(secret text, key text, request_id text, body_hash bytea)
    RETURNS void {_DEFINER} AS $$
    BEGIN
        PERFORM plainsql.check_secret(secret);
        IF NOT pg_try_advisory_xact_lock(hashtextextended(claim.key, 0)) THEN
            RAISE SQLSTATE '{_IN_PROGRESS}' USING MESSAGE = 'in progress';
        END IF;
        -- So that whoever knows its key or its id can see that it runs. Ids may be the client's, and need not differ.
        -- Who looks has these for a moment, and is waited for.
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(claim.key, {_RUNS}));
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(claim.request_id, {_RUNS}));
        INSERT INTO plainsql.requests VALUES (claim.key, claim.request_id, claim.body_hash) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE SQLSTATE '{_RECORDED}' USING MESSAGE = 'recorded';
        END IF;
    END $$;

    CREATE OR REPLACE FUNCTION plainsql.finish(secret text, key text, body bytea) RETURNS void {_DEFINER} AS $$
    BEGIN
        PERFORM plainsql.check_secret(secret);
        INSERT INTO plainsql.responses VALUES (finish.key, finish.body);
    END $$;

    CREATE OR REPLACE FUNCTION plainsql.look_up(secret text, wanted text)
    RETURNS TABLE (in_progress boolean, body_hash bytea, body bytea, finished_at timestamptz) {_DEFINER} AS $$
    BEGIN
        PERFORM plainsql.check_secret(secret);
        -- One who looks after the other: they must not take each other for the request. Looking at pg_locks instead
        -- would keep the locks of all customers from everybody.
        PERFORM pg_advisory_xact_lock(hashtextextended(wanted, {_LOOKS}));
        -- Before the tables, and each statement with a snapshot of its own: whoever no longer holds the lock when
        -- we look has committed for all to see, or never will.
        BEGIN
            in_progress := NOT pg_try_advisory_xact_lock(hashtextextended(wanted, {_RUNS}));
            RAISE SQLSTATE '{_SEEN}';
        EXCEPTION WHEN SQLSTATE '{_SEEN}' THEN
            -- Gives back what was taken, before the next one may look: at its end, a transaction does so in any order.
            NULL;
        END;
        SELECT r.body_hash, s.body, s.finished_at INTO body_hash, body, finished_at
        FROM plainsql.requests r JOIN plainsql.responses s ON s.key = r.key
        WHERE (r.key = wanted OR r.request_id = wanted) AND r.claimed_at > now() - interval '{KEPT_HOURS} hours'
        ORDER BY r.key = wanted DESC LIMIT 1;
        RETURN NEXT;
    END $$;

    CREATE OR REPLACE FUNCTION plainsql.purge(secret text) RETURNS bigint {_DEFINER} AS $$
    DECLARE
        purged bigint;
    BEGIN
        PERFORM plainsql.check_secret(secret);
        WITH old AS (
            SELECT r.key FROM plainsql.requests r WHERE r.claimed_at <= now() - interval '{KEPT_HOURS} hours'
            LIMIT {_PURGED_AT_ONCE} FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM plainsql.responses s USING old WHERE s.key = old.key
        )
        DELETE FROM plainsql.requests r USING old WHERE r.key = old.key;
        GET DIAGNOSTICS purged = ROW_COUNT;
        RETURN purged;
    END $$;
"""
# Identifies the version of the functions in a database. It covers the whole SQL text, comments included: any change to
# _FUNCTIONS makes existing databases outdated until `renew` runs.
EDITION = hashlib.sha256(_FUNCTIONS.encode()).hexdigest()[:12]
# Identifies the version of the whole schema, which new databases are copied with.
SCHEMA_EDITION = hashlib.sha256((_TABLES + _FUNCTIONS).encode()).hexdigest()[:12]
_GRANT = "GRANT USAGE ON SCHEMA plainsql TO {}"
_SECRET = "INSERT INTO plainsql.secrets SELECT {0} WHERE NOT EXISTS (SELECT FROM plainsql.secrets WHERE hash = {0})"

_CLAIM = b"select plainsql.claim($1, $2, $3, $4)"
_FINISH = b"select plainsql.finish($1, $2, $3)"
_LOOK_UP = b"""
    select in_progress, body_hash, body,
        pg_catalog.to_char(pg_catalog.timezone('UTC', finished_at), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
    from plainsql.look_up($1, $2)
"""
_PURGE = b"select plainsql.purge($1)"

# READ COMMITTED: in a serializable transaction, a lookup would conflict with requests for other keys.
_BEGIN_LOOK_UP = b"begin isolation level read committed read only"
_BEGIN_PURGE = b"begin isolation level read committed read write"

# Records take the tenant's disk space, and a client that repeats a write needs no larger response.
MAX_BODY_BYTES = 1024 * 1024

Query = tuple[bytes, int, Sequence[bytes]]


class AlreadyRecorded(Exception):
    """The key was used before. Look up its record to decide what to return."""


@dataclass(slots=True)
class Record:
    """The record of one request, written in the transaction that does its work."""

    secret: str
    key: str
    request_id: str
    body_hash: bytes
    render: Callable[[Sequence[Result]], bytes]
    # The response as recorded; exactly these bytes must be sent.
    body: bytes = b""

    def claim(self) -> Query:
        """The statement that claims the key. If it fails, PostgreSQL skips everything after it in the same exchange."""
        hash_ = b"\\x" + self.body_hash.hex().encode()
        return _CLAIM, 0, [self.secret.encode(), self.key.encode(), self.request_id.encode(), hash_]

    def finish(self, results: Sequence[Result]) -> Query:
        """The statement that records the response. Raises LimitError if the response is too large."""
        self.body = self.render(results)
        if len(self.body) > MAX_BODY_BYTES:
            raise LimitError(
                "result_too_large",
                f"The response to a request with an idempotency key is limited to {MAX_BODY_BYTES} bytes.",
                hint="Return fewer rows, or read them in a separate request.",
            )
        return _FINISH, 0, [self.secret.encode(), self.key.encode(), b"\\x" + self.body.hex().encode()]


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about a key or a request id. Without `body`, nothing has been committed under it so far."""

    in_progress: bool
    body_hash: bytes = b""
    body: bytes | None = None
    finished_at: str | None = None


async def create_schema(database: AsyncConnection) -> None:
    """Creates the schema in a database, which no role can use yet. Can be run again."""
    await database.execute(sql.SQL(_TABLES + _FUNCTIONS))


def access_for(roles: Sequence[str], secret: str) -> list[sql.Composed]:
    """Statements that let a database's roles use the schema, with the secret. They can be run again."""
    hash_ = sql.Literal(hashlib.sha256(secret.encode()).digest())
    grantees = sql.SQL(", ").join(map(sql.Identifier, roles))
    return [sql.SQL(_GRANT).format(grantees), sql.SQL(_SECRET).format(hash_)]


async def renew(database: AsyncConnection) -> None:
    """Replaces the functions with this version's, in a database that has the schema. Can be run again."""
    cursor = await database.execute("SELECT FROM pg_class WHERE oid = to_regclass('plainsql.responses')")
    if cursor.rowcount:
        await database.execute(sql.SQL(_FUNCTIONS))


async def claim_failure(connection: Connection, result: PGresult) -> ServiceError | AlreadyRecorded:
    """Reads the exchange to its end and returns why the key could not be claimed."""
    try:
        await fail(connection, result)
    except ServiceError as error:
        sqlstate = error.diagnosis.sqlstate
        if sqlstate == _IN_PROGRESS:
            return ConflictError(
                "request_in_progress",
                "A request with this idempotency key is still running.",
                retryable=True,
                retry_after_ms=_RETRY_AFTER_MS,
            )
        if sqlstate == _RECORDED:
            return AlreadyRecorded()
        if error.retryable or isinstance(error, EngineError) or sqlstate == _QUERY_CANCELED:
            return error
        if sqlstate == _NO_SCHEMA:
            return RequestError(
                "idempotency_unavailable",
                "The database is too old for idempotency keys. Copy its data into a new one.",
            )
        return InternalError(f"claiming an idempotency key failed: {sqlstate} {error.message}")


async def look_up(connection: Connection, secret: str, wanted: str) -> Found:
    """Returns what is recorded under a key or a request id."""
    rows = await ask(connection, _LOOK_UP, [secret.encode(), wanted.encode()], begin=_BEGIN_LOOK_UP)
    in_progress, body_hash, body, finished_at = rows[0]
    if finished_at is None or body_hash is None or body is None:
        return Found(in_progress == b"t")
    return Found(False, _bytea(body_hash), _bytea(body), finished_at.decode())


async def purge(connection: Connection, secret: str) -> None:
    """Removes all records older than KEPT_HOURS."""
    while True:
        ((purged,),) = await ask(connection, _PURGE, [secret.encode()], begin=_BEGIN_PURGE)
        if int(purged or 0) < _PURGED_AT_ONCE:
            return


def _bytea(text: bytes) -> bytes:
    return bytes.fromhex(text[2:].decode())
