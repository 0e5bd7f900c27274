"""Spanning transactions in the directory: which one holds its organization's spanning lock, and what was decided.

Reads and writes the table `spanning_transactions`. Per organization, at most one record is neither waiting nor freed; a
unique index enforces this, so the rule holds even if a process crashes. A record is open until it is decided once, as
committed or aborted, and is freed when every participant has carried out the decision. A process that holds a record
renews its lease; when the lease runs out, any process can take the record over. All times are the directory's.

When a lock is free, the directory notifies every process through `channel.py`, and `SpanningNotifier` wakes the
transactions that wait for it.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from psycopg import errors

from plainsql_server.directory.connection import Directory

# The notification channel that announces, by organization, that the spanning lock is free. Its name is that of the
# first release, so that processes of both versions hear each other during an upgrade.
LOCK_RELEASED = "plainsql_turns"

# Longer than a client that lost a response keeps asking for the outcome.
_KEPT_S = 600
_REMOVED_AT_ONCE = 10_000


class SpanningState(StrEnum):
    """The state of a transaction. Waiting and open transactions are undecided."""

    WAITING = "waiting"
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A transaction to store."""

    id: str
    organization_id: str
    gid: str
    database_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Participation:
    """One participant of a transaction: its number, and how to connect to its cell as the admin."""

    number: int
    cell_name: str
    cell_conninfo: str
    admin_role: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A decided transaction whose holder is gone, and the participants to finish."""

    id: str
    gid: str
    is_committed: bool
    participations: Sequence[Participation]


async def enter(directory: Directory, new: NewRecord, hold_s: float) -> SpanningState:
    """Stores the record: open if the lock is free, otherwise waiting in line."""
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
            # Another transaction took the lock concurrently. The next attempt will see it.
            continue
    return SpanningState(row["state"])


async def advance(directory: Directory, id_: str, hold_s: float) -> SpanningState | None:
    """Opens a waiting record if it is first in line. Returns its state, or None if another process took it over."""
    statement = """
        UPDATE spanning_transactions AS mine SET state = 'open', held_until = now() + %s * interval '1 s'
        WHERE id = %s AND state = 'waiting' AND freed_at IS NULL AND NOT EXISTS (
            SELECT FROM spanning_transactions AS other
            WHERE other.organization_id = mine.organization_id AND other.id <> mine.id AND other.freed_at IS NULL
              -- Skip records that wait before us but whose holder is gone.
              AND (other.state <> 'waiting' OR (other.number < mine.number AND other.held_until > now())))
    """
    look = "SELECT state FROM spanning_transactions WHERE id = %s AND freed_at IS NULL"
    async with directory.connection() as connection:
        try:
            if (await connection.execute(statement, (hold_s, id_))).rowcount:
                return SpanningState.OPEN
        except errors.UniqueViolation:
            # A transaction that did not have to wait took the lock at this very moment.
            return SpanningState.WAITING
        row = await (await connection.execute(look, (id_,))).fetchone()
    return None if row is None or row["state"] == SpanningState.ABORTED else SpanningState(row["state"])


async def keep(directory: Directory, id_: str, hold_s: float) -> None:
    """Renews a record's lease."""
    statement = """
        UPDATE spanning_transactions SET held_until = now() + %s * interval '1 s'
        WHERE id = %s AND freed_at IS NULL AND state <> 'aborted'
    """
    await _change(directory, statement, (hold_s, id_))


async def commit(directory: Directory, id_: str) -> bool:
    """Decides to commit, irrevocably. Returns False if it was decided otherwise. Can be repeated."""
    statement = "UPDATE spanning_transactions SET state = 'committed' WHERE id = %s AND state IN ('open', 'committed')"
    return await _change(directory, statement, (id_,))


async def free(directory: Directory, id_: str) -> None:
    """Frees a decided record once every participant has carried out the decision."""
    statement = """
        UPDATE spanning_transactions SET freed_at = now()
        WHERE id = %s AND freed_at IS NULL AND state IN ('committed', 'aborted')
    """
    await _pass_on(directory, statement, id_)


async def end_reading(directory: Directory, id_: str) -> bool:
    """Commits and frees a record that prepared nothing. Returns False if another process took it over meanwhile."""
    statement = """
        UPDATE spanning_transactions SET state = 'committed', freed_at = now()
        WHERE id = %s AND state = 'open' AND freed_at IS NULL
    """
    return await _pass_on(directory, statement, id_)


async def give_up(directory: Directory, id_: str) -> None:
    """Aborts and frees a record that is prepared nowhere."""
    statement = """
        UPDATE spanning_transactions SET state = 'aborted', freed_at = now()
        WHERE id = %s AND state <> 'committed' AND freed_at IS NULL
    """
    await _pass_on(directory, statement, id_)


