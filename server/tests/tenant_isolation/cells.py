"""A cell with an attacker and a victim on it, served by a data plane: what the tests of this folder start from.

Owns making it, on PostgreSQL 15 and on 18, with two organizations that know nothing of each other.
"""

import asyncio
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from plainsql_server.control_plane import cells, databases, keys, organizations
from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory
from server.tests import plain_http
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
        return plain_http.client(base_url=f"http://127.0.0.1:{self.node.port}", headers=headers, timeout=60)


@contextmanager
def hostile_cell(major: int, **settings: object) -> Iterator[Hostile]:
    """For the length of the block."""
    with running_postgres(major=major) as postgres:
        dsn = postgres.fresh_directory()
        (key, own), (victims_key, other) = asyncio.run(_provision(dsn, postgres))
        _make_table_space_folder(Path(postgres.socket_dir))
        with running_node(dsn, **settings) as node:
            yield Hostile(major, postgres, node, key, victims_key, own, other)


async def _provision(dsn: str, postgres: Postgres) -> list[tuple[str, Names]]:
    made = []
    async with Directory.open(dsn) as directory:
        await cells.add(directory, "local", postgres.conninfo, SUPERUSER)
        for name in ("acme", "victim"):
            organization = await organizations.create(directory, name, "dedicated")
            database = await databases.create(directory, organization.id, "main")
            _, secret = await keys.create(directory, organization.id, "test", (Scope.WRITE,))
            made.append((secret.text, Names(database.engine_name, database.owner_role, database.reader_role)))
    return made


def _make_table_space_folder(folder: Path) -> None:
    space = folder / "space"
    space.mkdir(mode=0o700)
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(space, user.pw_uid, user.pw_gid)
