"""A tenant attacks with rehearsals: dry runs, digests, frozen inserts and `nows`.

It learns nothing of others, leaves nothing behind, is counted like everybody, and gets no more time or memory than in
any other request. What its neighbours feel is in `test_neighbours.py`.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from server.tests.load import Answer, running_node
from server.tests.own_time import own_time
from server.tests.processes import wait_for
from server.tests.tenant_isolation.cells import Hostile, hostile_cell
from server.tests.tenant_isolation.test_traps import HUNGRY

Statement = str | dict[str, Any]
NOW = "2026-11-17T09:46:06.123456Z"
FLUSH_MS = 200
# As in `test_traps.py`: an answer of fifty megabytes is put together at once.
FELT_S = 2.0
# All that a statement of a rehearsal can ask for.
ASKING = {"digest": True, "freeze": True}


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    # One connection, so that whatever is left in a session is met by the next request.
    with hostile_cell(15, pool_max_connections=1, usage_flush_ms=FLUSH_MS) as running:
        for key in (running.key, running.victims_key):
            with running.client(key) as client:
                for sql in ("create table kept (n int)", "insert into kept values (1)", "create sequence numbers"):
                    client.post("/v1/query", json={"sql": sql}).raise_for_status()
        yield running


async def send(hostile: Hostile, *statements: Statement, key: str = "", **fields: Any) -> Answer:
    async with hostile.node.client(key or hostile.key) as client:
        await client.post("/v1/transaction", {"statements": list(statements), **fields})
        return await client.answer()


async def rehearse(hostile: Hostile, *statements: str, **fields: Any) -> Answer:
    """Asks for everything that a rehearsal has."""
    return await send(hostile, *({"sql": sql, **ASKING} for sql in statements), dry_run=True, nows=[NOW] * 50, **fields)


LEAVINGS = [
    "insert into kept values (2) returning n", "update kept set n = 3", "delete from kept", "truncate kept",
    "create table left_over (n int)", "create temp table left_over (n int)", "create view left_over as select 1",
    "create function left_over() returns int language sql as 'select 1'", "alter table kept add column v text",
    "create schema left_over", "create type left_over as enum ('a')", "create extension citext",
    "comment on table kept is 'left over'", "alter sequence numbers restart with 1000 increment by 7",
    "select lo_create(4711)", "select lo_from_bytea(4712, 'left over')",
    "do $$ begin execute 'notify left_over, ''x'''; end $$", "do $$ begin execute 'listen left_over'; end $$",
    "do $$ begin execute 'prepare left_over as select 1'; end $$", "prepare left_over as select 1",
    "declare left_over cursor with hold for select 1", "set work_mem = '77MB'", "set session search_path = left_over",
    "select set_config('work_mem', '77MB', false)", "select set_config('left.over', 'x', false)",
    "do $$ begin perform set_config('work_mem', '77MB', false); end $$", "select setseed(0.5)",
    "lock table kept in access exclusive mode", "select n from kept for update", "analyze kept",
    "grant select on kept to public", "create policy left_over on kept using (false)",
    "alter default privileges grant select on tables to public",
]  # fmt: skip

ESCAPES = [
    "commit", "/* x */ end", "commit and chain", "rollback", "savepoint a", "prepare transaction 'left_over'",
    "do $$ begin commit; end $$", "do $$ begin execute 'commit'; end $$", "select 1; commit",
    "select pg_advisory_lock(1)",
    "select pg_advisory_xact_lock(1)", "select pg_try_advisory_lock_shared(1)", "select pg_notify('left_over', 'x')",
    "do $$ begin execute 'prepare transaction ''left_over'''; end $$", "vacuum kept", "create database left_over",
    "do $$ begin insert into kept values (9); begin commit; exception when others then null; end; raise 'x'; end $$",
]  # fmt: skip

IN_THE_DATABASE = """
    select (select json_agg(n order by n) from kept)::text,
        (select json_agg(attname order by attnum) from pg_attribute where attrelid = 'kept'::regclass)::text,
        (select relacl::text || relrowsecurity from pg_class where oid = 'kept'::regclass),
        (select count(*) from pg_class where relname ~ 'left_over'), (select count(*) from pg_proc),
        (select count(*) from pg_namespace where nspname !~ '^pg_(toast_)?temp'), (select count(*) from pg_type),
        (select count(*) from pg_extension), (select count(*) from pg_largeobject_metadata),
        (select count(*) from pg_description), (select count(*) from pg_policy), (select count(*) from pg_default_acl),
        (select seqincrement from pg_sequence where seqrelid = 'numbers'::regclass), (select count(*) from pg_database),
        (select count(*) from pg_prepared_xacts), (select last_value || is_called::text from numbers)
