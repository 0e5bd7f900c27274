"""Record secrets in the directory are sealed: what opens, what does not, and what a rotation does."""

import base64
from contextlib import AbstractAsyncContextManager

import psycopg
import pytest

from plainsql_server.control_plane import databases, organizations
from plainsql_server.core.actor import OPERATOR, Actor
from plainsql_server.core.errors import ConflictError, EngineError, InternalError
from plainsql_server.directory import databases as stored
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.directory.sealing.keyring import Keyring, key_id, new_key, sealed_under
from plainsql_server.directory.sealing.rows import reseal_all, secret_states
from server.tests.customers import Customers
from server.tests.postgres import Postgres

ONE, TWO = new_key(), new_key()
IDS = [key_id(base64.b64decode(key)) for key in (ONE, TWO)]


def fails(keyring: Keyring, value: str, engine_name: str = "d_1") -> str:
    with pytest.raises(InternalError) as failure:
        keyring.open(value, engine_name)
    return failure.value.internal_context or ""


@pytest.mark.unit
def test_a_sealed_secret_opens_with_its_key_and_for_its_database_only() -> None:
    value = Keyring.of(ONE).seal("secret", "d_1")
    assert Keyring.of(ONE).open(value, "d_1") == "secret"
    assert Keyring.of(f"{TWO}\n{ONE}").open(value, "d_1") == "secret"
    assert "another database's" in fails(Keyring.of(ONE), value, "d_2")
    assert f"the key {IDS[0]}, which" in fails(Keyring.of(TWO), value)
    assert f"the key {IDS[0]}, which" in fails(Keyring(), value)


@pytest.mark.unit
def test_a_sealed_secret_shows_nothing_and_is_never_the_same() -> None:
    keyring = Keyring.of(ONE)
    values = {keyring.seal("secret", "d_1") for _ in range(100)}
    assert len(values) == 100
    assert not any("secret" in value for value in values)
    assert "secret" not in repr(keyring)


@pytest.mark.unit
def test_a_changed_secret_does_not_open() -> None:
    keyring = Keyring.of(ONE)
    value = keyring.seal("secret", "d_1")
    head, content = value.rsplit(":", 1)
    flipped = bytearray(base64.b64decode(content))
    flipped[-1] ^= 1
    changed = [f"{head}:{base64.b64encode(flipped).decode()}", value[:-4], f"{head}:", f"{head}:?", head]
    for each in changed:
        assert fails(keyring, each)
    # As if it were another key's.
    assert fails(Keyring.of(f"{ONE} {TWO}"), value.replace(IDS[0], IDS[1]))


@pytest.mark.unit
def test_unsealed_secrets_are_used_until_they_are_refused() -> None:
    assert Keyring().open("plain", "d_1") == Keyring.of(ONE).open("plain", "d_1") == "plain"
    assert "not sealed" in fails(Keyring.of(ONE, refuses_unsealed=True), "plain")
    assert Keyring().seal("plain", "d_1") == "plain"


@pytest.fixture
def filled(dsn: str, postgres: Postgres) -> str:
    """A directory with two databases from before there were keys."""
    customers = Customers(dsn)
    customers.add_cell("local", postgres.conninfo)
    customers.add_organization("acme")
    for name in ("one", "two"):
        customers.add_database(name, "acme")
    return dsn


def opened(dsn: str, keys: str, *, refuses_unsealed: bool = False) -> AbstractAsyncContextManager[Directory]:
    return Directory.open(dsn, 1, secrets=Keyring.of(keys, refuses_unsealed=refuses_unsealed))


async def named(directory: Directory, name: str) -> DatabaseRecord:
    owner = await organizations.get(directory, "acme")
    return await databases.get_named(directory, owner.id, name)


async def secret_of(directory: Directory, name: str) -> str:
    found = await named(directory, name)
    return directory.secrets.open(found.record_secret, found.engine_name)


async def test_new_secrets_are_sealed_and_a_rotation_seals_the_others(filled: str) -> None:
    async with opened(filled, ONE) as directory:
        before = [await secret_of(directory, name) for name in ("one", "two")]
        owner = await organizations.get(directory, "acme")
        made = await databases.create(directory, owner.id, "three")
        assert sealed_under(made.record_secret) == IDS[0]
        assert (await secret_states(directory)).unsealed == 2
        assert await reseal_all(directory, OPERATOR) == (2, {}, 0)
        assert await reseal_all(directory, OPERATOR) == (0, {}, 0)
        assert [await secret_of(directory, name) for name in ("one", "two")] == before
        three = await secret_of(directory, "three")
    async with opened(filled, f"{TWO} {ONE}", refuses_unsealed=True) as directory:
        assert (await secret_states(directory)).by_key == {IDS[0]: 3}
        assert await reseal_all(directory, OPERATOR) == (3, {}, 0)
    async with opened(filled, TWO, refuses_unsealed=True) as directory:
        assert [await secret_of(directory, name) for name in ("one", "two", "three")] == [*before, three]
    with psycopg.connect(filled) as connection:
        noted = connection.execute("SELECT details FROM audit WHERE action = 'secrets.rotate' ORDER BY id").fetchall()
    assert noted == [({"key": IDS[0]},), ({"key": IDS[0]},), ({"key": IDS[1]},)]


