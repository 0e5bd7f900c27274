"""Rules about API keys."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from plainsql_server.control_plane import databases, keys, organizations, sessions
from plainsql_server.core import credential
from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import AccessError, LimitError, RequestError
from plainsql_server.core.principal import Scope
from plainsql_server.directory import keys as stored
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.organizations import OrganizationRecord


async def test_a_new_key_is_found_by_the_digest_of_its_secret(
    directory: Directory, organization: OrganizationRecord
) -> None:
    record, secret = await keys.create(directory, organization.id, "app", [Scope.READ, Scope.WRITE])
    assert credential.is_well_formed(secret.text)
    assert await stored.find_by_digest(directory, credential.digest(secret.text)) == record
    assert (record.tier, record.scopes) == ("free", frozenset([Scope.READ, Scope.WRITE]))
    assert (record.database_id, record.expires_at, record.revoked_at) == (None, None, None)


async def test_an_unknown_secret_finds_no_key(directory: Directory) -> None:
    assert await stored.find_by_digest(directory, credential.new_key().digest) is None


async def test_the_secret_is_nowhere_in_the_directory(
    directory: Directory, organization: OrganizationRecord, dsn: str
) -> None:
    _, secret = await keys.create(directory, organization.id, "app", [Scope.READ])
    everything = _dump(dsn)
    assert secret.digest.hex() in everything, "the dump holds the key's row"
    assert secret.text not in everything
    assert secret.text.encode().hex() not in everything
    # The random part between the shown first and last characters is not there either, not even in pieces.
    hidden = secret.text[len(secret.shown_prefix) : -4]
    assert not any(hidden[start : start + 8] in everything for start in range(len(hidden) - 7))


def _dump(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        return "\n".join(
            str(row) for (table,) in tables.fetchall() for row in connection.execute(f'SELECT t::text FROM "{table}" t')
        )


def _fill(dsn: str, organization_id: str, count: int) -> None:
    """Makes so many keys of an organization that work, and one that does not."""
    statement = """
        INSERT INTO api_keys (id, organization_id, name, digest, shown_prefix, last_four, scopes, revoked_at)
        SELECT 'key_' || n, %(id)s, 'many', sha256(n::text::bytea), 'svc_k_abcd', 'wxyz', '{read}',
               CASE WHEN n > %(count)s THEN now() END
        FROM generate_series(1, %(count)s + 1) n
    """
    with psycopg.connect(dsn) as connection:
        connection.execute(statement, {"id": organization_id, "count": count})


async def test_an_organizations_active_keys_are_limited_and_revoked_ones_do_not_count(
    directory: Directory, organization: OrganizationRecord, dsn: str
) -> None:
    _fill(dsn, organization.id, keys.LIVE_KEYS - 1)
    made = await asyncio.gather(
        *(keys.create(directory, organization.id, "app", [Scope.READ]) for _ in range(4)), return_exceptions=True
    )
    refused = [each for each in made if isinstance(each, LimitError)]
    assert [error.code for error in refused] == ["key_limit"] * 3
    assert str(keys.LIVE_KEYS) in refused[0].message
    await keys.revoke(directory, "key_1", organization.id)
    await keys.create(directory, organization.id, "app", [Scope.READ])


async def test_a_rotation_counts_while_both_keys_work(
    directory: Directory, organization: OrganizationRecord, dsn: str
) -> None:
    _fill(dsn, organization.id, keys.LIVE_KEYS)
    by = Actor("operator")
    with pytest.raises(LimitError, match=str(keys.LIVE_KEYS)):
        await keys.rotate(directory, organization.id, "key_1", timedelta(hours=1), by)
    new, *_ = await keys.rotate(directory, organization.id, "key_1", timedelta(0), by)
    assert new.replaces == "key_1"


async def test_a_key_bound_to_a_database_shows_which(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord
) -> None:
    database = await databases.create(directory, organization.id, "main")
    record, _ = await keys.create(directory, organization.id, "app", [Scope.READ], database="main")
    assert (record.database_id, record.database_name) == (database.id, "main")


async def test_a_key_cannot_be_bound_to_a_database_of_another_organization(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord
) -> None:
    await databases.create(directory, organization.id, "main")
    other = await organizations.create(directory, "Other", "free")
    with pytest.raises(AccessError) as failure:
        await keys.create(directory, other.id, "app", [Scope.READ], database="main")
    assert failure.value.code == "database_not_found"


async def test_no_credential_is_bound_to_a_database_that_is_deleted_meanwhile(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, dsn: str
) -> None:
    database = await databases.create(directory, organization.id, "main")
    record, _ = await keys.create(directory, organization.id, "app", [Scope.READ])
    bound, _ = await keys.create(directory, organization.id, "app", [Scope.READ], database="main")
    by = Actor("key", record.id)
    making: list[asyncio.Task[object]] = []
    async with await psycopg.AsyncConnection.connect(dsn) as deleting:
        await deleting.execute(
            "UPDATE databases SET state = 'deleted', is_default = false WHERE id = %s", (database.id,)
        )
        making = [
            asyncio.ensure_future(work)
            for work in (
                keys.create(directory, organization.id, "app", [Scope.READ], database="main"),
                keys.rotate(directory, organization.id, bound.id, timedelta(hours=1), by),
                sessions.create(directory, record.principal(), by, None, "main"),
            )
        ]
        await _until_blocked_or_done(dsn, making)
    for refusal in await asyncio.gather(*making, return_exceptions=True):
        assert isinstance(refusal, AccessError), refusal
        assert refusal.code == "database_not_found"


async def _until_blocked_or_done(dsn: str, tasks: "list[asyncio.Task[object]]") -> None:
    """Waits until each of the tasks waits for a lock in the directory, or is done."""
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(20), await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watching:
        while True:
            row = await (await watching.execute(blocked)).fetchone()
            assert row is not None
            if row[0] + sum(task.done() for task in tasks) >= len(tasks):
                return
            await asyncio.sleep(0.01)


async def test_revoking_twice_keeps_the_first_time(directory: Directory, organization: OrganizationRecord) -> None:
    record, secret = await keys.create(directory, organization.id, "app", [Scope.READ])
    first = await keys.revoke(directory, record.id)
    assert first.revoked_at is not None
    assert await keys.revoke(directory, record.id) == first
    assert await stored.find_by_digest(directory, secret.digest) == first
    assert await keys.list_(directory, organization.id) == [first]


async def test_another_organizations_key_does_not_exist_for_a_caller(
    directory: Directory, organization: OrganizationRecord
) -> None:
    record, secret = await keys.create(directory, organization.id, "app", [Scope.READ])
    other = await organizations.create(directory, "Other", "free")
    with pytest.raises(AccessError):
        await keys.revoke(directory, record.id, other.id)
    found = await stored.find_by_digest(directory, secret.digest)
    assert found is not None
    assert found.revoked_at is None


async def test_a_key_expires_in_the_future_or_never(directory: Directory, organization: OrganizationRecord) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    record, _ = await keys.create(directory, organization.id, "app", [Scope.READ], expires_at=tomorrow)
    assert record.expires_at == tomorrow
    for refused in (tomorrow - timedelta(days=2), tomorrow.replace(tzinfo=None)):
        with pytest.raises(RequestError) as failure:
            await keys.create(directory, organization.id, "app", [Scope.READ], expires_at=refused)
        assert failure.value.code == "invalid_expiry"


@pytest.mark.parametrize("name", ["", " app", "x" * 101, "two\nlines"])
async def test_a_key_without_a_valid_name_is_rejected(
    directory: Directory, organization: OrganizationRecord, name: str
) -> None:
    with pytest.raises(RequestError):
        await keys.create(directory, organization.id, name, [Scope.READ])


async def test_a_key_without_scopes_is_refused(directory: Directory, organization: OrganizationRecord) -> None:
    with pytest.raises(RequestError):
        await keys.create(directory, organization.id, "app", [])
