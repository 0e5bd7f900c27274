"""The Redis part: private, on a socket, and without persistence, because its counts are at most a minute old.

If Redis is not installed, `dev` runs without this part, and the directory counts requests for rate limits.
"""

import os
import shutil
import socket
from pathlib import Path
from signal import Signals as Signal

from plainsql_server.dev.parts import Part
from plainsql_server.dev.processes import Launcher

MISSING = (
    "Redis isn't installed; the directory counts requests for rate limits. To install it: apt install redis-server"
)
_PROBE_TIMEOUT_S = 1.0


def find_redis() -> str | None:
    """The Redis (or Valkey) program, or None if neither is installed."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


class Redis(Part):
    """The server through which the planes share rate-limit permits."""

    name = "redis"

    def __init__(self, launcher: Launcher, program: str, socket_directory: Path) -> None:
        self._launcher = launcher
        self._program = program
        self._socket = socket_directory / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def start(self) -> None:
        settings = {
            "port": "0", "unixsocket": str(self._socket), "unixsocketperm": "700", "save": "", "appendonly": "no",
            "maxmemory-policy": "noeviction",
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self.child = self._launcher.launch(
            self.name,
            [self._program, *words],
            environment={"PATH": os.environ.get("PATH", os.defpath)},
            death_signal=Signal.SIGTERM,
        )

    def ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            try:
                probe.connect(str(self._socket))
                probe.sendall(b"PING\r\n")
                return probe.recv(16).startswith(b"+PONG")
            except OSError:
                # Not listening yet. If it never does, `start_limit_s` makes this a failure.
                return False

    def detail(self) -> str:
        return f"socket {self._socket}"
