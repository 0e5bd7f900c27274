"""What the tests stand on: forks in the place of new processes, folders of killed runs, reports, and what is left."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from server.tests import forks, logs, run_folder
from server.tests.consistency.faults import workers_of
from server.tests.load import running_node
from server.tests.own_time import LEFT_AT_LEAST, HostWatch, share_left
from server.tests.postgres import MAJOR, Postgres
from server.tests.processes import wait_for
from server.tests.service import Service

_LIMIT_S = 60.0
# A worker that starts a node and then says its number.
_WORKER = """
import os, sys
from pathlib import Path
from server.tests import forks, run_folder
run_folder.start_run()
with open(sys.argv[1], "ab") as log:
    node = forks.start(["data"], {**os.environ, "PLAINSQL_DATA_PORT": "0"}, log, Path(sys.argv[1]).parent)
print(node.pid, flush=True)
sys.stdin.read()
"""

# The last one fails if the teardown of the one before ends too early.
_TESTS = """
import asyncio, os
import pytest

@pytest.fixture(scope="{scope}")
def replaced():
    os.environ["REPLACED"] = "1"
    yield
    del os.environ["REPLACED"]

@pytest.fixture(scope="{scope}")
def failing(replaced):
    yield
    raise {second}

@pytest.fixture(scope="{scope}")
def cancelled(failing):
    yield
    raise asyncio.CancelledError

def test_first(cancelled):
    pass
"""
_LAST = """
import os

def test_last():
    assert "REPLACED" not in os.environ
"""


@pytest.mark.parametrize("program", [forks.SERVER, forks.CLIENT])
def test_a_forked_command_prints_and_ends_as_a_new_process_does(program: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
    for arguments in (["--version"], ["--nonsense"], ["org", "list"], []):
        command = [sys.executable, "-m", program.partition(".")[0], *arguments]
        new = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, input="")
        fork = forks.run(arguments, environment, program=program)
        expected = new.stderr.replace("python -m plainsql_server", "plainsql-server")
        assert (fork.returncode, fork.stdout, fork.stderr) == (new.returncode, new.stdout, expected), arguments


def test_a_forked_command_has_the_environment_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAINSQL_DIRECTORY_DSN", "host=/ours")
    assert "PLAINSQL_DIRECTORY_DSN" in forks.run(["org", "list"], {}).stderr
    assert "/theirs" in forks.run(["org", "list"], {"PLAINSQL_DIRECTORY_DSN": "host=/theirs"}).stderr


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONUTF8"])
def test_what_only_a_new_process_reads_needs_one(name: str) -> None:
    assert not forks.needs_new_process(os.environ)
    assert forks.needs_new_process({**os.environ, name: "2"})


def test_workers_of_a_forked_node_are_forks_and_end_with_their_parent(service: Service) -> None:
    with running_node(service.directory_dsn, workers=2) as node:
        workers = workers_of(node)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers]
        assert [b"server.tests.forks" in command for command in commands] == [True, True]
        node.process.kill()
        wait_for(lambda: not any(map(is_running, workers)), _LIMIT_S, lambda: f"{workers} run")


def is_running(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_the_forks_of_a_killed_worker_end_with_it(postgres: Postgres, dsn: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WORKER, str(tmp_path / "log")]
    environment = {**os.environ, "PLAINSQL_DIRECTORY_DSN": dsn, "PYTEST_XDIST_WORKER": "killed"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as worker:
        assert worker.stdout is not None
        node = Path("/proc") / worker.stdout.readline().decode().strip()
        assert node.exists()
        worker.send_signal(signal.SIGKILL)
    wait_for(lambda: not node.exists(), _LIMIT_S, lambda: f"{node} runs")


@pytest.fixture
def abandoned() -> Iterator[Path]:
    """The folder of a run whose process is gone."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = Path(tempfile.mkdtemp(prefix=f"plainsql-tests-{gone.pid}-", dir="/tmp"))
    yield folder
    assert not folder.exists()


def test_what_a_killed_run_left_is_ended_and_removed_by_the_next(abandoned: Path) -> None:
    ours = run_folder.run_folder()
    with subprocess.Popen(["sleep", "300"], cwd=abandoned) as left:
        run_folder.remove_abandoned()
        assert left.wait(_LIMIT_S) == -signal.SIGKILL
    assert not abandoned.exists()
    assert ours.exists()


def test_the_report_has_what_was_logged_during_the_test(tmp_path: Path) -> None:
    (tmp_path / "node.log").write_text("before\n")
    with logs.watching(tmp_path, "*.log"):
        logs.begin()
        assert f"{tmp_path.name}/node.log" not in logs.written()
        with (tmp_path / "node.log").open("a") as log:
            log.write("during\n")
        (tmp_path / "new.log").write_text("new\n")
        written = logs.written()
    assert written[f"{tmp_path.name}/node.log"] == "during"
    assert written[f"{tmp_path.name}/new.log"] == "new"
    assert f"{tmp_path.name}/new.log" not in logs.written()


def test_the_report_has_what_was_logged_by_a_program_that_ended_with_the_failure(tmp_path: Path) -> None:
    logs.begin()
    (tmp_path / "log").write_text("why\n")
    with pytest.raises(ValueError, match="it failed"), logs.watching(tmp_path, "log"):
        raise ValueError("it failed")
    (tmp_path / "log").unlink()
    assert logs.written()[f"{tmp_path.name}/log"] == "why"


