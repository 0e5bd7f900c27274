"""Runs a plane under uvicorn: a parent process starts the workers and replaces those that die.

    serve(config)                          # all workers share the port of `config`
    serve(config, range(8500, 8502))       # worker 0 also listens on 8500, worker 1 on 8501

With ports of their own, `config.app` names a function, which is called with the worker's port. A worker binds its own
port itself, so the port refuses connections from the moment the worker dies until its replacement is ready, and a proxy
goes to another worker at once. A socket of the parent's would let connections wait that long.
"""

import logging
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.importer import import_from_string
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from plainsql_server.http.server.tls import Server

_log = logging.getLogger("uvicorn.error")


class Worker(Process):
    """A process with the shared sockets, and with a port of its own if there is one for it."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], own_port: int | None) -> None:
        self._own_port = own_port
        super().__init__(config, sockets)

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves. Runs in the new process."""
        # Before the thread that answers the parent asks for it.
        self._server = Server(self.config)
        shared = sockets or []
        super().target(shared if self._own_port is None else [*shared, self._own_socket(self._own_port)])

    def _own_socket(self, port: int) -> socket.socket:
        try:
            # Two may listen while one of them replaces the other.
            own = _bound(self.config.host, port, is_shared=True)
        except OSError as error:
            # The parent tries again.
            _log.error("Can't listen on %s:%d: %s", self.config.host, port, error.strerror)
            sys.exit(1)
        _pass_port(self.config, port)
        return own


class Workers(Multiprocess):
    """Processes that share a port. A worker that dies or no longer responds to its parent is replaced.

    A replacement has the port of its predecessor.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], own_ports: Sequence[int]) -> None:
        super().__init__(config, sockets)
        self._own_ports = own_ports

    def init_processes(self) -> None:
        self.processes = [self._started(index) for index in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        """Replaces dead workers, as uvicorn does, but without waiting for a dead worker's reply.

        If a worker dies after the parent has pinged it, uvicorn would wait for the full ping timeout and replace no
        other worker meanwhile. The cause is that the parent keeps a copy of the worker's end of their pipe. Without
        that copy, the pipe closes when the worker dies.
        """
        for process in self.processes:
            process.child_conn.close()
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if not process.is_alive(timeout=self.config.timeout_worker_healthcheck):
                self._replace(index, process)

    def restart_all(self) -> None:
        """Replaces each worker by one that is ready."""
        for index, process in enumerate(self.processes):
            successor = self._started(index)
            if not successor.wait_until_ready(self.config.timeout_worker_healthcheck, self.should_exit):
                successor.kill()
                successor.join()
                _log.error("Process %s was not ready in time. Process %s keeps running.", successor.pid, process.pid)
                return
            process.terminate()
            process.join()
            self.processes[index] = successor

    def handle_ttin(self) -> None:
        """Adds a worker. It has no port of its own, unless it takes the place of one that was removed."""
        self.processes_num += 1
        self.processes.append(self._started(len(self.processes)))

    def _replace(self, index: int, process: Process) -> None:
        process.kill()
        process.join()
        if process.exitcode == STARTUP_FAILURE:
            # Another one would fail in the same way.
            _log.error("Process %s failed to start. Stopping.", process.pid)
            self.should_exit.set()
        else:
            self.processes[index] = self._started(index)

    def _started(self, index: int) -> Worker:
        own_port = self._own_ports[index] if index < len(self._own_ports) else None
        worker = Worker(self.config, self.sockets, own_port)
        worker.start()
        return worker


def serve(config: uvicorn.Config, own_ports: Sequence[int] = (), metrics_ports: Sequence[int] = ()) -> None:
    """Serves until it is asked to stop. Exits the process if it cannot start.

    `metrics_ports` are those that the application uses itself. They must be free now: later, a worker waits for one.
    """
    server = Server(config)
    for port in metrics_ports:
        _free(config.host, port).close()
    # Later, a worker can't tell a program that listens on its port from the worker that it replaces.
    own = [_free(config.host, port) for port in own_ports]
    with suppress(KeyboardInterrupt):
        if config.workers > 1:
            for each in own:
                each.close()
            with ExitStack() as kept:
                for port in own_ports:
                    keep_port(kept, config.host, port)
                Workers(config, [config.bind_socket()], own_ports).run()
            return
        if own:
            _pass_port(config, own_ports[0])
        server.run([_free(config.host, config.port), *own] if own or config.is_ssl else None)
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def _pass_port(config: uvicorn.Config, port: int) -> None:
    config.app = partial(_call, config.app, port)


def _call(factory: Any, port: int) -> Any:
    return import_from_string(factory)(port)


def keep_port(kept: ExitStack, host: str, port: int) -> None:
    """Reserves a worker's port, so that no other user's program can bind it. Connections are refused: nothing listens.

    Without SO_REUSEADDR: with it, another user's socket could have the same port until one of them listens.
    """
    bound = kept.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, True)
    try:
        try:
            bound.bind((host, port))
        except OSError:
            # Connections of an earlier process on this port are still closing. Only the bind itself needs the option.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            bound.bind((host, port))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, False)
    except OSError as error:
        # The workers try to use it all the same.
        _log.warning("Can't keep %s:%d: %s", host, port, error.strerror)


def _free(host: str, port: int) -> socket.socket:
    """A socket on a port that nothing else listens on. Exits the process if something does."""
    try:
        return _bound(host, port, is_shared=False)
    except OSError as error:
        _log.error("Can't listen on %s:%d: %s", host, port, error.strerror)
        sys.exit(STARTUP_FAILURE)


def _bound(host: str, port: int, *, is_shared: bool) -> socket.socket:
    """A socket that does not listen yet: uvicorn listens when the application is ready."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
