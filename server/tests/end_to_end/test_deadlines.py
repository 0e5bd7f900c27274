"""A deadline holds whatever the statement does about it: it is answered, and gone from the engine.

`PLAINSQL_TEST_REPEATS=100` is the full size.
"""

import asyncio
import time
from collections.abc import Iterator

import pytest

from server.tests.load import (
    STALL_S,
    Activity,
    Answer,
    Client,
    Node,
    all_of,
    any_round,
    new_tag,
    percentile,
    running_node,
    size,
)
from server.tests.service import Service

REPEATS = size("PLAINSQL_TEST_REPEATS", 5)
LIMIT_MS = 500
# What the contract of the engine room adds to a statement's limit.
ENDED_WITHIN_S = LIMIT_MS / 1000 + 1.0

SLEEP = "select pg_sleep(3600)"
TIGHT_LOOP = "do $$ begin loop end loop; end $$"
TRAP = """do $$ begin loop
  begin perform pg_sleep(0.01); exception when query_canceled then null; end;
end loop; end $$"""
TIGHT_TRAP = """do $$ begin loop
  begin loop end loop; exception when query_canceled then null; end;
end loop; end $$"""
NO_TIMEOUT = "do $$ begin set statement_timeout = 0; perform pg_sleep(3600); end $$"


@pytest.fixture(scope="module")
def node(service: Service) -> Iterator[Node]:
    # The first statement that may store code makes a database wait once in its life; see the test of that.
    service.query("do $$ begin end $$")
    with running_node(service.directory_dsn) as running:
        yield running


class Record:
    """What was measured about statements that met their deadline."""

    def __init__(self) -> None:
        self.answered_s: list[float] = []
        self.gone_s: list[float] = []
        self.unknown = 0

    def classify(self, kind: str, *, may_be_unknown: int = 0) -> None:
        assert self.unknown <= may_be_unknown
        for name, values in (("answered", self.answered_s), ("gone", self.gone_s)):
            print(f"{kind}: {name} {len(values)} times, median {percentile(values, 50):.3f} s, max {max(values):.3f} s")
            assert len(values) == REPEATS
            assert max(values) <= ENDED_WITHIN_S + STALL_S


def check_answer(answer: Answer, *outcomes: str) -> None:
    assert (answer.status, answer.code) == (200, "statement_timeout"), answer
    assert answer.outcome in (outcomes or ["rolled_back"]), answer
    assert str(LIMIT_MS) in answer.body["error"]["message"]


async def meet_deadline(node: Node, activity: Activity, key: str, sql: str, record: Record) -> None:
    tag = new_tag()
    async with node.client(key) as client:
        began_s = time.monotonic()
        await client.send(f"/* {tag} */ {sql}", timeout_ms=LIMIT_MS)
        await activity.begun(tag)
        answer = await client.answer()
        record.answered_s.append(answer.elapsed_s)
        record.gone_s.append(await activity.gone(tag, began_s))
    record.unknown += answer.outcome == "unknown"
    check_answer(answer, "rolled_back", "unknown")


async def check_others(node: Node, key: str) -> None:
    """Requests that follow get what they asked for, on whatever connection."""

    async def ask(number: int) -> None:
        async with node.client(key) as client:
            assert (await client.query("select $1::int", number)).value == number

    await all_of(40, ask)


@pytest.mark.parametrize(
    ("kind", "sql"),
    [("sleep", SLEEP), ("loop", TIGHT_LOOP), ("trap", TRAP), ("tight trap", TIGHT_TRAP), ("own timeout", NO_TIMEOUT)],
)
async def test_a_statement_is_answered_and_gone_within_a_second_of_its_limit(
    service: Service, node: Node, kind: str, sql: str
) -> None:
    record = Record()
    key = service.api_key
    # A loop takes a whole core, so a crowd of them would measure the machine.
    parallel = 5 if kind in ("sleep", "own timeout") else 2
    async with Activity.of(service) as activity:
        await all_of(REPEATS, lambda _: meet_deadline(node, activity, key, sql, record), parallel)
    await check_others(node, key)
    # A backend that ignores its cancel is terminated. If the machine stands still then, nobody knows what came of it.
    record.classify(kind, may_be_unknown=parallel if STALL_S and "trap" in kind else 0)


async def test_a_wait_for_a_lock_is_answered_and_gone_within_a_second_of_its_limit(
    service: Service, node: Node
) -> None:
    service.query("create table if not exists locked (id int primary key, n int)")
    service.query("insert into locked select g, 0 from generate_series(1, 5) g on conflict do nothing")
    record = Record()
    holder_tag = new_tag()
    hold = f"/* {holder_tag} */ select pg_sleep(600) from (select count(*) from (select id from locked for update) l) c"
    async with Activity.of(service) as activity, node.client(service.api_key) as holder:
        await holder.send(hold)
        await activity.begun(holder_tag, "wait_event = 'PgSleep'")
        update = "update locked set n = n + 1 where id = 1"
        await all_of(REPEATS, lambda _: meet_deadline(node, activity, service.api_key, update, record))
        holder.drop()
        await activity.gone(holder_tag, time.monotonic())
    await check_others(node, service.api_key)
    record.classify("lock")
    assert service.value("select sum(n) from locked") == 0, "a statement that met its deadline did its work"