async def test_a_secret_that_was_planted_moved_or_whose_key_is_missing_is_left_alone_and_named(filled: str) -> None:
    async with opened(filled, ONE) as directory:
        await reseal_all(directory, OPERATOR)
    async with opened(filled, f"{TWO} {ONE}", refuses_unsealed=True) as directory:
        one, two = await named(directory, "one"), await named(directory, "two")
        with psycopg.connect(filled, autocommit=True) as connection:
            plant = "UPDATE databases SET record_secret = %s WHERE id = %s"
            connection.execute(plant, ("planted", one.id))
            connection.execute(plant, (one.record_secret, two.id))
        with pytest.raises(InternalError):
            await secret_of(directory, "one")
        with pytest.raises(InternalError):
            await secret_of(directory, "two")
        resealed, unusable, others = await reseal_all(directory, OPERATOR)
        assert (resealed, set(unusable), others) == (0, {one.id, two.id}, 0)
        states = await secret_states(directory)
        assert (states.unsealed, states.forged) == (1, [two.id])
        assert (await stored.find_by_id(directory, one.id) or one).record_secret == "planted"
    async with opened(filled, TWO) as directory:
        assert (await secret_states(directory)).by_missing_key == {IDS[0]: 1}


async def test_a_process_without_the_key_stores_no_secret_and_fails_no_creation(filled: str) -> None:
    async with opened(filled, ONE) as directory:
        await reseal_all(directory, OPERATOR)
        owner = await organizations.get(directory, "acme")
        begun = await databases.insert(directory, owner.id, "begun", OPERATOR)
    async with opened(filled, "") as directory:
        with pytest.raises(ConflictError, match="PLAINSQL_SECRETS_KEYS") as refused:
            await databases.create(directory, owner.id, "plain")
        assert refused.value.code == "secrets_key_missing"
        for name in ("plain", "begun"):
            # A customer can't set a key.
            with pytest.raises(EngineError) as unavailable:
                await databases.create(directory, owner.id, name, Actor("key", "key_1", "req_1"))
            assert unavailable.value.code == "creation_unavailable"
            assert "PLAINSQL" not in f"{unavailable.value.message} {unavailable.value.hint}"
            assert "PLAINSQL_SECRETS_KEYS" in (unavailable.value.internal_context or "")
        assert (await databases.get(directory, begun.id)).state is DatabaseState.CREATING
    async with opened(filled, ONE) as directory:
        assert (await databases.finish(directory, begun)).state is DatabaseState.READY


async def test_a_creation_is_left_to_a_process_that_can_open_its_secret(filled: str) -> None:
    async with opened(filled, "") as directory:
        owner = await organizations.get(directory, "acme")
        plain = await databases.insert(directory, owner.id, "plain", OPERATOR)
    async with opened(filled, ONE) as directory:
        sealed = await databases.insert(directory, owner.id, "sealed", OPERATOR)
        deleted = await named(directory, "two")
    with psycopg.connect(filled, autocommit=True) as connection:
        connection.execute("UPDATE databases SET state = 'deleting' WHERE id = %s", (deleted.id,))

    async def claimed(keys: str, *, refuses_unsealed: bool = False) -> set[str]:
        with psycopg.connect(filled, autocommit=True) as connection:
            connection.execute("UPDATE databases SET work_after = now()")
        async with opened(filled, keys, refuses_unsealed=refuses_unsealed) as directory:
            return {each.name for each in await stored.claim_unfinished(directory, 10, 60)}

    async with opened(filled, ONE, refuses_unsealed=True) as directory:
        with pytest.raises(EngineError, match="right now"):
            await databases.create(directory, owner.id, plain.name, Actor("key", "key_1", "req_1"))
    assert await claimed("") == await claimed(TWO) == {plain.name, deleted.name}
    assert await claimed(f"{TWO} {ONE}") == {plain.name, sealed.name, deleted.name}
    assert await claimed(ONE, refuses_unsealed=True) == {sealed.name, deleted.name}


async def test_a_rotation_says_what_it_did_not_seal(filled: str) -> None:
    """Here something stores a plain secret whenever one is sealed."""
    store_again = """
        CREATE FUNCTION store_again() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            NEW.record_secret := 'plain';
            RETURN NEW;
        END $$;
        CREATE TRIGGER store_again BEFORE UPDATE ON databases FOR EACH ROW WHEN (OLD.name = 'one')
        EXECUTE FUNCTION store_again();
    """
    with psycopg.connect(filled, autocommit=True) as connection:
        connection.execute(store_again)
    async with opened(filled, ONE) as directory:
        resealed = await reseal_all(directory, OPERATOR)
        assert (resealed.unusable, resealed.others) == ({}, 1)


async def test_a_copy_of_the_directory_without_the_key_has_no_secret(filled: str, postgres: Postgres) -> None:
    async with opened(filled, ONE) as directory:
        await reseal_all(directory, OPERATOR)
        found = await named(directory, "one")
        secret = directory.secrets.open(found.record_secret, found.engine_name)
    with psycopg.connect(filled) as connection:
        rows = connection.execute("SELECT record_secret FROM databases").fetchall()
        everything = connection.execute("SELECT database_to_xml(false, false, '')").fetchone()
    assert everything is not None
    assert secret not in everything[0]
    # What the copy has is nothing that the database takes for its secret.
    with postgres.connect(found.owner_role, found.engine_name) as tenant:
        for (value,) in [*rows, (found.record_secret.rsplit(":", 1)[1],)]:
            with pytest.raises(psycopg.Error) as refused:
                tenant.execute("SELECT plainsql.purge(%s)", (value,))
            assert refused.value.sqlstate == "PLS03"
        tenant.execute("SELECT plainsql.purge(%s)", (secret,))
