"""What all tests share: one cluster, a second one and a running service for each worker, started when first needed.

Tests that only fill them use these; a test that kills, reconfigures or counts starts its own. When the tests of a file
are over, the shared clusters must be as they were, and no process that the file started may be left.
"""

import gc
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from plainsql_server.directory.connection import Directory
from plainsql_server.extension_modules import COMPILED
from server.tests import forks, logs, programs, run_folder
from server.tests.customers import Customers, prepare_again
from server.tests.examples import examples
from server.tests.extension_files import PACKAGE, is_stale
from server.tests.own_time import wait_for_the_host
from server.tests.page import NEON, READERS
from server.tests.postgres import Postgres, running_postgres
from server.tests.processes import end_all_of, processes_of
from server.tests.selection import may_have
from server.tests.service import Service, running_service

# Hypothesis measures how long its examples take; beside other tests, a stall of the machine fails them. It also fails a
# test whose first examples happen to be filtered out; if it finds no others, it still does. Where CI is set, it would
# make the same examples in every run.
settings.register_profile(
    "no clock",
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    max_examples=examples(100),
)
settings.load_profile("no clock")

pytest_plugins = ["server.tests.complete_teardown"]

_ENDING_LIMIT_S = 30.0
# Files that take minutes, to start with: a file is one worker's, and at the end it would be the only one that works.
_LONGEST = ("test_restore_workers.py", "test_lost_machines.py")

# The clusters that tests share, with what was in each when it started.
_shared: dict[Postgres, dict[str, set[str]]] = {}


