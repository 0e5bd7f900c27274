"""Extensions as a hostile tenant sees them: what is listed can be created, nothing else can, and none opens a way out.

Debian's PostgreSQL 15 has pgcrypto and uuid-ossp, the wheel's 18 has pgvector. What a release must have is said here,
so that a test never passes because an extension is missing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import httpx
import psycopg
import pytest

from plainsql_server.engine.admin.extensions import EXTENSIONS
from server.tests.tenant_isolation.cells import Hostile, hostile_cell

PRESENT = {15: {"pgcrypto", "uuid-ossp"}, 18: {"vector"}}
# PostgreSQL's own, which every database has.
OWN = {"plpgsql"}


@pytest.fixture(scope="module", params=[15, 18])
def hostile(request: pytest.FixtureRequest) -> Iterator[Hostile]:
    with hostile_cell(request.param) as running:
        yield running


only_15 = pytest.mark.parametrize("hostile", [15], indirect=True)
only_18 = pytest.mark.parametrize("hostile", [18], indirect=True)


@pytest.fixture
def client(hostile: Hostile) -> Iterator[httpx.Client]:
    """A client of a tenant that has no extension when the test begins."""
    with hostile.client() as client:
        for (name,) in rows(client, "select extname from pg_extension where extname <> 'plpgsql'"):
            done(client, f'drop extension if exists "{name}" cascade')
        yield client


def ask(client: httpx.Client, statement: str, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/v1/query", json={"sql": statement, **fields}).json()
    return answer


def done(client: httpx.Client, statement: str) -> dict[str, Any]:
    answer = ask(client, statement)
    assert answer["success"], answer
    return answer


def rows(client: httpx.Client, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in done(client, query)["rows"]]


def refused(client: httpx.Client, statement: str, sqlstate: str = "42501") -> dict[str, Any]:
    error: dict[str, Any] = ask(client, statement)["error"]
    assert error["sqlstate"] == sqlstate, error
    return error


def listed(client: httpx.Client) -> set[str]:
    return {name for (name,) in rows(client, "select name from pg_available_extensions")}


def on_the_machine(hostile: Hostile, condition: LiteralString = "true") -> set[str]:
    """What a superuser sees in a database that is nobody's."""
    query = f"select name from pg_available_extension_versions() where {condition}"
    with hostile.postgres.connect() as admin:
        return {name for (name,) in admin.execute(query)}


def create(hostile: Hostile, client: httpx.Client, name: str) -> None:
    assert name in PRESENT[hostile.major]
    done(client, f'create extension "{name}"')


def test_what_is_listed_is_what_can_be_created(hostile: Hostile, client: httpx.Client) -> None:
    offered = listed(client)
    assert offered == set(EXTENSIONS) & on_the_machine(hostile, "trusted") | OWN
    assert PRESENT[hostile.major] < offered
    versions = rows(client, "select distinct name from pg_available_extension_versions")
    assert {name for (name,) in versions} == offered
    done(client, "create schema if not exists ours")
    for name in sorted(offered - OWN):
        done(client, f'create extension "{name}" schema ours')
    installed = rows(client, "select name from pg_available_extensions where installed_version is not null")
    assert {name for (name,) in installed} == offered
    rejected = on_the_machine(hostile) - offered
    assert {"dblink", "postgres_fdw", "tablefunc", "file_fdw"} <= rejected
    for name in sorted(rejected):
        error = refused(client, f'Create  EXTENSION if not exists "{name}"')
        assert error["message"] == f'the extension "{name}" is not offered'
        assert error["hint"] == f"Available extensions: {', '.join(sorted(offered - OWN))}."


def test_an_extension_that_the_machine_does_not_have_is_refused_with_the_same_words(client: httpx.Client) -> None:
    error = refused(client, "create extension pg_magic")
    assert error["message"] == 'the extension "pg_magic" is not offered'
    assert "pg_trgm" in error["hint"]


@pytest.mark.parametrize(
    "attempt",
    [
        "do $$ begin execute 'create extension tablefunc'; end $$",
        "/* create extension citext */ create extension tablefunc",
        "do $do$ begin execute 'create extension citext'; execute 'create extension tablefunc'; end $do$",
    ],
)
def test_an_extension_that_the_text_hides_is_refused(client: httpx.Client, attempt: str) -> None:
    assert "not offered" in refused(client, attempt)["message"]
    assert rows(client, "select 1 from pg_extension where extname in ('tablefunc', 'citext')") == []