async def test_a_statement_that_ends_just_before_its_limit_keeps_its_answer(service: Service, node: Node) -> None:
    """Around the limit a statement either has its answer or its timeout, and an update says which is true."""
    service.query("create table if not exists near (id int primary key, n int)")
    service.query("truncate near")
    outcomes: dict[int, str] = {}

    async def insert(number: int) -> None:
        async with node.client(service.api_key) as client:
            sleep_s = 0.080 + 0.002 * (number % 20)
            answer = await client.query(
                f"insert into near select {number}, 0 from (select pg_sleep({sleep_s})) s", timeout_ms=100
            )
            # A connection that could not be opened in so short a time is a refusal, and did nothing either.
            assert answer.succeeded or answer.code == "statement_timeout" or answer.is_refusal(), answer
            outcomes[number] = answer.outcome

    await all_of(REPEATS * 20, insert, parallel=8)
    there = {row["id"] for row in service.query("select id from near")["rows"]}
    assert {number for number, outcome in outcomes.items() if outcome == "committed"} == there
    print("near the limit:", {kind: list(outcomes.values()).count(kind) for kind in set(outcomes.values())})


async def is_kept(client: Client) -> bool:
    """Whether statements that honour their cancel leave the connection usable, and one that does not takes it along."""
    whose = "select pg_backend_pid() as pid"
    before = (await client.query(whose)).value
    answers = [await client.query(statement, timeout_ms=LIMIT_MS) for statement in (SLEEP, NO_TIMEOUT)]
    await client.post("/v1/transaction", {"statements": ["select 1", SLEEP], "timeout_ms": LIMIT_MS})
    answers.append(await client.answer())
    after = (await client.query(whose)).value
    answers.append(await client.query(TRAP, timeout_ms=LIMIT_MS))
    codes = [(answer.code, answer.outcome) for answer in answers]
    print(before, after, codes)
    timeout = ("statement_timeout", "rolled_back")
    ended = codes == [timeout, timeout, ("transaction_deadline_exceeded", "rolled_back"), timeout]
    return ended and after == before and (await client.query(whose)).value != before


async def test_a_statement_that_honours_its_cancel_keeps_its_connection(service: Service) -> None:
    with running_node(service.directory_dsn, pool_max_connections=1) as narrow:
        async with narrow.client(service.api_key) as client:
            # If the machine stands still after a cancel, its backend seems to ignore it.
            assert await any_round(lambda: is_kept(client))


async def test_a_late_cancel_affects_no_other_request(service: Service) -> None:
    """Statements that end at their limit, on the connections of others that have all the time they want."""
    # The first and the last are sure to end before and after it.
    limits_ms = (20, 36, 37, 38, 39, 40, 42, 1_000)
    codes: list[str] = []
    with running_node(service.directory_dsn, pool_max_connections=2) as narrow:

        async def ask(number: int) -> None:
            async with narrow.client(service.api_key) as client:
                if number % 2:
                    assert (await client.query("select $1::int from pg_sleep(0.003)", number)).value == number
                else:
                    limit_ms = limits_ms[number // 2 % len(limits_ms)]
                    slept = await client.query("select 1 from pg_sleep(0.034)", timeout_ms=limit_ms)
                    codes.append(slept.code)

        await all_of(REPEATS * 80, ask, parallel=3)
    print("at the limit:", {code: codes.count(code) for code in set(codes)})
    # Both must have been, or nothing was tried.
    assert {"", "statement_timeout"} <= set(codes)


async def test_time_spent_waiting_for_a_slot_counts(service: Service) -> None:
    """One connection, taken for long: the next request is answered within its own limit all the same."""
    with running_node(service.directory_dsn, pool_max_connections=1) as narrow:
        tag = new_tag()
        async with narrow.client(service.api_key) as first, Activity.of(service) as activity:
            await first.send(f"/* {tag} */ select pg_sleep(600)")
            await activity.begun(tag)
            async with narrow.client(service.api_key) as second:
                answer = await second.query("select 1", timeout_ms=LIMIT_MS)
            assert answer.is_refusal(), answer
            assert (answer.code, answer.outcome) == ("overloaded", "not_executed")
            assert answer.elapsed_s <= ENDED_WITHIN_S + STALL_S
            first.drop()
            await activity.gone(tag, time.monotonic())
            async with asyncio.timeout(30), narrow.client(service.api_key) as third:
                assert (await third.query("select 2 as n")).value == 2


async def test_the_first_statement_of_a_database_that_stores_code_is_answered_within_its_limit(
    service: Service, node: Node
) -> None:
    """A node waits until all nodes know that the database holds code. That wait is part of the request's time."""

    async def is_in_time() -> bool:
        name = f"coded-{new_tag()}"
        service.customers.add_database(name)
        async with node.client(service.api_key) as client:
            answer = await client.query(TIGHT_LOOP, timeout_ms=LIMIT_MS, database=name)
        return answer.elapsed_s <= LIMIT_MS / 1000 + 0.5

    assert await any_round(is_in_time), "the limit began after the wait"