"""
IN_THE_SESSION = """
    select (select json_agg(name || statement order by name) from pg_prepared_statements where name !~ '^p')::text as p,
        (select count(*) from pg_cursors) as c, (select count(*) from pg_listening_channels()) as l,
        (select count(*) from pg_class where relnamespace = pg_my_temp_schema()) as t,
        (select json_agg(name || setting order by name) from pg_settings where source = 'session')::text as s,
        coalesce(current_setting('left.over', true), '') as o, current_user::text as u, current_schemas(true)::text as f
"""
HELD = """
    select count(*) from pg_locks l join pg_stat_activity a using (pid)
    where a.usename = %s and a.state = 'idle' and l.locktype <> 'virtualxid' and l.mode <> 'SIReadLock'
"""


async def session_of(hostile: Hostile) -> Any:
    async with hostile.node.client(hostile.key) as client:
        return (await client.query(IN_THE_SESSION)).body["rows"]


@pytest.mark.parametrize("sql", [*LEAVINGS, *ESCAPES])
async def test_a_rehearsal_leaves_nothing_behind(hostile: Hostile, sql: str) -> None:
    with hostile.postgres.connect(database=hostile.own.database) as admin:
        admin.execute("listen left_over")
        session, before = await session_of(hostile), admin.execute(IN_THE_DATABASE).fetchone()
        answer = await rehearse(hostile, "select n from kept", sql)
        assert answer.succeeded == (sql in LEAVINGS), answer
        assert admin.execute(IN_THE_DATABASE).fetchone() == before
        assert await session_of(hostile) == session
        # Locks are listed a little before their owners' states.
        wait_for(lambda: admin.execute(HELD, (hostile.own.owner,)).fetchone() == (0,), 20.0, lambda: "locks are held")
        assert list(admin.notifies(timeout=0)) == []


async def test_a_sequence_is_where_the_rehearsals_numbers_end(hostile: Hostile) -> None:
    with hostile.postgres.connect(database=hostile.own.database) as admin:
        where = "select last_value from numbers"
        await rehearse(hostile, "select nextval('numbers')")
        (before,) = admin.execute(where).fetchone() or (0,)
        for _ in range(3):
            assert (await rehearse(hostile, "select nextval('numbers') from generate_series(1, 5)")).succeeded
        assert admin.execute(where).fetchone() == (before + 15,)


async def test_equal_rows_of_two_tenants_have_different_digests(hostile: Hostile) -> None:
    """Otherwise a tenant who sees a digest of another could find out what it is of."""
    read: dict[str, Any] = {"sql": "select n from kept", "digest": True, "rows": False}
    found = {}
    for key in (hostile.key, hostile.victims_key):
        (result,) = (await send(hostile, read, key=key, dry_run=True)).body["results"]
        found[key] = {name: result[name] for name in ("digest", "multiset_digest")}
    assert len({digest for digests in found.values() for digest in digests.values()}) == 4
    for name, digest in found[hostile.victims_key].items():
        theirs = {**read, "digest": False, "expect": {name: digest}}
        assert (await send(hostile, theirs)).code == "serialization_failure"
        assert (await send(hostile, theirs, key=hostile.victims_key)).succeeded


async def test_another_tenants_database_looks_like_one_that_does_not_exist(hostile: Hostile) -> None:
    answers = []
    for name in (hostile.other.database, "d_000000000000000000000000"):
        answer = await rehearse(hostile, "insert into kept values (1)", database=name)
        answers.append((answer.status, str(answer.body["error"]).replace(name, "")))
    assert answers[0] == answers[1]
    for table in (f"{hostile.other.database}.public.kept", "pg_authid", "plainsql.responses", "plainsql.secrets"):
        answer = await rehearse(hostile, f"insert into {table} select")
        assert not answer.succeeded
        assert answer.body["error"]["sqlstate"] in ("0A000", "42501")


def used(hostile: Hostile) -> tuple[int, int, int, int]:
    """Requests, rows, microseconds and bytes of the attacker, as far as they are written down."""
    query = """
        select coalesce(sum(requests), 0)::int8, coalesce(sum(rows), 0)::int8, coalesce(sum(engine_us), 0)::int8,
            coalesce(sum(bytes), 0)::int8
        from usage u join databases d on d.id = u.database_id where d.engine_name = %s
    """
    with psycopg.connect(hostile.node.directory_dsn) as directory:
        requests, rows, engine_us, size_bytes = directory.execute(query, (hostile.own.database,)).fetchone() or (0,) * 4
        return requests, rows, engine_us, size_bytes


def settled_usage(hostile: Hostile, requests: int) -> tuple[int, int, int, int]:
    wait_for(lambda: used(hostile)[0] >= requests, 30.0, lambda: f"{used(hostile)} of {requests} requests")
    return used(hostile)


async def test_rehearsals_are_counted_with_their_time_and_what_they_return(hostile: Hostile) -> None:
    await asyncio.sleep(2 * FLUSH_MS / 1000)
    before = used(hostile)
    insert = "insert into kept select g from generate_series(1, 1000) g"
    values = f"insert into kept values {', '.join(f'({number})' for number in range(1000))}"
    read = "select repeat('x', 1000) from generate_series(1, 1000)"
    assert (await send(hostile, {"sql": insert}, dry_run=True)).succeeded
    frozen = await send(hostile, {"sql": values, "freeze": True}, dry_run=True)
    assert len(frozen.body["results"][0]["frozen"]["params"][0]) == 1000
    hashed = await send(hostile, {"sql": read, "digest": True, "rows": False}, "select pg_sleep(0.2)", dry_run=True)
    assert hashed.succeeded
    stale: Statement = {"sql": "select pg_sleep(0.2)::text", "expect": {"digest": "0" * 32}}
    assert not (await send(hostile, stale, dry_run=True)).succeeded
    after = settled_usage(hostile, before[0] + 4)
    requests, rows, engine_us, size_bytes = (after[at] - before[at] for at in range(4))
    assert (requests, rows) == (4, 1)
    # The last one ran twice more, to find out whether it is volatile.
    assert engine_us > 200_000 + 3 * 200_000
    assert size_bytes > 1000 * len("(1)")


async def test_rehearsals_count_against_the_rate_limit(hostile: Hostile) -> None:
    with psycopg.connect(hostile.node.directory_dsn) as directory:
        directory.execute("update organizations set tier = 'free' where name = 'acme'")
    try:
        with running_node(hostile.node.directory_dsn) as node:
            refused = 0
            async with node.client(hostile.key) as client:
                for _ in range(230):
                    await client.post("/v1/transaction", {"statements": ["select 1"], "dry_run": True})
                    answer = await client.answer()
                    refused += answer.code == "rate_limited"
            # Within the minute that they took, some of the limit has come back.
            assert refused > 0
    finally:
        with psycopg.connect(hostile.node.directory_dsn) as directory:
            directory.execute("update organizations set tier = 'dedicated' where name = 'acme'")


DEFERRED = [
    "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return null; end $$",
    "create constraint trigger slow after insert on kept deferrable initially deferred for each row"
    " execute function slow()",
    "insert into kept values (5)",
]
TRAPPED = "do $$ begin loop begin perform pg_sleep(60); exception when query_canceled then null; end; end loop; end $$"
ENDLESS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("select pg_sleep(60)",), {}),
    ((TRAPPED,), {}),
    (("set local statement_timeout = 0", "select pg_sleep(60)"), {}),
    (("insert into kept select 1 from pg_sleep(60)",), {}),
    (tuple(DEFERRED), {"check_deferred": True}),
    (("select count(*) from generate_series(1, 1000000000)",), {}),
    (tuple(["select pg_sleep(0.4)"] * 100), {}),
]


@pytest.mark.parametrize(("statements", "fields"), ENDLESS)
async def test_a_rehearsal_ends_at_its_deadline(
    hostile: Hostile, statements: tuple[str, ...], fields: dict[str, Any]
) -> None:
    answer = await rehearse(hostile, *statements, timeout_ms=1_000, **fields)
    assert answer.code == "transaction_deadline_exceeded", answer
    with hostile.postgres.connect() as admin:
        running = "select from pg_stat_activity where usename = %s and state <> 'idle'"
        wait_for(lambda: admin.execute(running, (hostile.own.owner,)).rowcount == 0, 20.0, lambda: "it still runs")


async def test_finding_out_whether_a_read_is_volatile_ends_at_the_deadline_too(hostile: Hostile) -> None:
    # The first run is quick, and the later ones are not: they are slower from the second transaction on.
    slow = "select n, pg_sleep(30) from kept where n <> 1 or (select last_value from numbers) > {}"
    (last,) = (await send(hostile, "select last_value as n from numbers")).body["results"][0]["rows"]
    stale: Statement = {"sql": slow.format(last["n"]), "expect": {"digest": "0" * 32}}
    answer = await send(hostile, "select nextval('numbers') from kept where n < 0", stale, timeout_ms=2_000)
    assert answer.code == "serialization_failure"
    # The first number of a sequence is its last value already.
    await rehearse(hostile, "select nextval('numbers') from generate_series(1, 2)")
    answer = await send(hostile, stale, timeout_ms=2_000)
    assert answer.code == "transaction_deadline_exceeded"


async def test_a_rehearsal_that_wants_all_memory_fails_alone(hostile: Hostile) -> None:
    with hostile.postgres.connect() as admin:
        started = "select pg_postmaster_start_time(), pg_backend_pid()"
        before = admin.execute(started).fetchone()
        answer = await rehearse(hostile, "set local work_mem = '100GB'", HUNGRY)
        assert answer.body["error"]["sqlstate"] == "53200"
        assert admin.execute(started).fetchone() == before


_WITHOUT_ROWS = {"digest": True, "rows": False}
LARGE: dict[str, list[Statement]] = {
    "one row of times": [{"sql": "select repeat(substr(now()::text, 1, 19) || ' ', 3000000)", **_WITHOUT_ROWS}],
    "one row of digits": [{"sql": "select now() || repeat('1', 60000000)", **_WITHOUT_ROWS}],
    "many rows": [{"sql": "select repeat('x', 1000) from generate_series(1, 60000)", **_WITHOUT_ROWS}],
    "four results": [{"sql": "select repeat('1', 50000000)", **_WITHOUT_ROWS}] * 4,
    "too many bytes": [{"sql": "select repeat('x', 100000000)", **_WITHOUT_ROWS}],
    "frozen": [
        "create table long (v text)",
        {"sql": "insert into long values (repeat('x', 50000000))", "freeze": True},
    ],
}


@pytest.mark.timing
@pytest.mark.parametrize("statements", LARGE.values(), ids=LARGE)
async def test_what_is_hashed_or_frozen_takes_little_memory_and_lets_others_run(
    hostile: Hostile, statements: list[Statement]
) -> None:
    before, most, longest_s = hostile.node.resident_bytes(), 0, 0.0
    nows = [f"2026-11-17T{hour:02}:{minute:02}:06.123456Z" for hour in range(24) for minute in range(60)]
    attack = asyncio.create_task(send(hostile, *statements, dry_run=True, nows=nows))
    async with hostile.node.client(hostile.victims_key) as victim:
        while not attack.done():
            with own_time() as took:
                assert (await victim.query("select n from kept")).succeeded
            longest_s = max(longest_s, took.seconds)
            most = max(most, hostile.node.resident_bytes())
    answer = await attack
    assert answer.code in ("", "result_too_large"), answer.body
    print(f"{(most - before) / 1e6:.0f} MB more, the victim waited {longest_s:.3f} s of {answer.elapsed_s:.1f} s")
    assert most - before < 400_000_000
    # Who does all of it in one go delays others for as long as the request takes.
    assert longest_s < max(FELT_S, answer.elapsed_s / 2)