_made_run = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    # Until everything is collected: what is imported stays, and the collector would look at it again each time.
    gc.disable()
    # A shell that starts the tests in the background has SIGINT ignored, and nohup SIGHUP; so would every process that
    # they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _reset_sighup()
    if is_stale(PACKAGE):
        raise pytest.UsageError("The extension modules are older than their sources: run `make extensions`.")
    config.stash[_made_run] = run_folder.start_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    forks.end()
    if config.stash.get(_made_run, False):
        run_folder.end_run()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Imports no file whose tests would all be left out."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return None if may_have(config.getoption("markexpr"), collection_path.read_text(encoding="utf-8")) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what only a run in full size does, and what units lack. The longest files come first."""
    is_full = bool(os.environ.get("PLAINSQL_TEST_FULL"))
    only_units = config.getoption("markexpr").startswith("unit")

    def is_wanted(item: pytest.Item) -> bool:
        is_left_out = not is_full and item.get_closest_marker("full")
        return not is_left_out and not (only_units and _uses_postgres(item))

    left_out = [item for item in items if not is_wanted(item)]
    items[:] = sorted((item for item in items if is_wanted(item)), key=lambda item: item.path.name not in _LONGEST)
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def _uses_postgres(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "postgres" in item.fixturenames


@pytest.fixture(autouse=True)
def _programs_are_not_started(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a unit test that starts one."""

    def refuse(*arguments: object, **_: object) -> None:
        pytest.fail(f"a unit test starts a program: {arguments}")

    if request.node.get_closest_marker("unit") and not _uses_postgres(request.node):
        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Waits for the host before the test's time limit begins: the wait may be longer than that."""
    if programs.IN_GATE and item.get_closest_marker("timing"):
        wait_for_the_host()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    logs.begin()
    if item.get_closest_marker("browser"):
        programs.need("chromium")
    if item.get_closest_marker("compiled") and not COMPILED:
        pytest.skip("needs the extension modules: run `make extensions`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        yield
    finally:
        if nextitem is None or nextitem.path != item.path:
            different = (each for cluster in _shared for each in _differences(cluster))
            left = [*_reset_sighup(), *_processes_left(), *different]
            # The next file is not blamed for it.
            if left:
                prepare_again()
                _shared.update({cluster: cluster.inventory() for cluster in _shared})
            assert not left, f"{item.path.name} leaves behind: {left}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what the programs logged that a failed test used. In the gate, a test that is skipped has failed."""
    report = yield
    if report.failed:
        report.sections += [(f"logged by {name}", text) for name, text in logs.written().items()]
    if report.skipped and not hasattr(report, "wasxfail") and programs.IN_GATE:
        report.outcome, report.longrepr = "failed", f"skipped in the gate: {report.longrepr}"
    return report


def _reset_sighup() -> list[str]:
    """What a test has done with SIGHUP: programs that a later one starts would have it ignored, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    return [] if before is signal.SIG_DFL else [f"SIGHUP is handled by {before}"]


def _differences(cluster: Postgres) -> list[str]:
    """How a shared cluster differs from what it was when it started."""
    before, now = _shared[cluster], cluster.inventory()
    return [f"{kind}: {', '.join(sorted(before[kind] ^ now[kind]))}" for kind in now if before[kind] != now[kind]]


def _processes_left() -> list[str]:
    """What the last file started; ended here, so that the next file is not blamed for it."""
    folder = run_folder.passing_folder()
    # A process whose parent was killed may need a moment to notice.
    end_s = time.monotonic() + _ENDING_LIMIT_S
    while (left := _started_from(folder)) and time.monotonic() < end_s:
        time.sleep(0.05)
    if left:
        end_all_of(folder)
    return left


def _prepare_as_cell(cluster: Postgres) -> None:
    """Makes what every cell has, so that no test is the first to use it as one."""
    dsn = cluster.fresh_directory()
    Customers(dsn).add_cell("local", cluster.conninfo)
    cluster.drop_database(str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]))


def _started_from(folder: Path) -> list[str]:
    # Python starts one such process for all that `multiprocessing` spawns, and ends it with this one.
    return [each for each in processes_of(folder) if "multiprocessing.resource_tracker" not in each]


@contextmanager
def _shared_postgres() -> Iterator[Postgres]:
    # Not psycopg's own `with`, which would commit, and fail if a test has made the connection useless.
    with run_folder.lasting(running_postgres()) as started, closing(started.connect()) as admin:
        cluster = replace(started, admin=admin)
        _prepare_as_cell(cluster)
        _shared[cluster] = cluster.inventory()
        yield cluster
        # The last file of a worker ends together with the cluster.
        left = _differences(cluster)
        del _shared[cluster]
        assert not left, f"left behind in a shared cluster: {left}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with _shared_postgres() as running:
        yield running


@pytest.fixture(scope="session")
def second_postgres() -> Iterator[Postgres]:
    with _shared_postgres() as running:
        yield running


@pytest.fixture
def dsn(postgres: Postgres) -> Iterator[str]:
    """A directory with its schema and nothing in it. What the test makes in the cluster goes with it."""
    with postgres.swept():
        yield postgres.fresh_directory()


@pytest.fixture
def empty_dsn(postgres: Postgres) -> Iterator[str]:
    """A database without a schema."""
    with postgres.swept():
        yield postgres.fresh_database()


@pytest.fixture
async def directory(dsn: str) -> AsyncIterator[Directory]:
    async with Directory.open(dsn) as opened:
        yield opened


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """A service over HTTPS. Tests use names of their own and leave nothing in the others' way."""
    with run_folder.lasting(running_service()) as running:
        yield running


@pytest.fixture(scope="session")
def plain_service() -> Iterator[Service]:
    """The same over plain HTTP, for tests that look at bytes."""
    with run_folder.lasting(running_service("--no-tls")) as running:
        yield running


@pytest.fixture(scope="session")
def npm_packages() -> None:
    """What the programs for Node need, installed."""
    _install_npm_packages(READERS)


@pytest.fixture(scope="session")
def neon_packages() -> None:
    """The Neon driver and what is built on it, installed."""
    _install_npm_packages(NEON)


def _install_npm_packages(folder: Path) -> None:
    programs.need("node", "npm")
    if not (folder / "node_modules").is_dir():
        command = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=110)
