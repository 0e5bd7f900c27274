"""Copies the large objects that changed between two snapshots. They are not rows of a tenant's tables, so the change
detection of `snapshot.py` does not cover them.
"""

from psycopg import AsyncConnection, sql

from plainsql_server.engine.admin.snapshot import Snapshot

_CHUNK_BYTES = 1 << 20
_FOR_WRITING = 0x20000
_OBJECTS = sql.SQL("SELECT loid FROM pg_largeobject WHERE {0} UNION SELECT oid FROM pg_largeobject_metadata WHERE {0}")
_RIGHTS = """
    SELECT CASE WHEN e.grantee = 0 THEN NULL ELSE e.grantee::regrole::text END, e.privilege_type
    FROM pg_largeobject_metadata m, aclexplode(m.lomacl) e WHERE m.oid = %s AND e.grantee <> m.lomowner
"""


async def copy_large_objects(
    earlier: Snapshot, later: Snapshot, owner: AsyncConnection, role_names: dict[str, str]
) -> None:
    """Writes large objects that may have changed to the copy, as its owner, and removes deleted ones.

    `role_names` maps the other roles that may have privileges to their names in the copy.
    """
    ended = await earlier.rows(_OBJECTS.format(earlier.ended_since()))
    begun = await later.rows(_OBJECTS.format(earlier.since()))
    for oid in sorted({row[0] for row in [*ended, *begun]}):
        there = await owner.execute("SELECT FROM pg_largeobject_metadata WHERE oid = %s", (oid,))
        if not await later.rows(sql.SQL("SELECT 1 FROM pg_largeobject_metadata WHERE oid = %s"), oid):
            if there.rowcount:
                await owner.execute("SELECT lo_unlink(%s)", (oid,))
            continue
        if not there.rowcount:
            await owner.execute("SELECT lo_create(%s)", (oid,))
        await _write(later, owner, oid)
        await _grant(later, owner, oid, role_names)


async def _write(later: Snapshot, owner: AsyncConnection, oid: int) -> None:
    opened = sql.SQL("SELECT lo_truncate64(lo_open({}, {}), 0)")
    await owner.execute(opened.format(sql.Literal(oid), sql.Literal(_FOR_WRITING)))
    offset = 0
    while True:
        read = sql.SQL("SELECT lo_get(%s::oid, %s::bigint, %s::int)")
        ((chunk,),) = await later.rows(read, oid, offset, _CHUNK_BYTES)
        if not chunk:
            return
        await owner.execute("SELECT lo_put(%s::oid, %s::bigint, %s::bytea)", (oid, offset, bytes(chunk)))
        offset += len(chunk)


async def _grant(later: Snapshot, owner: AsyncConnection, oid: int, role_names: dict[str, str]) -> None:
    wanted = {(role_names.get(role, role), right) for role, right in await later.rows(sql.SQL(_RIGHTS), oid)}
    there = set(await (await owner.execute(_RIGHTS, (oid,))).fetchall())
    for change, preposition, rights in (("REVOKE", "FROM", there - wanted), ("GRANT", "TO", wanted - there)):
        for role, right in rights:
            statement = sql.SQL(f"{change} {right} ON LARGE OBJECT {{}} {preposition} {{}}")
            await owner.execute(statement.format(sql.Literal(oid), _role(role)))


def _role(name: str | None) -> sql.Composable:
    return sql.SQL("PUBLIC") if name is None else sql.Identifier(name)
