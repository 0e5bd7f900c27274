"""Where a test run keeps its files, and templates of what takes seconds to make and milliseconds to copy.

A run has one folder, in memory where there is room: `PLAINSQL_TEST_RUN` names it for the workers and for whatever they
start. Its name has the number of the run's process: the next run removes what a run has left behind that was killed,
and ends what still runs in it. Each worker has two folders in it, and one of them is always the folder for temporary
files:

- `lasting`: what session fixtures started, which runs until the worker ends;
- `passing`: everything else. When the tests of a file are over, no process may have to do with it any more.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from server.tests.processes import end_all_of

T = TypeVar("T")

RUN = "PLAINSQL_TEST_RUN"
_NAME = re.compile(r"plainsql-tests-(\d+)-")
_MEMORY, _DISK = Path("/dev/shm"), Path("/tmp")
# A whole run in the gate's sizes holds less than half of this at any moment.
_ROOM_BYTES = 6 << 30


def start_run() -> bool:
    """Makes the folder of this run, or finds the one that the starting process made. Whether this process made it."""
    is_ours = RUN not in os.environ
    if is_ours:
        # A caller's own TMPDIR may be closed to `postgres`, or too long for a socket's path.
        remove_abandoned()
        prefix = f"plainsql-tests-{os.getpid()}-"
        os.environ[RUN] = tempfile.mkdtemp(prefix=prefix, dir=_memory() or _DISK)
        # PostgreSQL runs as another user where the tests run as root.
        run_folder().chmod(0o755)
    folder = _made(run_folder() / os.environ.get("PYTEST_XDIST_WORKER", "main"))
    _made(folder / "lasting")
    _use(_made(folder / "passing"))
    return is_ours


def end_run() -> None:
    """Removes the folder of the run."""
    shutil.rmtree(os.environ.pop(RUN))


def remove_abandoned() -> None:
    """Ends what runs whose process is gone have left running, and removes their folders."""
    for folder in (each for place in (_MEMORY, _DISK) for each in place.glob("plainsql-tests-*-*")):
        named = _NAME.match(folder.name)
        if named and not Path(f"/proc/{named[1]}").exists() and os.access(folder, os.W_OK):
            end_all_of(folder)
            # Another run may be at it as well.
            shutil.rmtree(folder, ignore_errors=True)


def run_folder() -> Path:
    return Path(os.environ[RUN])


@contextmanager
def lasting(resource: AbstractContextManager[T]) -> Iterator[T]:
    """The resource for the length of the block; what it starts may run until the worker ends."""
    with ExitStack() as stack:
        passing = passing_folder()
        _use(lasting_folder())
        try:
            made = stack.enter_context(resource)
        finally:
            _use(passing)
        yield made


def passing_folder() -> Path:
    """The worker's folder for what ends with the test or the file that it is for."""
    return Path(os.environ["TMPDIR"])


def lasting_folder() -> Path:
    """The worker's folder for what runs until it ends."""
    return passing_folder().with_name("lasting")


def template(name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first of all workers makes; the others wait for it."""
    place = run_folder() / "templates" / name
    _made(place.parent)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            # What a worker that died has left of it is worth nothing.
            shutil.rmtree(place.with_suffix(".new"), ignore_errors=True)
            draft = _made(place.with_suffix(".new"))
            make(draft)
            draft.rename(place)
    return place


def _memory() -> Path | None:
    """Where files cost nothing. A database is 300 of them, and a disk that frees each block at once drops it slowly."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    return _MEMORY if has_room else None


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


def _use(folder: Path) -> None:
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
