"""A cell with an attacker and a victim on it, served by a data plane: what the tests of this folder start from.

Owns making it, on PostgreSQL 15 and on 18, with two organizations that know nothing of each other.
"""

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg

from server.tests.cell import new_cell
from server.tests.load import Node, running_node
from server.tests.postgres import SUPERUSER, Postgres, running_postgres


@dataclass(frozen=True)
class Names:
    """A database on the cell."""

    database: str
    owner: str
    reader: str


@dataclass(frozen=True)
class Hostile:
    """A cell, a data plane, and two organizations: `acme` attacks, `victim` is attacked."""

    major: int
    postgres: Postgres
    node: Node
    key: str
    victims_key: str
    own: Names
    other: Names

    @property
    def folder(self) -> Path:
        return Path(self.postgres.socket_dir)

    def fill(self, text: str, own: Names | None = None) -> str:
        """A probe's text with this cell's names in it."""
        own = own or self.own
        values = {
            "database": own.database, "owner": own.owner, "reader": own.reader,
            "other_database": self.other.database, "other_owner": self.other.owner, "other_reader": self.other.reader,
            "admin": SUPERUSER, "folder": str(self.folder),
        }  # fmt: skip
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def is_true(self, query: str, database: str) -> bool:
        """What the superuser is answered."""
        with self.postgres.connect(database=database) as admin:
            return admin.execute(query.encode()).fetchone() == (True,)

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.node.port}", headers=headers, timeout=60)


@contextmanager
def hostile_cell(major: int, **settings: object) -> Iterator[Hostile]:
    """For the length of the block."""
    with running_postgres(major=major) as postgres:
        cell = new_cell(postgres, postgres.conninfo)
        victims_key = _victim(cell.directory_dsn)
        own, other = _names(cell.directory_dsn, "acme"), _names(cell.directory_dsn, "victim")
        _make_table_space_folder(Path(postgres.socket_dir))
        with running_node(cell.directory_dsn, **settings) as node:
            yield Hostile(major, postgres, node, cell.key, victims_key, own, other)


def _victim(dsn: str) -> str:
    def operate(*arguments: str) -> str:
        command = [sys.executable, "-m", "plainsql_server", *arguments]
        environment = {**os.environ, "PLAINSQL_DIRECTORY_DSN": dsn}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    operate("org", "create", "victim", "--tier", "dedicated")
    operate("database", "create", "--org", "victim", "main")
    return operate("key", "create", "--org", "victim", "--name", "test", "--scope", "write")


def _names(dsn: str, organization: str) -> Names:
    asked = """
        select d.engine_name, r.engine_name from databases d
        join organizations o on o.id = d.organization_id join roles r on r.database_id = d.id
        where o.name = %s order by r.kind
    """
    with psycopg.connect(dsn) as directory:
        (database, owner), (_, reader) = directory.execute(asked, (organization,)).fetchall()
    return Names(database, owner, reader)


def _make_table_space_folder(folder: Path) -> None:
    space = folder / "space"
    space.mkdir(mode=0o700)
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(space, user.pw_uid, user.pw_gid)
