"""An operator's shell for tests: a directory, a cell, an organization and a database, and the real commands on them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import psycopg

from plainsql_server.control_plane import databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.rights.grants import Role
from server.tests import forks
from server.tests.control_plane.cell_state import disagreements
from server.tests.customers import added_cell
from server.tests.postgres import SUPERUSER, Postgres, as_role

# 1000 for the full size of the test of backups; as it is in CI, that takes seconds.
SIZE_MB = int(os.environ.get("PLAINSQL_TEST_BACKUP_MB", "8"))
_TIMEOUT_S = 110 + SIZE_MB
# What the owner of the directory's tables runs. All else is run with the operators' role.
_OWNERS_COMMANDS = ("migrate", "upgrade")

# What a database holds, said of each table by its content, in an order that does not depend on how it is stored.
_CHECKSUM = """
    select count(*), md5(coalesce(string_agg(md5(t::text), '' order by md5(t::text)), '')) from {} t
"""


async def _provision(dsn: str, conninfo: str) -> None:
    async with Directory.open(dsn) as directory:
        await added_cell(directory, "local", conninfo)
        organization = await organizations.create(directory, "acme", "dedicated")
        await databases.create(directory, organization.id, "main")


@dataclass(frozen=True)
class Stage:
    """One operator's world."""

    postgres: Postgres
    dsn: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def made(cls, postgres: Postgres) -> "Stage":
        dsn = postgres.fresh_directory()
        asyncio.run(_provision(dsn, postgres.conninfo))
        return cls(postgres, dsn)

    def environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
        return {**own, "PLAINSQL_DIRECTORY_DSN": self.dsn, "PLAINSQL_DIRECTORY_GRACE_MS": "0", **self.settings}

    def run(
        self, *arguments: str, exit_code: int = 0, stdin: IO[bytes] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """`plainsql-server …`, which must end with that exit code and never with a traceback."""
        return self._run(arguments, self._environment_of(arguments), exit_code, stdin)

    def run_as_operator(self, *arguments: str, exit_code: int = 0) -> "subprocess.CompletedProcess[str]":
        """The same, with the operators' role for every command."""
        return self._run(arguments, self._operators_environment(), exit_code)

    def _run(
        self, arguments: tuple[str, ...], environment: dict[str, str], exit_code: int, stdin: IO[bytes] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        ended = forks.run(arguments, environment, stdin=stdin, timeout=_TIMEOUT_S)
        assert ended.returncode == exit_code, (ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "plainsql_server", *arguments]
        return subprocess.Popen(command, env=self.environment(), **options)

    def _environment_of(self, arguments: tuple[str, ...]) -> dict[str, str]:
        """With the operators' role, for commands that need no more."""
        if arguments[0] in _OWNERS_COMMANDS or arguments[:2] == ("restore", "--directory"):
            return self.environment()
        return self._operators_environment()

    def _operators_environment(self) -> dict[str, str]:
        return replace(self, dsn=as_role(self.dsn, Role.OPERATOR)).environment()

    def names(self, database: str = "main") -> tuple[str, str, str]:
        """What a database, its owner and its reader are called on the cell."""
        rows = self.ask(
            "select d.engine_name, o.engine_name, r.engine_name from databases d"
            " join roles o on o.database_id = d.id and o.kind = 'owner'"
            " join roles r on r.database_id = d.id and r.kind = 'reader' where d.name = %s and d.state <> 'deleted'",
            database,
        )
        engine_name, owner, reader = rows[0]
        return engine_name, owner, reader

    def ask(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Rows of the directory."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, arguments)
            return cursor.fetchall() if cursor.description is not None else []

    def owner(self, database: str = "main") -> psycopg.Connection:
        """The customer's own connection, past the service."""
        engine_name, owner, _ = self.names(database)
        return self.postgres.connect(owner, engine_name)

    def reader(self, database: str = "main") -> psycopg.Connection:
        engine_name, _, reader = self.names(database)
        return self.postgres.connect(reader, engine_name)

    def admin(self, database: str = "main") -> psycopg.Connection:
        return self.postgres.connect(SUPERUSER, self.names(database)[0])

    def checksums(self, database: str = "main") -> dict[str, tuple[int, str]]:
        """Rows and checksum of every table of the customer's."""
        listed = "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname !~ '^(pg_|information)'"
        with self.admin(database) as connection:
            tables = [name for (name,) in connection.execute(listed) if not name.startswith("plainsql.")]
            found = {name: connection.execute(_CHECKSUM.format(name)).fetchone() for name in tables}
        return {name: (row[0], row[1]) for name, row in found.items() if row is not None}

    def on_cell(self) -> dict[str, set[str]]:
        """What is on the cell without this directory's knowing, be it another test's, and what it misses there."""
        return disagreements(self.dsn, self.postgres.dsn())

    def backup(self, file: Path, database: str = "main") -> Path:
        self.run("backup", "--org", "acme", database, "--output", str(file))
        return file