@pytest.mark.parametrize("schema", ["pg_catalog", "plainsql", "information_schema"])
def test_an_extension_is_created_only_in_a_schema_of_the_tenants(client: httpx.Client, schema: str) -> None:
    assert (
        f"permission denied for schema {schema}"
        in refused(client, f"create extension citext schema {schema}")["message"]
    )
    done(client, "create extension citext")
    refused(client, f"alter extension citext set schema {schema}")


def test_no_setting_of_a_tenants_changes_the_list(hostile: Hostile, client: httpx.Client) -> None:
    before = listed(client)
    owner = hostile.own.owner
    for attempt in (
        f"alter role {owner} set plainsql.extensions = 'tablefunc'",
        "set plainsql.extensions = 'tablefunc'",
    ):
        statements = [attempt, "create extension tablefunc"]
        answer = client.post("/v1/transaction", json={"statements": statements}).json()
        assert answer["error"]["sqlstate"] == "42501", answer
    refused(client, "alter database postgres set plainsql.extensions = 'tablefunc'")
    assert listed(client) == before


def test_what_a_tenant_planted_is_not_taken_over_by_an_extension(client: httpx.Client) -> None:
    """An extension's script runs as a superuser, in a schema where the tenant may have been before it."""
    done(client, "create function levenshtein(text, text) returns int language sql as 'select 666'")
    refused(client, "create extension fuzzystrmatch", "42723")
    done(client, "drop function levenshtein(text, text)")
    done(client, "create extension fuzzystrmatch")
    changed = "create or replace function levenshtein(text, text) returns int language sql as 'select 666'"
    refused(client, changed)
    refused(client, "alter function levenshtein(text, text) security definer")
    refused(client, "alter extension fuzzystrmatch drop function levenshtein(text, text)")


def test_a_reader_creates_no_extension(hostile: Hostile) -> None:
    with hostile.postgres.connect(hostile.own.reader, hostile.own.database) as reader:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("create extension citext")
        names = {name for (name,) in reader.execute("select name from pg_available_extensions")}
    assert "citext" in names


@only_15
def test_the_address_of_the_machine_stays_hidden(hostile: Hostile, client: httpx.Client) -> None:
    for _ in range(2):
        create(hostile, client, "uuid-ossp")
        refused(client, "select uuid_generate_v1()")
        refused(client, "grant execute on function uuid_generate_v1() to public")
        ((random_node,),) = rows(client, "select substr(uuid_generate_v1mc()::text, 26, 1) || uuid_generate_v4()")
        assert int(random_node[0], 16) % 2 == 1, "a node that is no machine's"
        done(client, 'alter extension "uuid-ossp" update')
        refused(client, "select uuid_generate_v1()")
        done(client, 'drop extension "uuid-ossp"')


# Each would compute for minutes or hours.
BOMBS = [
    "select crypt('x', gen_salt('bf', 31))",
    "select crypt('x', gen_salt('xdes', 16777215)) from generate_series(1, 999)",
    "select pgp_sym_encrypt('x', 'x', 's2k-count=65011712') from generate_series(1, 9999)",
    "select count(gen_random_bytes(1024)) from generate_series(1, 999999999)",
]  # fmt: skip


@only_15
def test_what_computes_for_long_ends_at_its_deadline(hostile: Hostile, client: httpx.Client) -> None:
    create(hostile, client, "pgcrypto")
    for bomb in BOMBS:
        error = ask(client, bomb, timeout_ms=200)["error"]
        assert error["code"] == "statement_timeout", error


@only_15
def test_pgcrypto_bounds_what_it_is_asked_for(hostile: Hostile, client: httpx.Client) -> None:
    create(hostile, client, "pgcrypto")
    refused(client, "select gen_random_bytes(1025)", "39000")
    refused(client, "select gen_salt('bf', 32)", "22023")
    refused(client, "select dearmor('-----BEGIN PGP MESSAGE-----')", "39000")
    refused(client, "select pgp_sym_decrypt(decode(repeat('ff', 9999), 'hex'), 'x')", "39000")
    sealed = "pgp_sym_encrypt(repeat('a', 1000000), 'k', 'compress-algo=1')"
    assert rows(client, f"select length(pgp_sym_decrypt({sealed}, 'k'))") == [(1000000,)]


@only_18
def test_pgvector_stores_searches_and_rejects_what_is_no_vector(hostile: Hostile, client: httpx.Client) -> None:
    create(hostile, client, "vector")
    done(client, "create table if not exists items (id int, v vector(3))")
    done(client, "insert into items values (1, '[1,2,3]'), (2, '[4,5,6]')")
    done(client, "create index on items using hnsw (v vector_l2_ops)")
    assert rows(client, "select id, v from items order by v <-> '[4,5,5]' limit 1") == [(2, "[4,5,6]")]
    for value, sqlstate in (("[1,2]", "22000"), ("[nan,1,2]", "22000"), ("[1,2,x]", "22P02")):
        refused(client, f"insert into items values (3, '{value}')", sqlstate)
    refused(client, "select array_fill(1, array[16001])::vector", "54000")
    refused(client, "select repeat('[', 100000)::vector", "22P02")
    done(client, "drop table items")


