"""Doctor's checks of the directory: it answers, accepts writes, is archived, and has this version's tables.

Also maps connection errors to fixes, for cells too: `fix_for(str(error), DSN)`.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import datetime

import psycopg
from psycopg import AsyncConnection

from plainsql_server.core.clock import now
from plainsql_server.directory.migrations import pending
from plainsql_server.engine.admin.measures import measure_archiving
from plainsql_server.operations.findings import Finding, Target, broken, good, warning
from plainsql_server.operations.upkeep.cell_archive import archive_state

_CONNECT_TIMEOUT_S = 3
DSN = "PLAINSQL_DIRECTORY_DSN"
# PostgreSQL's English connection errors, and how to fix each. The messages also contain names chosen by operators,
# which can be any words. {where} stands for the setting that holds the connection string.
_FIXES = tuple(
    (re.compile(words), fix)
    for words, fix in (
        ("password authentication failed", "Correct the password in {where}, or change the role's password."),
        ("no password supplied", "Add a password or a passfile to {where}."),
        ("no pg_hba.conf entry",
         "Add a line for this machine, role and database to pg_hba.conf, and reload PostgreSQL."),
        ("pg_hba.conf rejects", "A line of pg_hba.conf rejects this machine or role. Change it and reload PostgreSQL."),
        ("(?:[Pp]eer|[Ii]dent) authentication failed",
         "Run this as the system user of the same name as the role, or map the user in pg_ident.conf."),
        ("certificate|private key|SSL ", "Correct sslmode, sslrootcert, sslcert and sslkey in {where}."),
        ("the database system is shutting down", "Start PostgreSQL again."),
        ("the database system is ", "Wait: PostgreSQL is starting or recovering. Its log shows the progress."),
        ("too many (?:clients|connections)|remaining connection slots",
         "Close unneeded connections (as a superuser: `SELECT usename, count(*) FROM pg_stat_activity GROUP BY 1`), or"
         " raise max_connections and restart PostgreSQL."),
        ('role "[^"]*" does not exist', "Create the role, or correct the user in {where}."),
        ("not permitted to log in", "Run `ALTER ROLE … LOGIN` as a superuser."),
        ('database "[^"]*" does not exist', "Create the database with `createdb`, or correct dbname in {where}."),
        ("not currently accepting connections", "Run `ALTER DATABASE … ALLOW_CONNECTIONS true` as a superuser."),
        ("permission denied for database", "Run `GRANT CONNECT ON DATABASE … TO …` for the role."),
    )
)  # fmt: skip
_START = "Start PostgreSQL there, or correct host and port in {where}."
_SKEW_WARNING_S, _SKEW_BROKEN_S = 1.0, 10.0


async def directory(target: Target) -> AsyncIterator[Finding]:
    """Check the directory."""
    dsn = target.settings.directory_dsn
    try:
        connection = await AsyncConnection.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S, autocommit=True)
    except psycopg.Error as error:
        yield broken("directory", f"The directory cannot be reached: {one_line(error)}", fix_for(str(error), DSN))
        return
    async with connection:
        yield good(
            "directory", f"The directory responds: PostgreSQL {connection.info.parameter_status('server_version')}."
        )
        yield await clock("directory", connection)
        standby = await (await connection.execute("SELECT pg_is_in_recovery()")).fetchone()
        if standby == (True,):
            yield broken(
                "directory", "The directory is a standby and can't be written to.",
                "Point PLAINSQL_DIRECTORY_DSN to the primary. With several hosts, add target_session_attrs=primary.",
            )  # fmt: skip
            return
        archiving = await measure_archiving(connection)
        if target.settings.upkeep == "on" and archiving.is_archiving:
            yield archive_state("directory", archiving)
    yield await _tables(dsn)


async def _tables(dsn: str) -> Finding:
    missing = await asyncio.to_thread(pending, dsn)
    if missing is None:
        return broken(
            "directory", "The directory's tables belong to a newer version than this one.",
            "Run that version, or restore a directory backup from before its `migrate`.",
        )  # fmt: skip
    if missing:
        names = ", ".join(revision for revision, _ in missing)
        return broken("directory", f"The directory is not migrated: {names} pending.", "Run `plainsql-server migrate`.")
    return good("directory", "Its tables are up to date.")


async def clock(check: str, connection: AsyncConnection) -> Finding:
    """Compare a server's clock with this machine's. Sessions and keys expire by these clocks."""
    before = now()
    row = await (await connection.execute("SELECT clock_timestamp()")).fetchone()
    middle = before + (now() - before) / 2
    assert row is not None
    assert isinstance(row[0], datetime)
    skew_s = abs((row[0] - middle).total_seconds())
    if skew_s < _SKEW_WARNING_S:
        return good(check, f"Its clock is within {skew_s:.2f} s of this machine's.")
    grade = broken if skew_s >= _SKEW_BROKEN_S else warning
    return grade(
        check, f"Its clock and this machine's differ by {skew_s:.0f} s: keys and sessions expire at the wrong time.",
        "Run a time service (chrony, systemd-timesyncd) on both machines.",
    )  # fmt: skip


def fix_for(failure: str, where: str) -> str:
    """Say how to fix a failed connection. `where` names the setting that holds the connection string."""
    return next((fix for words, fix in _FIXES if words.search(failure)), _START).format(where=where)


def one_line(error: Exception) -> str:
    """Return a driver error as one line."""
    return " ".join(str(error).split())
