"""Transactions that span databases, in the directory: who has the baton, and what was decided.

Owns the table `spanning_transactions`. Of one organization, one record at a time is neither waiting nor freed; an index
sees to that, so that the rule survives whoever has it. A record is open until it is decided once, committed or
aborted, and is freed when every participant has done what was decided. Whoever has a record says so again and
again; one that nobody holds any more belongs to whoever takes it. All times are the directory's.
Refuses to talk to a cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from psycopg import errors

from plainsql_server.directory.connection import Directory

# The channel on which those who wait for a turn are told that the one before them is done, by organization.
TURNS = "plainsql_turns"

# Longer than anybody who lost an answer asks for what was decided.
_KEPT_S = 600
_REMOVED_AT_ONCE = 10_000


class State(StrEnum):
    """Where a transaction is. Waiting and open ones were not decided."""

    WAITING = "waiting"
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class NewRecord:
    """What is known of a transaction before its turn."""

    id: str
    organization_id: str
    gid: str
    database_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Participation:
    """One database of a transaction, by its place among them, and how its cell is reached as its admin."""

    number: int
    cell_name: str
    cell_conninfo: str
    admin_role: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A transaction whose holder is gone, decided by now, and what is to be finished."""

    id: str
    gid: str
    is_committed: bool
    participations: Sequence[Participation]


async def enter(directory: Directory, new: NewRecord, hold_s: float) -> State:
    """Stores the record: open if it is its turn at once, else waiting in line."""
    statement = """
        INSERT INTO spanning_transactions (id, organization_id, gid, database_ids, state, held_until)
        SELECT %(id)s, %(organization_id)s, %(gid)s, %(database_ids)s,
               CASE WHEN EXISTS (SELECT FROM spanning_transactions
                                 WHERE organization_id = %(organization_id)s AND freed_at IS NULL)
               THEN 'waiting' ELSE 'open' END,
               now() + %(hold_s)s * interval '1 s'
        ON CONFLICT (organization_id) WHERE state <> 'waiting' AND freed_at IS NULL DO NOTHING
        RETURNING state
    """
    values = {
        "id": new.id, "organization_id": new.organization_id, "gid": new.gid,
        "database_ids": list(new.database_ids), "hold_s": hold_s,
    }  # fmt: skip
    async with directory.connection() as connection:
        while (row := await (await connection.execute(statement, values)).fetchone()) is None:
            # Somebody was quicker by less than we could see; now we can.
            continue
    return State(row["state"])


async def advance(directory: Directory, id_: str, hold_s: float) -> State | None:
    """Opens a record that waits, if it is its turn; its state then, or None if somebody took the record away."""
    statement = """
        UPDATE spanning_transactions AS mine SET state = 'open', held_until = now() + %s * interval '1 s'
        WHERE id = %s AND state = 'waiting' AND freed_at IS NULL AND NOT EXISTS (
            SELECT FROM spanning_transactions AS other
            WHERE other.organization_id = mine.organization_id AND other.id <> mine.id AND other.freed_at IS NULL
              -- Whoever waited before us and is gone is not waited for.
              AND (other.state <> 'waiting' OR (other.number < mine.number AND other.held_until > now())))
    """
    look = "SELECT state FROM spanning_transactions WHERE id = %s AND freed_at IS NULL"
    async with directory.connection() as connection:
        try:
            if (await connection.execute(statement, (hold_s, id_))).rowcount:
                return State.OPEN
        except errors.UniqueViolation:
            # Somebody who did not wait got it in this very moment.
            return State.WAITING
        row = await (await connection.execute(look, (id_,))).fetchone()
    return None if row is None or row["state"] == State.ABORTED else State(row["state"])


async def keep(directory: Directory, id_: str, hold_s: float) -> None:
    """Holds a record for longer."""
    statement = """
        UPDATE spanning_transactions SET held_until = now() + %s * interval '1 s'
        WHERE id = %s AND freed_at IS NULL AND state <> 'aborted'
    """
    await _change(directory, statement, (hold_s, id_))


async def commit(directory: Directory, id_: str) -> bool:
    """Decides that it is committed, for ever; False if it was decided otherwise. May be asked again."""
    statement = "UPDATE spanning_transactions SET state = 'committed' WHERE id = %s AND state IN ('open', 'committed')"
    return await _change(directory, statement, (id_,))


async def free(directory: Directory, id_: str) -> None:
    """Frees what was decided, once every participant has done it."""
    statement = """
        UPDATE spanning_transactions SET freed_at = now()
        WHERE id = %s AND freed_at IS NULL AND state IN ('committed', 'aborted')
    """
    await _pass_on(directory, statement, id_)


async def end_reading(directory: Directory, id_: str) -> bool:
    """Commits and frees in one what prepared nothing; False if somebody took it away meanwhile."""
    statement = """
        UPDATE spanning_transactions SET state = 'committed', freed_at = now()
        WHERE id = %s AND state = 'open' AND freed_at IS NULL
    """
    return await _pass_on(directory, statement, id_)


