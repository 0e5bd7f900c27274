"""Who goes first where processors are short: real backends of a cell, and the operating system's word for it.

Beside other tests, a backend may not get more than its share, so those that need more are `timing`.
"""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from plainsql_server.engine.admin.cell import DISK_FILE
from plainsql_server.operations.priorities import _CUSTOMERS, BEHIND_NICE, CpuAccount, Priorities
from server.tests.load import Client, new_tag
from server.tests.tenant_isolation.cells import Hostile, hostile_cell
from server.tests.tenant_isolation.guards import guarded

COUNT = "/* {tag} */ select count(*) from generate_series(1, 1000000000)"


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    with hostile_cell(15) as running:
        yield running


@pytest.fixture
def guard(hostile: Hostile) -> Iterator[None]:
    with guarded(hostile.postgres):
        yield


def nices(hostile: Hostile, database: str, condition: str = "true") -> list[int]:
    """Of the backends of this database."""
    question = f"select pid from pg_stat_activity where datname = %s and usename ~ '^o_' and {condition}"
    with hostile.postgres.connect() as admin:
        pids = admin.execute(question.encode(), (database,)).fetchall()
    return [nice for (pid,) in pids if (nice := nice_of(pid)) is not None]


def nice_of(pid: int) -> int | None:
    try:
        return os.getpriority(os.PRIO_PROCESS, pid)
    except ProcessLookupError:
        return None


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns when it holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  # other processes are watched
            await asyncio.sleep(0.02)


@pytest.mark.timing
@pytest.mark.usefixtures("guard")
async def test_heavy_cpu_use_lowers_the_priority_temporarily(hostile: Hostile) -> None:
    own, other, tag = hostile.own.database, hostile.other.database, new_tag()
    async with hostile.node.client(hostile.key) as attacker, hostile.node.client(hostile.victims_key) as victim:
        assert (await victim.query("select 1")).succeeded
        await attacker.send(COUNT.format(tag=tag), timeout_ms=20_000)
        await until(lambda: nices(hostile, own, "state = 'active'") == [BEHIND_NICE])
        assert (await victim.query("select 1")).succeeded
        assert nices(hostile, other)
        assert BEHIND_NICE not in nices(hostile, other), "one who takes little was put behind"
        await cancelled(hostile, attacker, tag)
        # A second is the most that one can owe, and an eighth of the machine pays for it.
        await until(lambda: BEHIND_NICE not in nices(hostile, own))
        assert nices(hostile, own), "it has not come back, it has ended"


async def cancelled(hostile: Hostile, client: Client, tag: str) -> None:
    """Ends the client's statement so that its connection stays."""
    with hostile.postgres.connect() as admin:
        admin.execute("select pg_cancel_backend(pid) from pg_stat_activity where query like %s", (f"/* {tag}%",))
    assert (await client.answer()).code == "query_canceled"


@pytest.mark.timing
async def test_short_statements_are_counted_together(hostile: Hostile) -> None:
    """Each ends before a look of the guard's is sure to see it at work."""
    with guarded(hostile.postgres) as log_file:

        async def burn() -> None:
            async with hostile.node.client(hostile.key) as attacker:
                while True:
                    answer = await attacker.query(COUNT.format(tag=new_tag()), timeout_ms=50)
                    assert answer.code in ("statement_timeout", "overloaded"), answer

        burning = [asyncio.create_task(burn()) for _ in range(4)]
        try:
            await until(lambda: f"{hostile.own.database}: priority lowered" in log_file.read_text())
        finally:
            await stopped(burning)


def burn_in_short_lives(hostile: Hostile, done: threading.Event) -> None:
    """Connections that are opened for one statement each, as by many data planes of a customer who has them lost."""
    dsn = hostile.postgres.dsn(hostile.own.owner, hostile.own.database)
    while not done.is_set():
        with psycopg.connect(dsn) as connection, suppress(psycopg.errors.QueryCanceled):
            connection.execute("set statement_timeout = 30")
            connection.execute("select count(*) from generate_series(1, 1000000000)")


@pytest.mark.timing
async def test_short_lived_connections_between_two_checks_are_counted_together(hostile: Hostile) -> None:
    done = threading.Event()
    with guarded(hostile.postgres) as log_file:
        burning = [asyncio.create_task(asyncio.to_thread(burn_in_short_lives, hostile, done)) for _ in range(2)]
        try:
            await until(lambda: f"{hostile.own.database}: priority lowered" in log_file.read_text())
        finally:
            done.set()
            await asyncio.gather(*burning)


def test_a_reused_pid_is_recognized_as_another_process(hostile: Hostile) -> None:
    priorities = Priorities(Path(hostile.postgres.socket_dir) / "data", print)
    with hostile.postgres.connect(hostile.own.owner, hostile.own.database) as connection:
        row = connection.execute("select pg_backend_pid()").fetchone()
        assert row is not None
        priorities.look()
        known = priorities._backends[row[0]]
        known.started_s, known.used_s = known.started_s - 1, 1000.0
        found = priorities._used(row[0], past_s=0.1)
    assert found is not None
    assert found[0] == hostile.own.database
    assert 0 < found[1] < 1000, "it has the account of the one before"


