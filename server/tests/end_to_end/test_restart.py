"""Stopping a data-plane process: it drains, nobody who was heard goes without an answer, nothing is lost.

`PLAINSQL_TEST_RESTARTS=20` is the full size.
"""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from server.tests.consistency.faults import workers_of
from server.tests.end_to_end.transactions import fresh_table
from server.tests.load import (
    NEW_PROCESS,
    STALL_S,
    Activity,
    Client,
    NoAnswer,
    Node,
    new_request_id,
    new_tag,
    running_node,
    size,
)
from server.tests.processes import wait_for
from server.tests.service import Service

pytestmark = pytest.mark.chaos

RESTARTS = size("PLAINSQL_TEST_RESTARTS", 3)
CLIENTS = 8
# By when a process has stopped after SIGTERM, whatever its statements do.
STOPPED_WITHIN_S = 10.0 + 2 * STALL_S


@pytest.fixture
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, cell_max_connections=16) as running:
        yield running


@contextmanager
def held(service: Service) -> Iterator[str]:
    """A table whose readers wait until the end of the block."""
    table = fresh_table(service)
    with service.engine() as holder, holder.transaction():
        holder.execute(f"lock table {table}".encode())
        yield table


async def stop(node: Node) -> None:
    """Asks the node to stop, and returns when it has heard."""
    node.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(STOPPED_WITHIN_S):
        while await asyncio.to_thread(ask_health, node) == 200:  # noqa: ASYNC110  # another process is watched
            await asyncio.sleep(0.01)


async def test_a_statement_running_at_shutdown_is_finished(service: Service, node: Node) -> None:
    tag = new_tag()
    async with Activity.of(service) as activity, node.client(service.api_key) as client:
        with held(service) as table:
            await client.send(f"/* {tag} */ select count(*) as n from {table}")
            await activity.begun(tag)
            await stop(node)
        answer = await client.answer()
        assert answer.succeeded, answer
        assert answer.headers["connection"] == "close"
    assert await asyncio.to_thread(node.process.wait, STOPPED_WITHIN_S) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("padding", ["", "/* " + "x" * 70_000 + " */"], ids=["fast path", "large body"])
async def test_a_statement_that_outlasts_the_draining_is_cancelled_and_answered(
    service: Service, node: Node, padding: str
) -> None:
    tag = new_tag()
    async with Activity.of(service) as activity, node.client(service.api_key) as client:
        await client.send(f"/* {tag} */ select pg_sleep(600) {padding}")
        await activity.begun(tag)
        stopped_s = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        answer = await client.answer()
        assert answer.is_refusal(), answer
        assert answer.outcome in ("rolled_back", "unknown"), answer
        assert await activity.gone(tag, stopped_s) <= STOPPED_WITHIN_S
    assert await asyncio.to_thread(node.process.wait, STOPPED_WITHIN_S) in (0, -signal.SIGTERM)


async def test_a_request_that_waits_for_a_slot_at_shutdown_is_answered(service: Service) -> None:
    with running_node(service.directory_dsn, pool_max_connections=1) as narrow:
        tag = new_tag()
        async with (
            Activity.of(service) as activity,
            narrow.client(service.api_key) as first,
            narrow.client(service.api_key) as second,
        ):
            with held(service) as table:
                await first.send(f"/* {tag} */ select count(*) from {table}")
                await activity.begun(tag)
                await second.send("select 2 as n")
                # The service has read it when it answers one that it got after it.
                async with narrow.client("svc_k_wrong") as probe:
                    assert (await probe.query("select 1")).status == 401
                await stop(narrow)
            assert (await first.answer()).succeeded
            answer = await second.answer()
            assert answer.succeeded or answer.is_refusal(), answer


async def test_readiness_fails_before_connections_are_refused(service: Service, node: Node) -> None:
    """Who asks for health every 50 ms hears 'unavailable' before anybody is refused: so a balancer moves away first."""
    tag = new_tag()
    async with Activity.of(service) as activity, node.client(service.api_key) as client:
        await client.send(f"/* {tag} */ select pg_sleep(600)")
        await activity.begun(tag)
        node.process.send_signal(signal.SIGTERM)
        seen: list[int | str] = []
        async with asyncio.timeout(STOPPED_WITHIN_S):
            while "refused" not in seen:
                await asyncio.sleep(0.05)
                seen.append(await asyncio.to_thread(ask_health, node))
        client.drop()
    print(f"after SIGTERM, health said {seen}")
    assert 503 in seen


