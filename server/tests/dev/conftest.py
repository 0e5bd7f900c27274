"""Folders and runs that are cleaned up after the test that used them."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plainsql_server.dev.ports import choose_ports
from server.tests.dev.running import STOP_LIMIT_S, Starter
from server.tests.processes import processes_of, wait_for
from server.tests.service import copy_used_state


def new_folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="dev-"))
    path.chmod(0o755)
    return path


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that every user may enter; its `.plainsql` is what runs use."""
    path = new_folder()
    yield path
    for link in path.rglob("postgres"):
        if link.is_symlink():
            shutil.rmtree(link.resolve())
    shutil.rmtree(path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    starter.end_all()


@pytest.fixture
def fresh_state(folder: Path, start: Starter) -> Iterator[Path]:
    """A state folder that does not exist yet. Whatever the test did, nothing may run in it afterwards."""
    directory = folder / ".plainsql"
    yield directory
    start.end_all()
    wait_for(lambda: not processes_of(directory), STOP_LIMIT_S, lambda: str(processes_of(directory)))


@pytest.fixture
def state(fresh_state: Path) -> Path:
    """A state folder that has been used before."""
    copy_used_state(fresh_state)
    return fresh_state


@pytest.fixture
def free_ports() -> tuple[int, int]:
    chosen = choose_ports({"data": 0, "control": 0})
    return chosen["data"], chosen["control"]
