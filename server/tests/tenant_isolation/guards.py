"""The guard of a cell's processors, started as an operator starts it."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.tests import forks
from server.tests.postgres import Postgres


@contextmanager
def guarded(postgres: Postgres, ending: signal.Signals = signal.SIGTERM) -> Iterator[Path]:
    """`plainsql-server cell guard` for the length of the block; yields what it says."""
    command = ["cell", "guard", f"{postgres.socket_dir}/data"]
    with tempfile.TemporaryDirectory(prefix="plainsql-guard-") as folder, (Path(folder) / "log").open("wb") as log:
        guard = forks.start(command, os.environ, log, Path(folder))
        try:
            # An eighth of a larger machine is more than one statement can take.
            os.sched_setaffinity(guard.pid, sorted(os.sched_getaffinity(0))[:2])
            log_file = Path(log.name)
            _wait_until_watching(log_file)
            yield log_file
            assert guard.poll() is None, log_file.read_text()
        finally:
            guard.send_signal(ending)
            guard.wait(30)


def _wait_until_watching(log_file: Path) -> None:
    end_s = time.monotonic() + 60
    while "Watching" not in log_file.read_text():
        assert time.monotonic() < end_s, log_file.read_text()
        time.sleep(0.02)
