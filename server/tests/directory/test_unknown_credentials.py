"""A flood of well-formed secrets that nobody knows, and those who are known meanwhile."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from plainsql_server.core.credential import new_key, new_session_token
from plainsql_server.core.errors import LimitError
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.principals import Principals
from plainsql_server.directory.unknown_credentials import UnknownCredentials

SHORT_MS = 60_000
# Far less than the 2 s after which a look-up that gets no connection fails.
SOON_S = 30.0


@pytest.fixture
def secret(dsn: str) -> str:
    """A key that the directory knows."""
    key = new_key()
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO organizations (id, name, tier) VALUES ('org_1', 'one', 'free')")
        connection.execute(
            "INSERT INTO api_keys (id, organization_id, name, digest, shown_prefix, last_four, scopes)"
            " VALUES ('key_1', 'org_1', 'k', %s, 'svc_k_abcd', 'wxyz', '{read}')",
            (key.digest,),
        )
    return key.text


@contextmanager
def sessions_locked(dsn: str) -> Iterator[None]:
    """Look-ups of sessions get no answer meanwhile; those of keys do."""
    with psycopg.connect(dsn) as connection:
        connection.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
        yield


async def test_known_credentials_do_not_wait_for_unknown_ones(directory: Directory, dsn: str, secret: str) -> None:
    # Nothing is believed for any time, so that every request is a look-up.
    principals = Principals(directory, Freshness(0, 0, 0))
    assert await principals.find(secret) is not None
    with sessions_locked(dsn):
        flood = [asyncio.create_task(principals.find(new_session_token().text)) for _ in range(100)]
        await asyncio.sleep(0)
        for _ in range(20):
            async with asyncio.timeout(SOON_S):
                assert await principals.find(secret) is not None
        for task in flood:
            task.cancel()
        await asyncio.wait(flood)


async def test_an_unknown_credential_that_proves_valid_is_admitted_when_a_slot_is_free(
    directory: Directory, secret: str
) -> None:
    principals = Principals(directory, Freshness(0, 0, 0))
    found = await asyncio.gather(*(principals.find(new_key().text) for _ in range(50)), principals.find(secret))
    assert found[:-1] == [None] * 50
    assert found[-1] is not None


async def test_a_rejected_credential_is_not_looked_up_again_until_a_change(directory: Directory, dsn: str) -> None:
    freshness = Freshness(SHORT_MS, SHORT_MS, 0)
    principals = Principals(directory, freshness)
    token = new_session_token().text
    assert await principals.find(token) is None
    with sessions_locked(dsn):
        async with asyncio.timeout(SOON_S):
            assert await principals.find(token) is None
        freshness.announce("org_1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await principals.find(token)


async def test_unknown_credentials_beyond_the_queue_limit_are_rejected_at_once() -> None:
    unknown = UnknownCredentials(Freshness(0, 0, 0), at_once=1, max_waiting=2)
    released = asyncio.Event()

    async def take_slot() -> None:
        async with unknown.slot():
            await released.wait()

    taken = [asyncio.create_task(take_slot()) for _ in range(3)]
    await asyncio.sleep(0)
    refused = asyncio.create_task(take_slot())
    for _ in range(5):
        await asyncio.sleep(0)
    # No timer was waited for.
    assert refused.done()
    error = refused.exception()
    assert isinstance(error, LimitError)
    assert error.code == "overloaded"
    released.set()
    await asyncio.gather(*taken)
    await asyncio.wait_for(take_slot(), SOON_S)
