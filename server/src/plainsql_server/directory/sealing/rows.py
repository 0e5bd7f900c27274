"""The stored record secrets of all databases: which keys they need, and sealing them anew.

states = await secret_states(directory)
resealed, unusable, others = await reseal_all(directory, OPERATOR)
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import InternalError
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sealing.keyring import SCHEME, Keyring, sealed_under

_BATCH = 500
# What is stored or swapped with another database during a pass is found in the next one.
_PASSES = 5


@dataclass(slots=True)
class SecretStates:
    """How the secrets of all databases are stored."""

    by_key: Counter[str] = field(default_factory=Counter)
    """Sealed secrets that can be opened, by the key's id."""
    unsealed: int = 0
    by_missing_key: Counter[str] = field(default_factory=Counter)
    """Sealed secrets whose key is missing here."""
    forged: list[str] = field(default_factory=list)
    """Ids of databases whose secret does not open, although the key is there."""


async def secret_states(directory: Directory) -> SecretStates:
    """Opens the secrets of all databases, also of deleted ones, and counts."""
    states, after = SecretStates(), ""
    while rows := await _batch(directory, after):
        for row in rows:
            _note(states, directory.secrets, row)
        after = rows[-1]["id"]
    return states


class Resealed(NamedTuple):
    """What `reseal_all` did."""

    changed: int
    unusable: dict[str, str]
    """Why secrets can't be sealed, by database."""
    others: int
    """How many secrets were not sealed with the first key at the end, without the unusable ones."""


async def reseal_all(directory: Directory, by: Actor) -> Resealed:
    """Seals every secret with the first key.

    Others are left if processes go on to store secrets with another key or none. It can run while planes and other
    commands do, and again after an interruption. The secrets themselves stay as they are.
    """
    first = directory.secrets.key_ids[0]
    async with directory.connection() as connection, connection.transaction():
        await audit.note(connection, by, "secrets.rotate", None, "directory", key=first)
    resealed, unusable, others = 0, dict[str, str](), 0
    for _ in range(_PASSES):
        changed, unusable = await _pass(directory, first)
        resealed += changed
        # Counted anew: a row can be stored behind the pass.
        others = await _count_others(directory, first, unusable)
        if not others:
            break
    return Resealed(resealed, unusable, others)


async def _pass(directory: Directory, first: str) -> tuple[int, dict[str, str]]:
    changed, unusable, after = 0, dict[str, str](), ""
    while rows := await _batch(directory, after):
        after = rows[-1]["id"]
        for row in rows:
            if sealed_under(row["record_secret"]) == first:
                continue
            try:
                changed += await _reseal(directory, row)
            except InternalError as error:
                unusable[row["id"]] = error.internal_context or error.message
    return changed, unusable


async def _reseal(directory: Directory, row: dict[str, Any]) -> bool:
    """Returns False if the row has changed since it was read."""
    keyring, engine_name = directory.secrets, row["engine_name"]
    sealed = keyring.seal(keyring.open(row["record_secret"], engine_name), engine_name)
    # One row at a time: together with another transaction's locks, several could be a deadlock.
    statement = "UPDATE databases SET record_secret = %s WHERE id = %s AND record_secret = %s AND engine_name = %s"
    async with directory.connection() as connection:
        updated = await connection.execute(statement, (sealed, row["id"], row["record_secret"], engine_name))
        return updated.rowcount == 1


async def _count_others(directory: Directory, first: str, unusable: Collection[str]) -> int:
    statement = "SELECT count(*) AS n FROM databases WHERE NOT starts_with(record_secret, %s) AND id <> ALL(%s)"
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, (f"{SCHEME}:{first}:", list(unusable)))
        row = await cursor.fetchone()
    assert row is not None
    return int(row["n"])


async def _batch(directory: Directory, after: str) -> list[dict[str, Any]]:
    statement = "SELECT id, engine_name, record_secret FROM databases WHERE id > %s ORDER BY id LIMIT %s"
    async with directory.connection() as connection:
        return await (await connection.execute(statement, (after, _BATCH))).fetchall()


def _note(states: SecretStates, keyring: Keyring, row: dict[str, Any]) -> None:
    key = sealed_under(row["record_secret"])
    if key is None:
        states.unsealed += 1
    elif key not in keyring.key_ids:
        states.by_missing_key[key] += 1
    else:
        try:
            keyring.open(row["record_secret"], row["engine_name"])
        except InternalError:
            states.forged.append(row["id"])
        else:
            states.by_key[key] += 1
