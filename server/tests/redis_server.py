"""A real Redis for tests: on a socket in a temporary folder, without any memory of earlier runs.

Owns starting it, killing it and starting it again. It never keeps anything on disk, as a limiter's Redis need not.
"""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.tests.programs import need

_START_LIMIT_S = 60.0


class RedisServer:
    """One redis-server, or the place of one that was killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.socket = folder / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self.socket.unlink(missing_ok=True)
        command = ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen([*command, "--dir", str(self._folder)], stdout=subprocess.DEVNULL)
        end_s = time.monotonic() + _START_LIMIT_S
        while not self._answers():
            assert self.process.poll() is None, "redis-server ended"
            assert time.monotonic() < end_s, "redis-server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """Ends it at once, as a crash does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stops it in the middle of whatever it does; connections stay open and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def ask(self, *words: str) -> str:
        """What it answers to a command, raw."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self.socket))
            connection.sendall((" ".join(words) + "\r\n").encode())
            return connection.recv(1 << 16).decode()

    def _answers(self) -> bool:
        try:
            return self.ask("PING").startswith("+PONG")
        except OSError:
            return False

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    """A Redis for the length of the block."""
    need("redis-server")
    folder = Path(tempfile.mkdtemp(prefix="plainsql-redis-"))
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)
