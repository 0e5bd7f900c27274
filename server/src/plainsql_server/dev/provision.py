"""Provisions a development service: the directory's schema, a cell, an organization, a database and a key.

Every step checks what already exists, so the next start completes one that was interrupted. It calls the control plane
as the operator's commands do. It runs as a separate process, because it may be stopped at any point: a fork of `dev`,
or `python -m plainsql_server.dev.provision`.
"""

import asyncio
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

import plainsql_server.directory
from plainsql_server.control_plane import cells, databases, keys, organizations
from plainsql_server.core.credential import digest, is_well_formed
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.principal import Scope
from plainsql_server.dev.folder import write_json, write_secret
from plainsql_server.directory import cells as stored_cells
from plainsql_server.directory import databases as stored_databases
from plainsql_server.directory import keys as stored_keys
from plainsql_server.directory import organizations as stored_organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.directory.sealing.keyring import Keyring, new_key

ORGANIZATION = "dev"
DATABASE = "main"
CELL = "dev"
# It has no rate limit. In the others, a loop over the rows of a first program would wait for the next minute.
_FIRST_TIER = "dedicated"
_KEY = "dev"
_SCOPES = (Scope.READ, Scope.WRITE, Scope.ADMIN)


@dataclass(frozen=True, slots=True)
class Order:
    """What to provision, and where to write the results."""

    conninfo: str
    admin_role: str
    directory_database: str
    tier: str | None
    """The organization's tier from now on. None keeps the one that it has."""
    api_key_file: str
    secrets_keys_file: str
    """The keys that seal secrets. If there is no such file, one is written."""
    result_file: str

    @property
    def dsn(self) -> str:
        return f"{self.conninfo} user={self.admin_role} dbname={self.directory_database}"


def carry_out(order: Order) -> int:
    """Provisions, and writes the result. Returns the exit code."""
    try:
        _migrate(order)
        result = asyncio.run(_provision(order))
    except ServiceError as error:
        print("\n".join(filter(None, [error.message, error.hint, error.internal_context])), file=sys.stderr)
        return 1
    write_json(Path(order.result_file), result)
    return 0


def _migrate(order: Order) -> None:
    revisions = _revisions()
    server = f"{order.conninfo} user={order.admin_role} dbname=postgres"
    with psycopg.connect(server, autocommit=True) as connection:
        known = _comment(connection, order.directory_database)
        if known == revisions:
            return
        name = sql.Identifier(order.directory_database)
        if known is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        # Imported here because it is slow (a good part of a second) and most starts have nothing to migrate.
        from plainsql_server.directory.migrations import migrate  # noqa: PLC0415

        migrate(order.dsn)
        connection.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(name, sql.Literal(revisions)))


def _comment(connection: psycopg.Connection, database: str) -> str | None:
    """The digest of revisions that the last migration stored as the database's comment. None without a database."""
    asked = "SELECT coalesce(shobj_description(oid, 'pg_database'), '') FROM pg_database WHERE datname = %s"
    row = connection.execute(asked, (database,)).fetchone()
    return row[0] if row else None


def _revisions() -> str:
    """A digest of the migrations and grants in this version of the package."""
    hashed = hashlib.sha256()
    folder = Path(plainsql_server.directory.__path__[0])
    for file in sorted([*(folder / "migrations" / "versions").glob("*.py"), *(folder / "rights").glob("*.py")]):
        hashed.update(file.name.encode() + b"\0" + file.read_bytes())
    return hashed.hexdigest()


async def _provision(order: Order) -> dict[str, str]:
    file = Path(order.api_key_file)
    async with Directory.open(order.dsn, secrets=_keyring(Path(order.secrets_keys_file))) as directory:
        await _ensure_cell(directory, order)
        organization = await _ensure_organization(directory, order.tier)
        database = await _ensure_database(directory, organization.id)
        if not await _is_good(directory, organization.id, _read_key(file)):
            write_secret(file, await _new_key(directory, organization.id) + "\n")
        return {"database": DATABASE, "engine_database": database.engine_name, "tier": organization.tier}


def _keyring(file: Path) -> Keyring:
    if not file.exists():
        write_secret(file, new_key() + "\n")
    return Keyring.of(file.read_text())


def _read_key(file: Path) -> str:
    """The key in the file, or an empty string."""
    if not file.exists():
        return ""
    # The file may have been restored with a wider mode.
    file.chmod(0o600)
    return file.read_text().strip()


async def _ensure_cell(directory: Directory, order: Order) -> None:
    cell = await stored_cells.find(directory, CELL)
    if cell is None:
        await cells.add(directory, CELL, order.conninfo, order.admin_role)
    elif cell.conninfo != order.conninfo:
        # The state folder was moved, or its socket is in a different folder than last time.
        await cells.set_address(directory, CELL, order.conninfo, order.admin_role)


async def _ensure_organization(directory: Directory, tier: str | None) -> OrganizationRecord:
    found = next(iter(await stored_organizations.find(directory, ORGANIZATION)), None)
    if found is None:
        return await organizations.create(directory, ORGANIZATION, tier or _FIRST_TIER)
    if tier is not None and found.tier != tier:
        return await organizations.set_tier(directory, found.id, tier)
    return found


async def _ensure_database(directory: Directory, organization_id: str) -> DatabaseRecord:
    found = await stored_databases.find(directory, organization_id, DATABASE)
    if found is None or found.state in (DatabaseState.CREATING, DatabaseState.FAILED):
        return await databases.create(directory, organization_id, DATABASE)
    return found


async def _new_key(directory: Directory, organization_id: str) -> str:
    await _revoke_lost_keys(directory, organization_id)
    _, secret = await keys.create(directory, organization_id, _KEY, _SCOPES)
    return secret.text


async def _is_good(directory: Directory, organization_id: str, text: str) -> bool:
    if not is_well_formed(text):
        return False
    found = await stored_keys.find_by_digest(directory, digest(text))
    return found is not None and found.revoked_at is None and found.organization_id == organization_id


async def _revoke_lost_keys(directory: Directory, organization_id: str) -> None:
    """Revokes development keys whose secret was lost because a start was killed before it was saved."""
    for key in await stored_keys.list_(directory, organization_id):
        if key.name == _KEY and key.revoked_at is None:
            await keys.revoke(directory, key.id)


if __name__ == "__main__":
    sys.exit(carry_out(Order(**json.loads(sys.argv[1]))))
