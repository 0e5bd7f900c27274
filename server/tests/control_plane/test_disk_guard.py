"""The guard of disks, on a real cell: what has grown too large is suspended, and nothing else is."""

import psycopg

from plainsql_server.control_plane import databases
from plainsql_server.control_plane.disk_guard import DiskGuard
from plainsql_server.core.observation import Observation, Reaped
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseState
from plainsql_server.directory.organizations import OrganizationRecord
from server.tests.postgres import Postgres

# An empty database has some 8 MB.
CEILING_BYTES = 12_000_000


async def test_an_oversized_database_is_suspended_until_the_operator_resumes_it(
    postgres: Postgres, directory: Directory, organization: OrganizationRecord, cell: CellRecord
) -> None:
    seen: list[Observation] = []
    guard = DiskGuard(directory, seen.append, CEILING_BYTES)
    large = await databases.create(directory, organization.id, "large")
    small = await databases.create(directory, organization.id, "small")
    await guard.look()
    assert seen == []
    with postgres.connect(large.owner_role, large.engine_name) as owner:
        owner.execute("create table t as select repeat(md5(g::text), 10) from generate_series(1, 20000) g")
    await guard.look()
    await guard.look()
    (reaped,) = seen
    assert isinstance(reaped, Reaped)
    assert (reaped.cell, reaped.what, reaped.count) == (cell.name, "size", 1)
    assert (await databases.get(directory, large.id)).state is DatabaseState.SUSPENDED
    assert (await databases.get(directory, small.id)).state is DatabaseState.READY
    async with directory.connection() as connection:
        noted = await connection.execute("select actor_kind from audit where action = 'database.suspend'")
        assert [row["actor_kind"] for row in await noted.fetchall()] == ["service"]
    with psycopg.connect(postgres.dsn(database=large.engine_name)) as admin:
        admin.execute("drop table t")
    resumed = await databases.resume(directory, await databases.get(directory, large.id))
    await guard.look()
    assert (await databases.get(directory, resumed.id)).state is DatabaseState.READY


async def test_without_a_size_limit_no_database_is_measured(directory: Directory, cell: CellRecord) -> None:
    seen: list[Observation] = []
    await DiskGuard(directory, seen.append, 0).run()
    assert seen == []