async def give_up(directory: Directory, id_: str) -> None:
    """Aborts and frees in one what is prepared nowhere."""
    statement = """
        UPDATE spanning_transactions SET state = 'aborted', freed_at = now()
        WHERE id = %s AND state <> 'committed' AND freed_at IS NULL
    """
    await _pass_on(directory, statement, id_)


async def postpone(directory: Directory, id_: str, delay_s: float = 0.0) -> None:
    """Holds a record no longer than that, so that whoever finishes what others left takes it."""
    statement = """
        UPDATE spanning_transactions SET held_until = now() + %s * interval '1 s' WHERE id = %s AND freed_at IS NULL
    """
    await _change(directory, statement, (delay_s, id_))


async def take_over(directory: Directory, limit: int, claim_s: float) -> list[Unfinished]:
    """Records that nobody holds, taken by the caller for `claim_s`. What was not decided is aborted by that.

    Several may ask at once; each gets others. What only waited has begun nothing, and is freed at once: while another
    of its organization is not, it could not be kept as anything but waiting.
    """
    statement = """
        WITH taken AS (
            UPDATE spanning_transactions
            SET state = CASE state WHEN 'committed' THEN state ELSE 'aborted' END,
                freed_at = CASE state WHEN 'waiting' THEN now() END,
                held_until = now() + %s * interval '1 s'
            WHERE id IN (
                SELECT id FROM spanning_transactions WHERE freed_at IS NULL AND held_until <= now()
                ORDER BY held_until LIMIT %s FOR UPDATE SKIP LOCKED)
            RETURNING id, gid, state, database_ids, freed_at)
        SELECT id, gid, state, database_ids FROM taken WHERE freed_at IS NULL
    """
    participations = """
        SELECT p.number - 1 AS number, c.name AS cell_name, c.conninfo AS cell_conninfo, c.admin_role
        FROM unnest(%s::text[]) WITH ORDINALITY AS p (database_id, number)
        JOIN databases d ON d.id = p.database_id JOIN cells c ON c.id = d.cell_id
    """
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (claim_s, limit))).fetchall()
        found = []
        for row in rows:
            cursor = await connection.execute(participations, (row["database_ids"],))
            parts = [Participation(**part) for part in await cursor.fetchall()]
            found.append(Unfinished(row["id"], row["gid"], row["state"] == State.COMMITTED, parts))
    return found


async def strays(directory: Directory, prepared: Sequence[tuple[str, str]]) -> dict[str, bool]:
    """Those of these, by gid and database, that belong to no transaction which is not freed; whether to commit each.

    To be asked after they were seen prepared: a record is there before, and until nothing is prepared any more. What is
    prepared again after it was committed, because another server leads that had not heard of it, is committed again.
    What is in a database that the directory does not know is none of its business.
    """
    statement = """
        SELECT p.gid, EXISTS (SELECT FROM spanning_transactions s
                              WHERE s.state = 'committed' AND s.gid = regexp_replace(p.gid, '_[0-9]+$', '')
                             ) AS is_committed
        FROM unnest(%s::text[], %s::text[]) AS p (gid, engine_name)
        WHERE EXISTS (SELECT FROM databases d WHERE d.engine_name = p.engine_name)
          AND NOT EXISTS (SELECT FROM spanning_transactions s
                          WHERE s.freed_at IS NULL AND s.gid = regexp_replace(p.gid, '_[0-9]+$', ''))
    """
    gids, names = [gid for gid, _ in prepared], [name for _, name in prepared]
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (gids, names))).fetchall()
    return {row["gid"]: row["is_committed"] for row in rows}


async def delete_old(directory: Directory) -> bool:
    """Removes records that nobody will ask for any more; whether there may be more than are removed at once."""
    statement = """
        DELETE FROM spanning_transactions WHERE id IN (
            SELECT id FROM spanning_transactions WHERE freed_at < now() - %s * interval '1 s' LIMIT %s)
    """
    async with directory.connection() as connection:
        return (await connection.execute(statement, (_KEPT_S, _REMOVED_AT_ONCE))).rowcount == _REMOVED_AT_ONCE


async def _pass_on(directory: Directory, statement: str, id_: str) -> bool:
    """Whether it freed a record. Who waits in line is told; somebody who entered it in this moment looks again soon."""
    telling = f"""
        WITH freed AS ({statement} RETURNING organization_id)
        SELECT CASE WHEN EXISTS (SELECT FROM spanning_transactions AS other
                                 WHERE other.organization_id = freed.organization_id AND other.id <> %s
                                   AND other.state = 'waiting' AND other.freed_at IS NULL)
               THEN pg_notify('{TURNS}', organization_id)::text END
        FROM freed
    """
    return await _change(directory, telling, (id_, id_))


async def _change(directory: Directory, statement: str, arguments: tuple[object, ...]) -> bool:
    """Whether it changed a record."""
    async with directory.connection() as connection:
        return (await connection.execute(statement, arguments)).rowcount > 0
