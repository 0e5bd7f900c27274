"""A process with many connections that never finish their TLS handshake, opened again whenever the service closes one.

    with silent_flood(port, 20_000, addresses, per_s=2_000) as flood:
        flood.wait_until_full()

Several processes, because one may have 20,000 descriptors. They have the lowest priority: attackers are on machines of
their own, and what they compute is no effect on the service.
"""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# The beginning of a record with a handshake in it, the rest of which never comes.
HALF = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
PER_PROCESS = 7_000
_FULL = b"full\n"
_TICK_S = 0.01


@dataclass(frozen=True)
class Flood:
    """The processes of a flood."""

    processes: Sequence["subprocess.Popen[bytes]"]

    def wait_until_full(self) -> None:
        """Returns when each process has opened all its connections at least once. It goes on."""
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == _FULL


@contextmanager
def silent_flood(port: int, count: int, addresses: Sequence[str], per_s: int) -> Iterator[Flood]:
    """So many connections for the length of the block: every second one silent, the others half-open."""
    shares = [min(PER_PROCESS, count - begun) for begun in range(0, count, PER_PROCESS)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(port), str(share), str(per_s * share // count), *addresses],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for share in shares
    ]  # fmt: skip
    try:
        yield Flood(processes)
    finally:
        for process in processes:
            # It ends with its input.
            process.communicate()


class _Connections:
    """The connections of one process."""

    def __init__(self, port: int, count: int, addresses: Sequence[str]) -> None:
        self._port = port
        self._addresses = addresses
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self.missing = count
        self.opened = 0

    def open(self) -> None:
        number, self.opened = self.opened, self.opened + 1
        self.missing -= 1
        each = socket.socket()
        each.setblocking(False)
        each.bind((self._addresses[number % len(self._addresses)], 0))
        each.connect_ex(("127.0.0.1", self._port))
        self._sockets[each.fileno()] = each
        # A silent one waits for its end only.
        self._poll.register(each, select.EPOLLIN | (select.EPOLLOUT if number % 2 else 0))

    def look(self) -> None:
        """Sends what half-open ones say, and forgets those that the service has closed."""
        for number, events in self._poll.poll(_TICK_S):
            each = self._sockets[number]
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._poll.unregister(each)
                del self._sockets[number]
                each.close()
                self.missing += 1
            else:
                self._poll.modify(each, select.EPOLLIN)
                each.send(HALF)


def _run(port: int, count: int, per_s: int, addresses: Sequence[str]) -> None:
    os.nice(19)
    connections, began_s, is_full = _Connections(port, count, addresses), time.monotonic(), False
    while not select.select([sys.stdin], [], [], 0)[0]:
        # Never more than a tick's worth behind: what was missed is not made up for.
        due = int((time.monotonic() - began_s) * per_s)
        began_s = time.monotonic() if due else began_s
        for _ in range(min(due, connections.missing)):
            connections.open()
        connections.look()
        if not is_full and connections.opened >= count:
            is_full = True
            sys.stdout.buffer.write(_FULL)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    _run(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
