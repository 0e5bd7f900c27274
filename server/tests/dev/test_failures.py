"""What goes wrong, and that it is said in words a person can act on, with nothing left running."""

import os
import signal
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from plainsql_server.http.server.accepting.connections import allow_descriptors
from plainsql_server.operations.files.machine_memory import machine_memory_bytes
from plainsql_server.operations.files.sizing import tenant_connections
from server.tests.dev.running import Starter
from server.tests.load import IS_FULL, in_full
from server.tests.processes import processes_of, wait_for

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("option", ["data_port", "control_port", "alias_port"])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_named(state: Path, start: Starter, option: str, address: str) -> None:
    with socket.socket() as taken:
        taken.bind((address, 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = start(state, **{option: port})
        assert run.end() == 1
    assert f"Port {port} (--{option.replace('_', '-')}) is in use" in run.output


def test_a_second_dev_in_the_same_folder_is_rejected_and_the_first_keeps_running(state: Path, start: Starter) -> None:
    first = start(state)
    first.wait_ready()
    second = start(state)
    assert second.end() == 1
    assert f"process {first.process.pid}" in second.output
    assert "--dir" in second.output
    with first.connect() as connection:
        connection.execute("SELECT 1")
    assert first.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_stops_it_with_exit_code_0(state: Path, start: Starter, number: signal.Signals) -> None:
    run = start(state)
    run.wait_ready()
    assert run.stop(number) == 0
    assert not (state / "dev.json").exists()
    assert processes_of(state) == []


@pytest.mark.parametrize("part", ["data", "postgres"])
def test_an_unresponsive_part_is_killed_within_the_documented_time(state: Path, start: Starter, part: str) -> None:
    run = start(state)
    run.wait_ready()
    os.kill(run.description()["pids"][part], signal.SIGSTOP)
    assert run.stop() == 0
    assert processes_of(state) == []


def test_a_statement_that_does_not_notice_that_the_server_was_killed_is_killed(state: Path, start: Starter) -> None:
    run = start(state)
    run.wait_ready()
    # Nobody ever writes to it. Unlike a loop, a read that waits takes no processor from the tests beside this one.
    silent = state.parent / "silent"
    os.mkfifo(silent)
    silent.chmod(0o666)
    with closing(run.connect()) as stuck, closing(run.connect()) as other:
        other.autocommit = True
        stuck.pgconn.send_query(f"select pg_read_file('{silent}')".encode())
        active = "select from pg_stat_activity where pid = %s and state = 'active'"
        wait_for(lambda: other.execute(active, (stuck.info.backend_pid,)).fetchone() is not None, 30, lambda: "idle")
        os.kill(run.description()["pids"]["postgres"], signal.SIGSTOP)
        assert run.stop() == 0
    assert processes_of(state) == []


@pytest.mark.slow
def test_a_stop_with_many_connections_leaves_no_process_and_needs_no_recovery(state: Path, start: Starter) -> None:
    run = start(state)
    run.wait_ready()
    with ExitStack() as open_connections:
        many = tenant_connections(machine_memory_bytes()) if IS_FULL else 100
        for _ in range(min(many, allow_descriptors(many))):
            open_connections.enter_context(closing(run.connect()))
        assert run.stop() == 0
        assert processes_of(state) == []
    again = start(state)
    again.wait_ready()
    assert "was not properly shut down" not in (state / "log" / "postgres.log").read_text()
    assert again.stop() == 0


@pytest.mark.parametrize(
    "waited_for", ["lock", in_full("log/cluster.log"), "log/provisioning.log", in_full("log/data.log")]
)
def test_a_signal_while_starting_stops_cleanly(fresh_state: Path, start: Starter, waited_for: str) -> None:
    state = fresh_state
    run = start(state)
    wait_for((state / waited_for).exists, 30, lambda: run.output)
    assert run.stop(signal.SIGINT) == 0, run.output
    assert processes_of(state) == []
    assert not (state / "dev.json").exists()
    again = start(state)
    again.wait_ready()
    assert again.stop() == 0


@pytest.mark.parametrize("part", ["data", "control", "postgres"])
def test_a_part_that_dies_is_named_and_the_rest_is_stopped(state: Path, start: Starter, part: str) -> None:
    run = start(state)
    run.wait_ready()
    os.kill(run.description()["pids"][part], signal.SIGKILL)
    assert run.end() == 1
    assert f"{part} exited unexpectedly" in run.output
    assert str(state / "log" / f"{part}.log") in run.output
    assert processes_of(state) == []
    assert not (state / "dev.json").exists()


def test_a_part_that_cannot_start_is_shown_with_the_end_of_its_log(state: Path, start: Starter) -> None:
    auto = state / "postgres" / "data" / "postgresql.auto.conf"
    auto.write_text("nonsense_here = 1\n")
    run = start(state)
    assert run.end() == 1
    assert "postgres exited during startup" in run.output
    assert "nonsense_here" in run.output


def test_a_data_plane_that_cannot_start_stops_the_rest(state: Path, start: Starter) -> None:
    run = start(state, environment={"PLAINSQL_CONNECT_TIMEOUT_MS": "soon"})
    assert run.end() == 1
    assert "exited during startup" in run.output
    assert processes_of(state) == []


def test_an_unknown_tier_is_refused_before_anything_starts(fresh_state: Path, start: Starter) -> None:
    run = start(fresh_state, tier="golden")
    assert run.end() == 2
    assert "golden" in run.output
    assert not fresh_state.exists()


def test_a_major_version_that_is_not_installed_is_named(fresh_state: Path, start: Starter) -> None:
    run = start(fresh_state, postgres_major=99)
    assert run.end() == 1
    assert "PostgreSQL 99 isn't installed" in run.output


def test_data_of_another_major_version_is_not_touched(state: Path, start: Starter) -> None:
    refused = start(state, postgres_major=99)
    assert refused.end() == 1
    assert "can't open it" in refused.output


def test_a_folder_that_cannot_be_created_is_named(folder: Path, start: Starter) -> None:
    (folder / "file").write_text("")
    run = start(folder / "file" / "inside")
    assert run.end() == 1
    assert "Can't use" in run.output


def test_an_invalid_state_file_is_reported_by_name(state: Path, start: Starter) -> None:
    (state / "state.json").write_text("{")
    run = start(state)
    assert run.end() == 1
    assert "Can't read" in run.output
    assert "state.json" in run.output
