"""Rules about sessions: what they may do, and how long they live."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from plainsql_server.control_plane import databases, keys, sessions
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.credential import SESSION_PREFIX, is_well_formed
from plainsql_server.core.errors import AccessError, LimitError, RequestError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.directory.principals import Principals
from plainsql_server.directory.sessions import SessionRecord, find

DAY = timedelta(hours=24)


async def key_of(directory: Directory, organization: OrganizationRecord, *scopes: Scope, **options: str) -> Principal:
    record, _ = await keys.create(directory, organization.id, "app", scopes, database=options.get("database"))
    return record.principal()


async def made(directory: Directory, key: Principal) -> tuple[SessionRecord, Principal]:
    session, _ = await sessions.create(directory, key, OPERATOR, None, None)
    return session, session.principal()


async def test_a_session_lasts_24_hours_and_has_its_keys_scopes(
    directory: Directory, organization: OrganizationRecord
) -> None:
    key = await key_of(directory, organization, Scope.READ, Scope.ADMIN)
    session, token = await sessions.create(directory, key, OPERATOR, None, None)
    assert session.expires_at - session.created_at == DAY
    assert abs(session.created_at - datetime.now(UTC)) < timedelta(seconds=10)
    assert (session.key_id, session.scopes) == (key.key_id, key.scopes)
    assert token.text.startswith(SESSION_PREFIX)
    assert is_well_formed(token.text)
    found = await Principals(directory, Freshness(0, 0, 0)).find(token.text)
    assert found == key._replace(session_id=session.id)


async def test_a_session_for_a_shorter_time_cannot_be_extended(
    directory: Directory, organization: OrganizationRecord
) -> None:
    key = await key_of(directory, organization, Scope.READ)
    session, _ = await sessions.create(directory, key, OPERATOR, None, None, life=timedelta(minutes=15))
    assert session.expires_at - session.created_at == timedelta(minutes=15)
    with pytest.raises(AccessError, match="can't be extended"):
        await sessions.refresh(directory, session.principal(), OPERATOR)
    found = await find(directory, session.id, organization.id)
    assert found is not None
    assert found.expires_at == session.expires_at


async def test_an_organizations_active_sessions_are_limited_and_ended_ones_do_not_count(
    directory: Directory, organization: OrganizationRecord, dsn: str
) -> None:
    key = await key_of(directory, organization, Scope.READ)
    statement = """
        INSERT INTO sessions (id, organization_id, key_id, digest, scopes, created_at, expires_at, ended_at)
        SELECT 'ses_' || n, %(organization)s, %(key)s, sha256(n::text::bytea), '{read}', now(),
               now() + interval '1 day', CASE WHEN n >= %(limit)s THEN now() END
        FROM generate_series(1, %(limit)s) n
    """
    with psycopg.connect(dsn) as connection:
        connection.execute(
            statement, {"organization": organization.id, "key": key.key_id, "limit": sessions.LIVE_SESSIONS}
        )
    session, principal = await made(directory, key)
    with pytest.raises(LimitError, match=str(sessions.LIVE_SESSIONS)) as refused:
        await made(directory, key)
    assert refused.value.code == "session_limit"
    await sessions.end(directory, principal, OPERATOR)
    assert (await made(directory, key))[0].id != session.id


@pytest.mark.parametrize(
    ("held", "asked", "allowed"),
    [
        ([Scope.WRITE], [Scope.READ], True),
        ([Scope.READ, Scope.ADMIN], [Scope.ADMIN], True),
        ([Scope.READ], [Scope.WRITE], False),
        ([Scope.WRITE], [Scope.ADMIN], False),
        ([Scope.ADMIN], [Scope.READ], False),
    ],
)
async def test_a_session_may_have_fewer_rights_than_its_key_and_never_more(
    directory: Directory, organization: OrganizationRecord, held: list[Scope], asked: list[Scope], allowed: bool
) -> None:
    key = await key_of(directory, organization, *held)
    if allowed:
        session, _ = await sessions.create(directory, key, OPERATOR, asked, None)
        assert session.principal().scopes == set(asked)
    else:
        with pytest.raises(AccessError):
            await sessions.create(directory, key, OPERATOR, asked, None)


async def test_a_session_without_any_scope_is_refused(directory: Directory, organization: OrganizationRecord) -> None:
    with pytest.raises(RequestError):
        await sessions.create(directory, await key_of(directory, organization, Scope.READ), OPERATOR, [], None)


async def test_a_session_may_be_bound_to_a_database_unless_its_key_is_bound_to_another(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord
) -> None:
    for name in ("main", "other"):
        await databases.create(directory, organization.id, name)
    free = await key_of(directory, organization, Scope.READ)
    bound = await key_of(directory, organization, Scope.READ, database="main")
    for key, named, expected in ((free, "other", "other"), (bound, None, "main"), (bound, "main", "main")):
        session, _ = await sessions.create(directory, key, OPERATOR, None, named)
        assert session.principal().database == expected
    for key, named in ((bound, "other"), (free, "neither"), (free, "\0")):
        with pytest.raises(AccessError):
            await sessions.create(directory, key, OPERATOR, None, named)


async def test_a_refresh_adds_24_hours_to_what_was_left_and_refreshes_at_once_add_up(
    directory: Directory, organization: OrganizationRecord
) -> None:
    session, principal = await made(directory, await key_of(directory, organization, Scope.READ))
    refreshed = await sessions.refresh(directory, principal, OPERATOR)
    assert refreshed.expires_at - session.expires_at == DAY
    await asyncio.gather(*(sessions.refresh(directory, principal, OPERATOR) for _ in range(5)))
    last = await sessions.refresh(directory, principal, OPERATOR)
    assert last.expires_at - session.expires_at == 7 * DAY


async def test_no_refresh_reaches_further_than_30_days_from_now(
    directory: Directory, organization: OrganizationRecord
) -> None:
    refreshed, principal = await made(directory, await key_of(directory, organization, Scope.READ))
    for _ in range(32):
        refreshed = await sessions.refresh(directory, principal, OPERATOR)
    ahead = refreshed.expires_at - datetime.now(UTC)
    assert timedelta(days=30, seconds=-30) < ahead <= timedelta(days=30)


async def test_a_session_ends_no_later_than_its_key(
    directory: Directory, organization: OrganizationRecord, dsn: str
) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    record, _ = await keys.create(directory, organization.id, "app", [Scope.READ], expires_at=soon)
    session, principal = await made(directory, record.principal())
    assert session.expires_at == soon
    assert (await sessions.refresh(directory, principal, OPERATOR)).expires_at == soon


async def test_scopes_that_a_key_loses_are_lost_by_its_sessions(
    directory: Directory, organization: OrganizationRecord, dsn: str
) -> None:
    key = await key_of(directory, organization, Scope.WRITE, Scope.ADMIN)
    _, token = await sessions.create(directory, key, OPERATOR, None, None)
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE api_keys SET scopes = ARRAY['read']")
    principal = await Principals(directory, Freshness(0, 0, 0)).find(token.text)
    assert principal is not None
    assert not any(principal.may(scope) for scope in (Scope.WRITE, Scope.ADMIN))


async def test_a_just_revoked_key_cannot_create_a_session(
    directory: Directory, organization: OrganizationRecord
) -> None:
    key = await key_of(directory, organization, Scope.READ)
    await keys.revoke(directory, key.key_id)
    with pytest.raises(AccessError) as refusal:
        await sessions.create(directory, key, OPERATOR, None, None)
    assert refusal.value.code == "unauthenticated"
