"""What a tenant sends or makes to trip the service itself: others feel nothing, and nothing counts as our failure."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from server.tests.load import STALL_S, Answer, percentile
from server.tests.own_time import own_time
from server.tests.tenant_isolation.cells import Hostile, hostile_cell

CONNECTIONS = 2
# Statements are judged, and answers put together, while all other requests of the process wait.
FELT_S = 2.0


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    with hostile_cell(15, pool_max_connections=CONNECTIONS, cell_max_connections=16) as running:
        yield running


async def ask(hostile: Hostile, sql: str, timeout_ms: int | None = None) -> Answer:
    async with hostile.node.client(hostile.key) as client:
        return await client.query(sql, timeout_ms=timeout_ms)


async def longest_wait_s(hostile: Hostile, until: "asyncio.Future[Any]") -> tuple[float, float]:
    """The longest time that another tenant's requests took meanwhile, without what the host has taken.

    And what it may be: who does all the work in one go delays others for as long as it takes.
    """
    longest_s, whole_began_s = 0.0, time.monotonic()
    async with hostile.node.client(hostile.victims_key) as client:
        while not until.done():
            with own_time() as took:
                await client.query("select 1")
            longest_s = max(longest_s, took.seconds)
    return longest_s, max(FELT_S, (time.monotonic() - whole_began_s) / 2)


DEAR = {
    "one long name": "select " + "a" * 60_000,
    "one long name in another alphabet": "select " + "ж" * 60_000,
    "a megabyte of a name": "select " + "a" * 1_000_000,
    "a megabyte of comments": "/**/" * 250_000 + "select 1",
    "a megabyte of comments in comments": "/*/**/*/" * 125_000 + "select 1",
    "a megabyte of calls": "select " + "abs(" * 250_000,
    "a table of a megabyte": "create table t (" + "on a(" * 200_000,
    "many columns of one name": "select " + ", ".join(["1 as a"] * 1664),
}


@pytest.mark.timing
@pytest.mark.parametrize("sql", DEAR.values(), ids=DEAR)
async def test_an_expensive_classification_delays_no_other_request(hostile: Hostile, sql: str) -> None:
    attack = asyncio.gather(*(ask(hostile, sql) for _ in range(2)))
    longest_s, bearable_s = await longest_wait_s(hostile, attack)
    assert longest_s < bearable_s
    assert all(answer.status < 500 for answer in await attack)


@pytest.mark.timing
async def test_a_transaction_of_many_expensive_texts_delays_no_other_request(hostile: Hostile) -> None:
    statements = ["select " + "abs(" * 16_000] * 100

    async def send() -> Answer:
        async with hostile.node.client(hostile.key) as client:
            await client.post("/v1/transaction", {"statements": statements})
            return await client.answer()

    attack = asyncio.gather(send())
    longest_s, bearable_s = await longest_wait_s(hostile, attack)
    assert longest_s < bearable_s
    assert [answer.code for answer in await attack] == ["syntax_error"]


async def test_deeply_nested_types_are_returned(hostile: Hostile) -> None:
    nest = "do $$ begin for i in 1..1500 loop execute format('create domain n%s as n%s[]', i, i - 1); end loop; end $$"
    for statement in ("create domain n0 as int", nest):
        assert (await ask(hostile, statement)).succeeded
    for depth, expected in ((1, [[7]]), (5, None), (1500, None)):
        value = "array[array[7]::n1]::n1[]" if expected else f"null::n{depth}[]"
        answer = await ask(hostile, f"select {value} as x")
        assert answer.succeeded, answer
        assert answer.value == expected


HUNGRY = "select a < b and b < c from (select {} as a, {} as b, {} as c) as x".format(
    *(f"repeat(repeat('{letter}', 90000), 10000)" for letter in "xyz")
)
SORTING = "select max(t) from (select repeat(md5(g::text), 9) as t from generate_series(1, 200000) g order by 1) as x"


async def refusal(hostile: Hostile, *statements: str) -> str:
    """The SQLSTATE that ends a transaction of the attacker's."""
    async with hostile.node.client(hostile.key) as client:
        await client.post("/v1/transaction", {"statements": list(statements)})
        return str((await client.answer()).body["error"]["sqlstate"])


async def test_a_statement_that_wants_all_memory_fails_alone(hostile: Hostile) -> None:
    with hostile.postgres.connect() as admin:
        started = "select pg_postmaster_start_time(), pg_backend_pid()"
        before = admin.execute(started).fetchone()
        assert await refusal(hostile, "set local work_mem = '100GB'", HUNGRY) == "53200"
        # This connection would be gone as well if the cell had recovered from a crash.
        assert admin.execute(started).fetchone() == before


async def test_temporary_files_end_at_a_limit_that_the_tenant_cannot_move(hostile: Hostile) -> None:
    with hostile.postgres.connect() as admin:
        # Less than it is, so that the test need not fill a gigabyte.
        admin.execute(f"alter role {hostile.own.owner} set temp_file_limit = '10MB'")
        # Waits until they have exited: a backend that is about to would take the next request and lose it.
        ending = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s"
        admin.execute(ending, (hostile.own.owner,))
        assert await refusal(hostile, "set local temp_file_limit = -1", SORTING) == "42501"
        assert await refusal(hostile, SORTING) == "53400"
        admin.execute(f"alter role {hostile.own.owner} set temp_file_limit = '1GB'")


# XPath asks for no interrupt while it works: the time grows with the square of the number of nodes.
DEAF = "select xpath_exists('//*[count(//*) > 99999]', ('<r>' || repeat('<a/>', {nodes}) || '</r>')::xml)"


