"""Checks of the directory: that it answers, as a server that can be written to, with the tables of this version.

Owns the words for each way of not answering.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import datetime

import psycopg
from psycopg import AsyncConnection

from plainsql_server.core.clock import now
from plainsql_server.directory.migrations import pending
from plainsql_server.operations.findings import Finding, Target, broken, good, warning

_CONNECT_TIMEOUT_S = 3
DSN = "PLAINSQL_DIRECTORY_DSN"
# What a connection failed with, in the engine's English, and what mends it. Names that operators chose are in these
# messages, too, and may be any words. {where} is what says how to connect.
_MENDS = tuple(
    (re.compile(words), mend)
    for words, mend in (
        ("password authentication failed", "Correct the password in {where}, or the role's."),
        ("no password supplied", "Put a password into {where}, or name a passfile in it."),
        ("no pg_hba.conf entry", "Add a line for this machine, role and database to pg_hba.conf; reload PostgreSQL."),
        ("pg_hba.conf rejects", "A line of pg_hba.conf refuses this machine or role: change it; reload PostgreSQL."),
        ("(?:[Pp]eer|[Ii]dent) authentication failed",
         "Run this as the system user that the role is for, or map it in pg_ident.conf."),
        ("certificate|private key|SSL ", "Correct sslmode, sslrootcert, sslcert and sslkey in {where}."),
        ("the database system is shutting down", "Start PostgreSQL again."),
        ("the database system is ", "Wait: PostgreSQL is starting or recovering, and its log says how far it is."),
        ("too many (?:clients|connections)|remaining connection slots",
         "Close what is not needed (as a superuser: `SELECT usename, count(*) FROM pg_stat_activity GROUP BY 1`), or"
         " raise max_connections and restart it."),
        ('role "[^"]*" does not exist', "Create the role, or correct the user in {where}."),
        ("not permitted to log in", "Run `ALTER ROLE … LOGIN` as a superuser."),
        ('database "[^"]*" does not exist', "Create the database with `createdb`, or correct dbname in {where}."),
        ("not currently accepting connections", "Run `ALTER DATABASE … ALLOW_CONNECTIONS true` as a superuser."),
        ("permission denied for database", "Run `GRANT CONNECT ON DATABASE … TO …` for that role."),
    )
)  # fmt: skip
_START = "Start PostgreSQL there, or correct host and port in {where}."
_SKEW_WARNING_S, _SKEW_BROKEN_S = 1.0, 10.0


async def directory(target: Target) -> AsyncIterator[Finding]:
    """Whether the directory can serve this version."""
    dsn = target.settings.directory_dsn
    try:
        connection = await AsyncConnection.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S, autocommit=True)
    except psycopg.Error as error:
        yield broken("directory", f"The directory cannot be reached: {one_line(error)}", mend_of(str(error), DSN))
        return
    async with connection:
        yield good(
            "directory", f"The directory answers: PostgreSQL {connection.info.parameter_status('server_version')}."
        )
        yield await clock("directory", connection)
        standby = await (await connection.execute("SELECT pg_is_in_recovery()")).fetchone()
        if standby == (True,):
            yield broken(
                "directory", "The directory is a standby, which cannot be written to.",
                "Point PLAINSQL_DIRECTORY_DSN at the primary; of several hosts, target_session_attrs=primary finds it.",
            )  # fmt: skip
            return
    yield await _tables(dsn)


async def _tables(dsn: str) -> Finding:
    missing = await asyncio.to_thread(pending, dsn)
    if missing is None:
        return broken(
            "directory", "The directory's tables are those of a newer version than this.",
            "Run that version, or restore a backup of the directory from before its `migrate`.",
        )  # fmt: skip
    if missing:
        names = ", ".join(revision for revision, _ in missing)
        return broken("directory", f"The directory is not migrated: {names} to come.", "Run `plainsql-server migrate`.")
    return good("directory", "Its tables are up to date.")


async def clock(check: str, connection: AsyncConnection) -> Finding:
    """How far a server's clock is from this machine's. Sessions and keys end by these clocks."""
    before = now()
    row = await (await connection.execute("SELECT clock_timestamp()")).fetchone()
    middle = before + (now() - before) / 2
    assert row is not None
    assert isinstance(row[0], datetime)
    skew_s = abs((row[0] - middle).total_seconds())
    if skew_s < _SKEW_WARNING_S:
        return good(check, f"Its clock agrees with this machine's within {skew_s:.2f} s.")
    grade = broken if skew_s >= _SKEW_BROKEN_S else warning
    return grade(
        check, f"Its clock and this machine's differ by {skew_s:.0f} s: keys and sessions end at wrong times.",
        "Run a time service (chrony, systemd-timesyncd) on both machines.",
    )  # fmt: skip


def mend_of(failure: str, where: str) -> str:
    """What to do about a connection that failed so, if `where` says how to connect."""
    return next((mend for words, mend in _MENDS if words.search(failure)), _START).format(where=where)


def one_line(error: Exception) -> str:
    """An error of the driver's on one line."""
    return " ".join(str(error).split())
