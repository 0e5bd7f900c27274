"""Starting and stopping again and again: nothing is left over, and nothing committed is lost.

PLAINSQL_TEST_CYCLES sets the number of ordinary cycles (2 unless given; a release is tested with 20); there
is a kill -9 cycle for every four of them.
"""

import os
import signal
import socket
import ssl
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from server.tests.dev.running import STOP_LIMIT_S, Dev, Starter
from server.tests.load import in_full
from server.tests.processes import processes_of, wait_for

pytestmark = pytest.mark.chaos

CYCLES = int(os.environ.get("PLAINSQL_TEST_CYCLES", "2"))
KILLS = max(2, CYCLES // 4)


def ask(run: Dev, sql: str, *params: int) -> list[dict[str, int]]:
    """What a customer sees: a row counts as committed if the service reported so."""
    described = run.description()
    response = httpx.post(
        f"{described['data_url']}/v1/query",
        json={"sql": sql, "params": list(params)},
        headers={"Authorization": f"Bearer {Path(described['api_key_file']).read_text().strip()}"},
        verify=ssl.create_default_context(cafile=described["ca_file"]),
        timeout=30,
    )
    answer = response.json()
    assert answer["success"], answer
    rows: list[dict[str, int]] = answer["rows"]
    return rows


def add_row(run: Dev, number: int) -> None:
    ask(run, "create table if not exists cycles (number int)")
    ask(run, "insert into cycles values ($1)", number)


def rows(run: Dev) -> list[int]:
    return [row["number"] for row in ask(run, "select number from cycles order by number")]


def assert_ports_free(description: dict[str, str]) -> None:
    """A process that is killed is not found any more a little before its sockets are closed."""
    for name in ("data_url", "control_url", "alias_url"):
        port = urlsplit(description[name]).port
        assert port is not None
        wait_for(partial(_is_free, port), STOP_LIMIT_S, partial(str, f"{name} is in use: port {port}"))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.timeout(120 + 30 * CYCLES)
def test_start_and_stop_cycles_keep_every_row_and_leave_nothing(state: Path, start: Starter) -> None:
    for number in range(CYCLES):
        run = start(state)
        run.wait_ready()
        add_row(run, number)
        assert rows(run) == list(range(number + 1))
        description = run.description()
        assert run.stop(signal.SIGINT if number % 2 else signal.SIGTERM) == 0
        assert processes_of(state) == []
        assert_ports_free(description)
        # The planes have ended before PostgreSQL, and written what they had counted.
        assert '"failure"' not in (state / "log" / "data.log").read_text()
        assert not (state / "dev.json").exists()
        assert not (state / "operator.env").exists()


@pytest.mark.timeout(120 + 30 * KILLS)
def test_kill_9_cycles_lose_no_row(state: Path, start: Starter) -> None:
    for number in range(KILLS):
        run = start(state)
        run.wait_ready()
        add_row(run, number)
        description = run.description()
        run.kill()
        wait_for(lambda: not processes_of(state), STOP_LIMIT_S, lambda: f"left: {processes_of(state)}")
        assert_ports_free(description)
    run = start(state)
    run.wait_ready()
    assert rows(run) == list(range(KILLS))
    assert run.stop() == 0


def test_a_start_right_after_kill_9_works(state: Path, start: Starter) -> None:
    first = start(state)
    first.wait_ready()
    add_row(first, 7)
    first.kill()
    second = start(state)
    second.wait_ready()
    assert rows(second) == [7]
    assert second.stop() == 0


@pytest.mark.parametrize(
    "sign", ["log/cluster.log", in_full("log/postgres.log"), in_full("log/provisioning.log"), "api_key"]
)
def test_a_killed_first_start_is_finished_by_the_next_start(fresh_state: Path, start: Starter, sign: str) -> None:
    first = start(fresh_state)
    wait_for((fresh_state / sign).exists, 30, lambda: first.output)
    first.kill()
    second = start(fresh_state)
    second.wait_ready()
    with second.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert second.stop() == 0


def test_everything_killed_at_once_is_cleaned_up_by_the_next_start(state: Path, start: Starter) -> None:
    first = start(state)
    first.wait_ready()
    add_row(first, 1)
    for pid in sorted(first.description()["pids"].values(), reverse=True):
        os.kill(pid, signal.SIGKILL)
    first.process.wait()
    second = start(state)
    second.wait_ready()
    assert rows(second) == [1]
    assert second.stop() == 0