async def test_a_backend_that_ignores_termination_keeps_its_slot(hostile: Hostile) -> None:
    nodes = await _nodes_for(hostile, 4.0)
    running: list[int] = []
    with hostile.postgres.connect() as admin:

        def backends() -> int:
            query = "select from pg_stat_activity where usename = %s and query like '%%xpath%%' and state = 'active'"
            return admin.execute(query, (hostile.own.owner,)).rowcount

        for _ in range(3):
            sent = (ask(hostile, DEAF.format(nodes=nodes), timeout_ms=200) for _ in range(CONNECTIONS))
            for answer in await asyncio.gather(*sent):
                assert not answer.succeeded, answer
            running.append(backends())
        assert max(running) <= CONNECTIONS
        # Others are served meanwhile, and so is this tenant once its backends are done.
        async with hostile.node.client(hostile.victims_key) as victim:
            assert (await victim.query("select 1")).succeeded
        async with asyncio.timeout(60):
            while not (await ask(hostile, "select 1")).succeeded:
                pass
        assert "ignored pg_terminate_backend" in hostile.node.failures()


async def _nodes_for(hostile: Hostile, seconds: float) -> int:
    """How many nodes take about so long."""
    nodes = 1000
    while True:
        # The shortest of three: other work on the machine only makes it longer.
        took_s = min([await _takes_s(hostile, nodes) for _ in range(3)])
        if took_s > 0.2:
            return int(nodes * (seconds / took_s) ** 0.5)
        nodes *= 2


async def _takes_s(hostile: Hostile, nodes: int) -> float:
    began_s = time.monotonic()
    answer = await ask(hostile, DEAF.format(nodes=nodes))
    assert answer.succeeded, answer
    return time.monotonic() - began_s


def look_up_s(hostile: Hostile) -> float:
    """The median time in which a tenant learns what became of a request."""
    took_s = []
    with hostile.client() as client:
        for _ in range(31):
            began_s = time.monotonic()
            answer = client.get("/v1/requests/unheard-of").json()
            took_s.append(time.monotonic() - began_s)
            assert answer["request"]["outcome"] == "not_executed", answer
    return percentile(took_s, 50)


@pytest.mark.timing
def test_asking_for_a_request_does_not_look_at_the_table_of_locks(hostile: Hostile) -> None:
    """It stands still for everybody while somebody looks at it, and has the locks of all."""
    quiet_s = look_up_s(hostile)
    with hostile.postgres.connect() as filler:
        filler.execute("select pg_advisory_lock(g) from generate_series(1, 50000) g")
        beside_s = look_up_s(hostile)
    print(f"look-up: {quiet_s * 1000:.1f} ms, beside 50,000 locks {beside_s * 1000:.1f} ms")
    assert beside_s < 5 * quiet_s


LOSING = "select pg_terminate_backend(pg_backend_pid()) from pg_sleep(0.01)"
# How many connections that it lost an organization gets replaced a second, and how many it may lose at once: eight, and
# no fewer than it may have, which is half of the cell's.
LOST_A_SECOND = 5
LOST_AT_ONCE = 8


@pytest.mark.timing
async def test_a_tenant_that_ends_its_own_connections_gets_few_new_ones(hostile: Hostile) -> None:
    """Opening one costs the cell more than most statements, and nothing puts the opening behind others."""
    seconds = 4.0
    end_s = time.monotonic() + seconds

    async def lose() -> None:
        while time.monotonic() < end_s:
            assert not (await ask(hostile, LOSING, timeout_ms=2_000)).succeeded

    with hostile.postgres.connect() as admin:
        opened = "select sessions from pg_stat_database where datname = %s"
        async with asyncio.timeout(60):
            # What earlier tests have ended is reported late.
            before = admin.execute(opened, (hostile.own.database,)).fetchone()
            began_s = time.monotonic()
            losing = asyncio.gather(*(lose() for _ in range(CONNECTIONS)))
            victims_s, _ = await longest_wait_s(hostile, losing)
            await losing
            while not (await ask(hostile, "select 1")).succeeded:
                pass
        after = admin.execute(opened, (hostile.own.database,)).fetchone()
        took_s = time.monotonic() - began_s
    assert before is not None
    assert after is not None
    assert LOST_AT_ONCE <= after[0] - before[0] <= LOST_AT_ONCE + LOST_A_SECOND * (took_s + 2)
    assert victims_s < FELT_S + STALL_S


async def test_a_request_that_finds_the_lock_table_full_waits_for_the_reaper(hostile: Hostile) -> None:
    statements = ["create table made_late (id int)", "select 1 as one"]
    async with hostile.node.client(hostile.victims_key) as victim:
        # Opening a connection takes locks, too.
        assert (await victim.query("select 1")).succeeded
    with hostile.postgres.connect() as filler:
        (owner,) = filler.execute("select %s::regrole::oid", (hostile.other.owner,)).fetchone() or (None,)
        (began,) = filler.execute("select clock_timestamp()").fetchone() or (None,)
        with pytest.raises(psycopg.errors.OutOfMemory):
            filler.execute("select pg_advisory_lock(g) from generate_series(1, 1000000) g")
        async with hostile.node.client(hostile.victims_key) as victim:
            await victim.post("/v1/transaction", {"statements": statements})
            # Not the view, which would take locks.
            tried = "select from pg_stat_get_activity(null) where usesysid = %s and state = 'idle' and query_start > %s"
            async with asyncio.timeout(30):
                while filler.execute(tried, (owner, began)).rowcount == 0:  # noqa: ASYNC110  # the engine's
                    await asyncio.sleep(0.02)
            filler.execute("select pg_advisory_unlock_all()")
            answer = await victim.answer()
    assert answer.body["success"], answer
    assert answer.body["transaction"]["attempts"] > 1
