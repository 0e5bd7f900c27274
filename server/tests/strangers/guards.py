"""The guard of a cell's processors, started as an operator starts it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from server.tests.postgres import Postgres


@contextmanager
def guarded(postgres: Postgres) -> Iterator[None]:
    """`plainsql-server cell guard` for the length of the block."""
    command = [sys.executable, "-m", "plainsql_server", "cell", "guard", f"{postgres.socket_dir}/data"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as guard:
        try:
            assert guard.stderr is not None
            assert guard.stderr.readline().startswith("Watching")
            yield
            assert guard.poll() is None, guard.stderr.read()
        finally:
            guard.terminate()
            # Until then it has said less than a pipe takes.
            guard.communicate(timeout=10)
