"""Databases that a test of the utility routes may fill, break and empty.

Owns making them, and looking at them past the service, as the superuser.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
from psycopg import sql

from server.tests.end_to_end.control import answer
from server.tests.service import Service

# What the owner's objects are by the engine's own list, and what else could be left in a database.
_OWNED = """
    SELECT classid::regclass::text, pg_describe_object(classid, objid, objsubid)
    FROM pg_shdepend WHERE deptype = 'o' AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_FROM_OUTSIDE = """
    SELECT 'relation', c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid >= 16384 AND n.nspname NOT IN ('plainsql', 'pg_toast')
    UNION ALL SELECT 'schema', nspname FROM pg_namespace WHERE oid >= 16384 AND nspname <> 'plainsql'
    UNION ALL SELECT 'function', proname FROM pg_proc p WHERE oid >= 16384 AND pronamespace <> 'plainsql'::regnamespace
    UNION ALL SELECT 'type', typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE t.oid >= 16384 AND n.nspname NOT IN ('plainsql', 'pg_toast')
    UNION ALL SELECT 'large object', oid::text FROM pg_largeobject_metadata
    UNION ALL SELECT 'extension', extname FROM pg_extension WHERE oid >= 16384
    UNION ALL SELECT 'publication', pubname FROM pg_publication
    UNION ALL SELECT 'cast', oid::text FROM pg_cast WHERE oid >= 16384
"""


@dataclass(frozen=True)
class OwnDatabase:
    """A database of an organization, and how to call for it."""

    service: Service
    name: str
    key: str
    engine_name: str
    owner: str
    reader: str

    def call(self, method: str, path: str, *, key: str | None = "", **arguments: Any) -> httpx.Response:
        """A request for this database, with its key unless you pass another."""
        headers = {"X-Database": self.name, **arguments.pop("headers", {})}
        return self.service.call(method, path, key=self.key if key == "" else key, headers=headers, **arguments)

    def query(self, statement: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.call("POST", "/v1/query", json={"sql": statement, **fields}).json()
        assert answer["success"], answer
        return answer

    @contextmanager
    def as_owner(self) -> Iterator[psycopg.Connection]:
        """Past the service, with the owner's rights; whatever is made so is the owner's."""
        with self.service.engine(self.engine_name) as engine:
            engine.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(self.owner)))
            yield engine

    def objects(self) -> set[tuple[str, str]]:
        """Everything in it that is not the engine's or the service's own."""
        with self.service.engine(self.engine_name) as engine:
            return {(str(kind), str(name)) for kind, name in engine.execute(_FROM_OUTSIDE)}

    def owned(self) -> set[tuple[str, str]]:
        """What the engine says that roles own here; a new database has its schema public and default rights."""
        with self.service.engine(self.engine_name) as engine:
            return {(str(kind), str(name)) for kind, name in engine.execute(_OWNED)}

    def make_tables(self, count: int, definition: str, at_once: int = 200) -> None:
        """Many tables `t_0`, `t_1`, …, fast."""
        body = f"create table t_%s ({definition})"
        with self.as_owner() as engine:
            for first in range(0, count, at_once):
                last = min(first + at_once, count) - 1
                engine.execute(
                    f"do $$ begin for i in {first}..{last} loop execute format('{body}', i); end loop; end $$".encode()
                )


def new_database(service: Service, key: str = "") -> OwnDatabase:
    """A fresh database, of the organization that `dev` made, or of another one's key that may administer."""
    name = f"scratch-{secrets.token_hex(4)}"
    key = key or service.api_key
    answer(service, "POST", "/v1/databases", status=201, key=key, json={"name": name})
    with service.engine("plainsql_directory") as directory:
        row = directory.execute(
            "SELECT d.engine_name, o.engine_name, r.engine_name FROM databases d"
            " JOIN roles o ON o.database_id = d.id AND o.kind = 'owner'"
            " JOIN roles r ON r.database_id = d.id AND r.kind = 'reader' WHERE d.name = %s",
            (name,),
        ).fetchone()
    assert row is not None
    return OwnDatabase(service, name, key, *row)


def without_durability(service: Service) -> None:
    """Makes the service's engine fast and forgetful, for tests that make thousands of files."""
    with service.engine() as engine:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            engine.execute(f"ALTER SYSTEM SET {setting} = off".encode())
        engine.execute("SELECT pg_reload_conf()")
