"""What the next start ends, and what it must never touch."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from plainsql_server.core import clock
from plainsql_server.dev.certificates import ensure_certificates
from plainsql_server.dev.folder import Folder, RecordedProcess, RunState, read_state
from plainsql_server.dev.processes import RUN_ID_VARIABLE, Child, end_leftovers, started
from server.tests.dev.running import Starter
from server.tests.processes import wait_for

SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEPER)
    yield process
    process.kill()
    process.wait()


def test_a_recorded_process_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    end_leftovers(RunState(processes=[RecordedProcess("data", sleeper.pid, started(sleeper.pid) or "")]))
    assert sleeper.wait(30) == -signal.SIGKILL


def test_another_process_with_a_reused_pid_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    earlier = started(os.getpid())
    assert earlier != started(sleeper.pid)
    end_leftovers(RunState(processes=[RecordedProcess("data", sleeper.pid, earlier or "")]))
    end_leftovers(RunState(processes=[RecordedProcess("data", sleeper.pid, "")]))
    assert sleeper.poll() is None


def test_an_orphaned_worker_is_found_by_its_run_id_and_killed() -> None:
    state = RunState()
    worker = subprocess.Popen(SLEEPER, env={**os.environ, RUN_ID_VARIABLE: state.run_id}, start_new_session=True)
    # Linux shows a program's environment a moment after the program has begun.
    environment = Path(f"/proc/{worker.pid}/environ")
    wait_for(lambda: state.run_id in environment.read_text(), 30, environment.read_text)
    end_leftovers(state)
    assert worker.wait(30) == -signal.SIGKILL


def test_a_fork_that_leads_no_process_group_yet_is_killed(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    Child("data", sleeper, tmp_path / "log").send(signal.SIGKILL)
    assert sleeper.wait(30) == -signal.SIGKILL


def test_the_record_survives_being_written_and_read(tmp_path: Path) -> None:
    state = RunState(socket_directory="/tmp/plainsql-x", processes=[RecordedProcess("data", 1, "boot/2")])
    state.save(Folder(tmp_path))
    assert read_state(Folder(tmp_path)) == state


def test_a_lock_file_with_the_pid_of_another_process_does_not_prevent_a_start(state: Path, start: Starter) -> None:
    data = state / "postgres" / "data"
    # PostgreSQL minds only processes that it could signal, so this one is of its own user.
    outsider = subprocess.Popen(["/bin/sleep", "300"], user=data.stat().st_uid, cwd="/")
    try:
        (data / "postmaster.pid").write_text(f"{outsider.pid}\n{data}\n1\n5432\n\n\n 1 1\nready\n")
        os.chown(data / "postmaster.pid", data.stat().st_uid, data.stat().st_gid)
        run = start(state)
        run.wait_ready()
        assert run.stop() == 0
        assert outsider.poll() is None
    finally:
        outsider.kill()
        outsider.wait()


def test_a_shell_inside_the_data_folder_is_left_alone(state: Path, start: Starter) -> None:
    run = start(state)
    run.wait_ready()
    shell = subprocess.Popen(SLEEPER, cwd=state / "postgres" / "data")
    try:
        run.kill()
        run = start(state)
        run.wait_ready()
        assert run.stop() == 0
        assert shell.poll() is None
    finally:
        shell.kill()
        shell.wait()


def test_certificates_are_kept_until_they_end_soon(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path)
    ca, issued = files.ca_file.read_text(), files.cert_file.read_text()
    assert ensure_certificates(tmp_path).cert_file.read_text() == issued
    (tmp_path / "expires").write_text((clock.now() + timedelta(days=20)).isoformat())
    assert ensure_certificates(tmp_path).cert_file.read_text() != issued
    assert files.ca_file.read_text() == ca


def test_a_ca_without_its_key_is_replaced_as_a_whole(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path)
    ca = files.ca_file.read_text()
    (tmp_path / "ca.key").unlink()
    (tmp_path / "expires").unlink()
    assert ensure_certificates(tmp_path).ca_file.read_text() != ca