def ask_health(node: Node) -> int | str:
    try:
        return node.health().status_code
    except httpx.TransportError:
        return "refused"


@dataclass
class Writer:
    """A client that inserts numbers, on one node after the other, and asks the other one if nobody listens."""

    clients: list[Client]
    first: int
    # Half of them open a connection for each request.
    keeps: bool
    acknowledged: set[int] = field(default_factory=set)
    sent: dict[str, int] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    failed: list[object] = field(default_factory=list)
    refused: int = 0
    stopped: bool = False

    async def run(self) -> None:
        number = self.first
        try:
            while not self.stopped:
                number += 1
                await self._insert(number, self.clients[number % len(self.clients)])
        finally:
            for client in self.clients:
                client.drop()

    async def _insert(self, number: int, client: Client) -> None:
        request_id = new_request_id()
        try:
            await client.send(
                "insert into restarted select $1::bigint from (select pg_sleep(0.005)) s", number, request_id=request_id
            )
        except (ConnectionRefusedError, ConnectionResetError):
            # Nobody listens, or stopped to while we connected: nothing was sent.
            self.refused += 1
            return
        self.sent[request_id] = number
        try:
            answer = await client.answer()
        except NoAnswer as error:
            self.unanswered[request_id] = str(error)
            return
        if answer.succeeded:
            self.acknowledged.add(number)
        elif not answer.is_refusal():
            self.failed.append(answer)
        if not self.keeps:
            client.drop()


async def test_rolling_restarts_answer_every_request_and_lose_nothing(service: Service) -> None:
    service.query("create table if not exists restarted (n bigint)")
    service.query("truncate restarted")
    with ExitStack() as stack:
        nodes = [stack.enter_context(running_node(service.directory_dsn, cell_max_connections=16)) for _ in range(2)]
        writers = [
            Writer([node.client(service.api_key) for node in nodes], number * 10_000_000, keeps=number % 2 == 0)
            for number in range(CLIENTS)
        ]
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run())
            for number in range(RESTARTS):
                await restart(nodes[number % 2])
            for writer in writers:
                writer.stopped = True
        # The log is written a moment later.
        for node in nodes:
            await asyncio.to_thread(node.stop)
        logged = set.union(*(node.logged() for node in nodes))
    classify(service, writers, logged)


async def restart(node: Node) -> None:
    await asyncio.sleep(0.5)
    assert await asyncio.to_thread(node.stop) in (0, -signal.SIGTERM), str(node.process.returncode)
    await asyncio.to_thread(node.start)


def classify(service: Service, writers: list[Writer], logged: set[str]) -> None:
    acknowledged = set.union(*(writer.acknowledged for writer in writers))
    sent = {key: number for writer in writers for key, number in writer.sent.items()}
    unanswered = {key: reason for writer in writers for key, reason in writer.unanswered.items()}
    there: set[int] = set()
    after = "select n from restarted where n > $1 order by n limit 50000"
    while page := service.query(after, max(there, default=-1))["rows"]:
        there |= {row["n"] for row in page}
    heard = {key for key in unanswered if key in logged or sent[key] in there}
    print(
        f"restarts: {RESTARTS}, sent {len(sent)}, acknowledged {len(acknowledged)}, refused connections"
        f" {sum(writer.refused for writer in writers)}, connections closed before the request was read"
        f" {len(unanswered) - len(heard)}, heard and not answered {len(heard)}, lost {len(acknowledged - there)}"
    )
    assert {key for key, number in sent.items() if number in acknowledged} <= logged, "the log tells who was heard"
    assert acknowledged - there == set(), "lost"
    assert heard == set(), "heard and not answered"
    assert [failure for writer in writers for failure in writer.failed] == []
    # A connection that the kernel had queued and the process never took is closed with the socket that listens. Its
    # request was not accepted, so it is not counted here; the figure above tells how many there were.
    assert len(acknowledged) > 50 * RESTARTS


def test_workers_do_not_outlive_a_parent_that_was_killed(service: Service) -> None:
    with running_node(service.directory_dsn, NEW_PROCESS, workers=2) as node:
        workers = workers_of(node)
        assert len(workers) == 2
        node.process.kill()
        node.process.wait(STOPPED_WITHIN_S)
        wait_for(lambda: not any(map(_command, workers)), STOPPED_WITHIN_S, lambda: f"workers live on: {workers}")


def _command(pid: int) -> bytes:
    """What a process runs; nothing if it is gone, or nobody has buried it yet."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