async def stopped(tasks: list["asyncio.Task[None]"]) -> None:
    """Ends what is to go on until it is ended; what ended by itself has failed, and says why."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome


@pytest.mark.timing
@pytest.mark.usefixtures("guard")
async def test_the_whole_process_group_is_lowered(hostile: Hostile) -> None:
    """Where Linux schedules by session, a backend's own priority counts for nothing."""
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel does not group processes by session")
    async with hostile.node.client(hostile.key) as attacker:
        await attacker.send(COUNT.format(tag=new_tag()), timeout_ms=20_000)
        await until(lambda: nices(hostile, hostile.own.database, "state = 'active'") == [BEHIND_NICE])
        with hostile.postgres.connect() as admin:
            row = admin.execute("select pid from pg_stat_activity where query ~ '1000000000' and state = 'active' and pid <> pg_backend_pid()").fetchone()  # fmt: skip # noqa: E501
        assert row is not None
        group = Path(f"/proc/{row[0]}/autogroup")
        await until(lambda: group.read_text().endswith(f"nice {BEHIND_NICE}\n"))


async def test_the_guard_writes_what_is_free_on_the_disk(hostile: Hostile) -> None:
    figure = Path(hostile.postgres.socket_dir, "data", DISK_FILE)
    figure.unlink(missing_ok=True)
    with guarded(hostile.postgres):
        await until(figure.exists)
    assert re.fullmatch(r"\d+ \d+\n", figure.read_text())


@pytest.mark.timing
async def test_a_guard_restores_all_priorities_when_it_ends(hostile: Hostile) -> None:
    own, tag = hostile.own.database, new_tag()
    async with hostile.node.client(hostile.key) as attacker:
        with guarded(hostile.postgres):
            await attacker.send(COUNT.format(tag=tag), timeout_ms=20_000)
            await until(lambda: nices(hostile, own, "state = 'active'") == [BEHIND_NICE])
        assert nices(hostile, own, "state = 'active'") == [0]
        with hostile.postgres.connect() as admin:
            row = admin.execute("select pid from pg_stat_activity where query like %s", (f"/* {tag}%",)).fetchone()
        assert row is not None
        group = Path(f"/proc/{row[0]}/autogroup")
        assert not group.exists() or group.read_text().endswith(" nice 0\n")
        await cancelled(hostile, attacker, tag)


@pytest.mark.timing
async def test_priorities_lowered_by_a_killed_guard_are_restored(hostile: Hostile) -> None:
    own, tag = hostile.own.database, new_tag()
    async with hostile.node.client(hostile.key) as attacker:
        with guarded(hostile.postgres, ending=signal.SIGKILL):
            await attacker.send(COUNT.format(tag=tag), timeout_ms=20_000)
            await until(lambda: nices(hostile, own, "state = 'active'") == [BEHIND_NICE])
        await cancelled(hostile, attacker, tag)
        assert BEHIND_NICE in nices(hostile, own)
        with guarded(hostile.postgres):
            await until(lambda: BEHIND_NICE not in nices(hostile, own))
        assert nices(hostile, own), "it has not come back, it has ended"


@pytest.mark.parametrize(
    ("title", "database"),
    [
        ("postgres: o_1f d_2e [local] SELECT", "d_2e"), ("postgres: r_1f d_2e 10.0.0.1(99) idle", "d_2e"),
        ("postgres: eu-1: o_1f d_2e [local] SELECT", "d_2e"), ("postgres: plainsql dev: o_1f d_2e [local] B", "d_2e"),
        ("postgres: autovacuum worker d_2e", "d_2e"), ("postgres: autovacuum launcher", None),
        ("postgres: plainsql_admin d_2e [local] SELECT", None), ("postgres: checkpointer", None),
    ],
)  # fmt: skip
def test_customer_processes_are_recognized_by_their_titles(title: str, database: str | None) -> None:
    found = _CUSTOMERS.match(title.encode() + bytes(8))
    assert (found and found[1].decode()) == database


def test_cpu_time_within_the_free_share_is_not_charged() -> None:
    account = CpuAccount()
    for _ in range(1000):
        account.charge(used_s=0.02, free_s=0.025)
    assert account == CpuAccount(owed_s=0.0, is_behind=False)


def test_a_burst_up_to_the_limit_is_admitted() -> None:
    account = CpuAccount()
    account.charge(used_s=0.1, free_s=0.01)
    assert not account.is_behind
    account.charge(used_s=0.1, free_s=0.01)
    assert account.is_behind


def test_a_lowered_priority_lasts_until_the_bounded_debt_is_paid() -> None:
    account = CpuAccount()
    account.charge(used_s=1000.0, free_s=0.0)
    assert account.owed_s == 1.0
    account.charge(used_s=0.0, free_s=0.99)
    assert account.is_behind
    account.charge(used_s=0.0, free_s=0.02)
    assert not account.is_behind
