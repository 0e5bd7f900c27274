"""What tests of the fleet start from: two clusters for all of them, a directory with both as cells for each."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tests.fleet.stage import Fleet
from server.tests.postgres import Postgres, running_postgres

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30


def _in_memory() -> Path | None:
    """Where files cost nothing, if there is room. A database is 300 of them, and these tests make and drop dozens:
    on a disk that is told of each block that is free again, dropping took longer than the tests."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    return _MEMORY if has_room else None


@pytest.fixture(scope="session")
def clusters() -> Iterator[tuple[Postgres, Postgres]]:
    with running_postgres(_in_memory()) as first, running_postgres(_in_memory()) as second:
        yield first, second


@pytest.fixture
def fleet(clusters: tuple[Postgres, Postgres]) -> Fleet:
    return Fleet.made(*clusters)