CONTROL = "comment = 'x'\ndefault_version = '1'\nrelocatable = true\ntrusted = true\n"
SCRIPT = "create table kept (a int); create table fixed (a int); select pg_extension_config_dump('kept', '');"
# A function of this name is forbidden. PostgreSQL 18 of the wheel has no uuid-ossp.
FORBIDDEN = "create function uuid_generate_v1() returns int language sql as 'select 1';"


@contextmanager
def installed(hostile: Hostile, name: str, script: str = "", requires: str = "") -> Iterator[None]:
    """Has a trusted extension on the cell's machine. Only PostgreSQL 18 finds extensions in a folder of the test's."""
    folder = hostile.folder / "trusted" / "extension"
    control, first = folder / f"{name}.control", folder / f"{name}--1.sql"
    control.write_text(CONTROL + (f"requires = '{requires}'\n" if requires else ""))
    first.write_text(script)
    try:
        yield
    finally:
        control.unlink()
        first.unlink()


@contextmanager
def allowed(hostile: Hostile, names: LiteralString) -> Iterator[None]:
    """Has this list on the cell."""
    with hostile.postgres.connect() as admin:
        admin.execute(f"alter database postgres set plainsql.extensions = '{names}'")
        try:
            yield
        finally:
            admin.execute("alter database postgres reset plainsql.extensions")


@only_18
def test_a_tenant_writes_only_the_tables_of_an_extension_that_a_dump_contains(
    hostile: Hostile, client: httpx.Client
) -> None:
    """As the coordinate systems of PostGIS are."""
    with installed(hostile, "shelves", SCRIPT), allowed(hostile, "shelves"):
        assert listed(client) == {"shelves"} | OWN
        done(client, "create extension shelves")
    done(client, "insert into kept values (1)")
    done(client, "delete from kept")
    refused(client, "insert into fixed values (1)")
    refused(client, "alter table kept add b int")
    refused(client, "create trigger mine before insert on kept execute function suppress_redundant_updates_trigger()")


@only_18
@pytest.mark.parametrize("child", ["cube", "middle"])
def test_an_allowed_extension_brings_none_that_is_not(hostile: Hostile, client: httpx.Client, child: str) -> None:
    """PostgreSQL reports only the extension of the statement to event triggers, not those that CASCADE creates."""
    with (
        installed(hostile, "middle", requires="cube"),
        installed(hostile, "parent", requires=child),
        allowed(hostile, "parent,middle"),
    ):
        error = refused(client, "create extension parent cascade")
        assert error["message"] == 'the extension "cube" is not offered'
        assert rows(client, "select extname from pg_extension where extname <> 'plpgsql'") == []
    with (
        installed(hostile, "middle", requires="cube"),
        installed(hostile, "parent", requires=child),
        allowed(hostile, "parent,middle,cube"),
    ):
        done(client, "create extension parent cascade")


@only_18
def test_an_extension_that_another_one_brings_is_restricted_as_if_it_came_alone(
    hostile: Hostile, client: httpx.Client
) -> None:
    with (
        installed(hostile, "shelves", SCRIPT),
        installed(hostile, "uuid-ossp", FORBIDDEN, requires="shelves"),
        installed(hostile, "parent", requires="uuid-ossp"),
        allowed(hostile, "parent,shelves,uuid-ossp"),
    ):
        refused(client, "create extension parent schema pg_catalog cascade")
        done(client, "create extension parent cascade")
    refused(client, "select uuid_generate_v1()")
    done(client, "insert into kept values (1)")
    refused(client, "insert into fixed values (1)")


def test_the_probe_of_extensions_names_what_is_offered_and_fails_without(
    hostile: Hostile, client: httpx.Client
) -> None:
    done(client, "create extension citext")
    with allowed(hostile, "hstore,pg_magic"):
        found = client.get("/capabilities/extensions").json()
        assert (found["supported"], found["evidence"]) == (True, {"available": ["hstore"]})
    with allowed(hostile, "pg_magic"):
        found = client.get("/capabilities/extensions").json()
        assert (found["supported"], found["evidence"]) == (False, {"available": []})


def test_the_guard_leaves_a_superusers_extensions_alone(hostile: Hostile) -> None:
    with hostile.postgres.connect(database=hostile.other.database) as admin:
        admin.execute("create extension tablefunc")
        admin.execute("drop extension tablefunc")