async def postpone(directory: Directory, id_: str, delay_s: float = 0.0) -> None:
    """Ends a record's lease after `delay_s`, so that recovery takes it over."""
    statement = """
        UPDATE spanning_transactions SET held_until = now() + %s * interval '1 s' WHERE id = %s AND freed_at IS NULL
    """
    await _change(directory, statement, (delay_s, id_))


async def take_over(directory: Directory, limit: int, claim_s: float) -> list[Unfinished]:
    """Takes over records whose lease has run out, for `claim_s`. Undecided records become aborted.

    Concurrent callers get different records. A record that was only waiting has started nothing and is freed at once;
    the index would not allow it to be aborted but not freed while another record of its organization is active.
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
            found.append(Unfinished(row["id"], row["gid"], row["state"] == SpanningState.COMMITTED, parts))
    return found


async def strays(directory: Directory, prepared: Sequence[tuple[str, str]]) -> dict[str, bool]:
    """Which of these prepared transactions (gid and database) belong to no unfinished record; whether to commit each.

    Call it after reading the prepared transactions: a record exists before the first is prepared and until the last is
    finished. A transaction can reappear as prepared after its commit, if the cell failed over to a server that had not
    received the commit; it is then committed again. Databases that the directory does not know are ignored.
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


async def states(directory: Directory, gids: Sequence[str]) -> dict[str, SpanningState]:
    """The state of each transaction with one of these gids, of those that the directory knows."""
    statement = "SELECT gid, state FROM spanning_transactions WHERE gid = ANY(%s)"
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (list(gids),))).fetchall()
    return {row["gid"]: SpanningState(row["state"]) for row in rows}


async def delete_old(directory: Directory, still_prepared: Collection[str], silent_cells: Collection[str]) -> bool:
    """Deletes records that are no longer needed. Returns whether there may be more to delete.

    A decision to commit is needed for as long as a participant may still be prepared, or be so again: a cell that is
    restored from its archive is as it was up to a minute before it was lost. So the record is kept if its gid is one of
    `still_prepared`, or if a participant is on one of `silent_cells` (ids), which do not answer.
    """
    statement = """
        DELETE FROM spanning_transactions WHERE id IN (
            SELECT id FROM spanning_transactions s WHERE freed_at < now() - %s * interval '1 s'
              AND (state <> 'committed' OR gid <> ALL(%s) AND NOT EXISTS (
                  SELECT FROM databases d WHERE d.id = ANY(s.database_ids) AND d.cell_id = ANY(%s)))
            LIMIT %s)
    """
    values = (_KEPT_S, list(still_prepared), list(silent_cells), _REMOVED_AT_ONCE)
    async with directory.connection() as connection:
        return (await connection.execute(statement, values)).rowcount == _REMOVED_AT_ONCE


async def _pass_on(directory: Directory, statement: str, id_: str) -> bool:
    """Frees a record and notifies waiting transactions. Returns whether it freed one.

    A transaction that starts to wait at this very moment is not notified, but checks again soon.
    """
    telling = f"""
        WITH freed AS ({statement} RETURNING organization_id)
        SELECT CASE WHEN EXISTS (SELECT FROM spanning_transactions AS other
                                 WHERE other.organization_id = freed.organization_id AND other.id <> %s
                                   AND other.state = 'waiting' AND other.freed_at IS NULL)
               THEN pg_notify('{LOCK_RELEASED}', organization_id)::text END
        FROM freed
    """
    return await _change(directory, telling, (id_, id_))


async def _change(directory: Directory, statement: str, arguments: tuple[object, ...]) -> bool:
    """Runs a change. Returns whether it changed a record."""
    async with directory.connection() as connection:
        return (await connection.execute(statement, arguments)).rowcount > 0


class SpanningNotifier:
    """The transactions of this process that wait for a spanning lock: one event per organization.

    A notification can be lost with its connection, so waiting transactions also poll now and then. The directory
    decides which transaction gets the lock.
    """

    def __init__(self) -> None:
        self._words: dict[str, asyncio.Event] = {}

    def announce(self, organization_id: str) -> None:
        """Notifies the transactions that wait for this organization's spanning lock."""
        word = self._words.get(organization_id)
        if word is not None:
            word.set()

    def expect(self, organization_id: str) -> asyncio.Event:
        """The event that `announce` sets, until `forget`. Clear it before you query the directory."""
        return self._words.setdefault(organization_id, asyncio.Event())

    def forget(self, organization_id: str) -> None:
        self._words.pop(organization_id, None)
