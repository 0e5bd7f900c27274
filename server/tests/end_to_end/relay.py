"""A relay between the service and PostgreSQL that counts what goes over the wire, and can hold it up or cut it.

Owns the counting and the cutting. The operator's own connections pass uncounted: the control plane looks at a cell when
it wants to. A round trip is a burst of the service's that waits for an answer: everything that
it sends before PostgreSQL says a word. To tell two bursts from one that came in two pieces, the relay waits a moment
before it passes anything on; a peer that needs no answer sends the rest meanwhile.
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select
from types import TracebackType

from server.tests.postgres import SUPERUSER

_QUIET_S = 0.02
_CHUNK_BYTES = 1 << 16
_ANSWER_LIMIT_S = 30
PORT = 5432
_OPERATORS_LOGIN = f"user\0{SUPERUSER}\0".encode()


@dataclass(frozen=True)
class Cut:
    """Ends the connection that sends this: before PostgreSQL gets it, or after, or when it has given this answer."""

    sent: bytes
    forward: bool
    answer: bytes = b""
    # What else happens at that moment.
    then: Callable[[], None] | None = None


class Relay:
    """Listens in a folder as PostgreSQL does; `with Relay(…) as relay`."""

    def __init__(self, folder: Path, engine_folder: str) -> None:
        self._engine_path = f"{engine_folder}/.s.PGSQL.{PORT}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / f".s.PGSQL.{PORT}"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._holds_after: bytes | None = None
        self.bursts: list[bytes] = []
        self.held = threading.Event()
        # One connection after the other, each as soon as one sends what the first of these waits for.
        self.cuts: deque[Cut] = deque()

    def __enter__(self) -> "Relay":
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._may_pass.set()
        for each in (self._listener, *self._sockets):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The other side was faster.
                continue
        for thread in self._threads:
            thread.join(30)
        for each in (self._listener, *self._sockets):
            each.close()

    @contextmanager
    def holding_after(self, text: bytes) -> Iterator[None]:
        """Passes everything up to the first burst with this text, and holds what follows until the block ends.

        `held` says that a burst is held.
        """
        self.bursts.clear()
        self.held.clear()
        self._may_pass.clear()
        self._holds_after = text
        try:
            yield
        finally:
            self._holds_after = None
            self._may_pass.set()

    def _accept(self) -> None:
        while True:
            try:
                service, _ = self._listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            try:
                engine.connect(self._engine_path)
            except OSError:
                # PostgreSQL is unavailable, so the relay refuses its clients.
                service.close()
                engine.close()
                continue
            self._sockets += [service, engine]
            self._threads.append(threading.Thread(target=self._pass_on, args=(service, engine)))
            self._threads[-1].start()

    def _pass_on(self, service: socket.socket, engine: socket.socket) -> None:
        is_operators = False
        while True:
            ready, _, _ = select([service, engine], [], [])
            source, target = (engine, service) if engine in ready else (service, engine)
            try:
                data = source.recv(_CHUNK_BYTES)
                is_operators = is_operators or _OPERATORS_LOGIN in data
                if data and source is service and not is_operators:
                    data = self._burst(service, data)
                    if self._cut(data, engine):
                        data = b""
                target.sendall(data)
            except OSError:
                data = b""
            if not data:
                self._hang_up(service, engine)
                return

    def _burst(self, service: socket.socket, data: bytes) -> bytes:
        while select([service], [], [], _QUIET_S)[0] and (more := service.recv(_CHUNK_BYTES)):
            data += more
        is_held = self._holds_after is not None and any(self._holds_after in burst for burst in self.bursts)
        self.bursts.append(data)
        if is_held:
            self.held.set()
            self._may_pass.wait()
        return data

    def _cut(self, data: bytes, engine: socket.socket) -> bool:
        """Whether the connection ends here, after everything was done that the cut says."""
        if not self.cuts or self.cuts[0].sent not in data:
            return False
        cut = self.cuts.popleft()
        if cut.forward:
            engine.sendall(data)
        answer = b""
        engine.settimeout(_ANSWER_LIMIT_S)
        while cut.answer not in answer and (chunk := engine.recv(_CHUNK_BYTES)):
            answer += chunk
        if cut.then is not None:
            cut.then()
        return True

    def _hang_up(self, *sockets: socket.socket) -> None:
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The other side was faster.
                continue