@pytest.mark.parametrize(
    ("kind", "leave", "remove"),
    [
        ("settings", "alter system set work_mem = '5MB'", "alter system reset work_mem"),
        ("settings of roles and databases", "alter role all set work_mem = '5MB'", "alter role all reset work_mem"),
        (
            "replication slots", "select pg_create_physical_replication_slot('left')",
            "select pg_drop_replication_slot('left')",
        ),
        ("prepared transactions", "begin; select 1; prepare transaction 'left'", "rollback prepared 'left'"),
        ("roles", "create role left_behind", "drop role left_behind"),
        ("databases", "create database left_behind", "drop database left_behind"),
    ],
)  # fmt: skip
def test_what_a_file_leaves_in_a_shared_cluster_is_seen(postgres: Postgres, kind: str, leave: str, remove: str) -> None:
    before = postgres.inventory()
    with postgres.connect() as admin:
        admin.execute(leave.encode())
        now = postgres.inventory()
        admin.execute(remove.encode())
    assert [each for each in now if now[each] != before[each]] == [kind]
    assert postgres.inventory() == before


class TimeIsUp(BaseException):
    """As pytest-timeout raises one, from a signal handler."""


def test_after_an_interrupted_question_a_shared_cluster_can_be_asked(postgres: Postgres) -> None:
    def interrupt(*_: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with closing(postgres.connect()) as admin, postgres.connect() as other:
            shared = replace(postgres, admin=admin)
            alarm = threading.Thread(target=interrupt_when_asleep, args=(other, admin.info.backend_pid))
            alarm.start()
            with pytest.raises(TimeIsUp):
                admin.execute("select pg_sleep(600)")
            alarm.join()
            assert shared.inventory() == postgres.inventory()
            other.execute("select pg_terminate_backend(%s)", (admin.info.backend_pid,))
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt_when_asleep(other: psycopg.Connection, pid: int) -> None:
    """Interrupts the main thread when a session sleeps."""
    asleep = "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
    wait_for(lambda: other.execute(asleep, (pid,)).rowcount == 1, _LIMIT_S, lambda: "it does not sleep")
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def test_after_a_lost_connection_a_shared_cluster_can_be_asked(postgres: Postgres) -> None:
    with closing(postgres.connect()) as admin, postgres.connect() as other:
        shared = replace(postgres, admin=admin)
        other.execute("select pg_terminate_backend(%s, 60000)", (admin.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            shared.inventory()
        assert shared.inventory() == postgres.inventory()


def test_a_processor_that_others_use_is_noticed() -> None:
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(ours)})
    # They inherit the one processor.
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        wait_for(lambda: share_left() < LEFT_AT_LEAST, 20, lambda: "the processor is ours")
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, ours)


def test_a_host_that_takes_everything_is_waited_for_only_so_long_in_all() -> None:
    looks: list[float] = []

    def take_everything(probe_s: float) -> float:
        looks.append(probe_s)
        return 0.0

    host = HostWatch(0.05, take_everything, pause_s=0.001)
    host.wait()
    assert len(looks) > 2
    looks.clear()
    host.wait()
    assert len(looks) == 1, "the time was used up"


def test_a_host_that_has_taken_a_processor_must_leave_it_for_longer() -> None:
    shares = iter([0.5, 0.5, 1.0])
    looks: list[float] = []

    def take_for_a_while(probe_s: float) -> float:
        looks.append(probe_s)
        return next(shares)

    HostWatch(60, take_for_a_while, pause_s=0).wait()
    short_s, *long_s = looks
    assert len(long_s) == 2
    assert min(long_s) > short_s


def test_the_time_limit_of_a_test_begins_after_the_wait_for_the_host(request: pytest.FixtureRequest) -> None:
    around = [each.plugin_name for each in request.config.hook.pytest_runtest_protocol.get_hookimpls()]
    # The last one is called first.
    waits = next(place for place, name in enumerate(around) if name.endswith("conftest.py"))
    assert waits > around.index("timeout"), around


def test_tests_run_on_the_release_that_was_chosen(postgres: Postgres, service: Service) -> None:
    with postgres.connect() as admin:
        assert admin.info.server_version // 10_000 == MAJOR
    assert service.value("select current_setting('server_version_num')::int / 10000 as major") == MAJOR


@pytest.mark.parametrize("scope", ["function", "module"])
@pytest.mark.parametrize("second", ["ValueError", "asyncio.CancelledError"])
def test_a_teardown_goes_on_after_a_cancelled_part(tmp_path: Path, scope: str, second: str) -> None:
    assert "2 passed, 1 error" in _torn_down(tmp_path, scope, second, "server.tests.complete_teardown")


def test_without_the_plugin_it_does_not(tmp_path: Path) -> None:
    assert "1 passed, 2 errors" in _torn_down(tmp_path, "function", "ValueError", "no:cacheprovider")


def _torn_down(folder: Path, scope: str, second: str, plugin: str) -> str:
    (folder / "test_first.py").write_text(_TESTS.format(scope=scope, second=second))
    (folder / "test_last.py").write_text(_LAST)
    command = [sys.executable, "-m", "pytest", "-p", plugin, f"--rootdir={folder}", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S).stdout
