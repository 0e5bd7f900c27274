"""Runs a plane under uvicorn: a parent process starts the workers and replaces those that die.

    serve(config)                          # all workers share the port of `config`
    serve(config, range(8500, 8502))       # worker 0 also listens on 8500, worker 1 on 8501

A single worker needs no parent: the process serves by itself. On SIGHUP it starts a successor, becomes its parent, and
finishes what it has begun. A parent replaces each worker by a successor that is ready.

With ports of their own, `config.app` names a function, which is called with the worker's port. A worker binds its own
port itself, so the port refuses connections from the moment the worker dies until its replacement is ready, and a proxy
goes to another worker at once. A socket of the parent's would let connections wait that long. While a worker and its
successor listen on one port, the kernel gives new connections to the successor: see
`http/server/server.py`.
"""

import copy
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.importer import import_from_string
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import SIGNALS, Process

from plainsql_server.http.server.server import Server, stop_again

# Sent by the parent to a worker whose successor is ready.
_RETIRE = signal.SIGUSR1
_WORKERS_SIGNALS = {_RETIRE, signal.SIGHUP}

# How long a successor may take to start. Its predecessor serves meanwhile, so there is no hurry.
_READY_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.5

_log = logging.getLogger("uvicorn.error")


class Worker(Process):
    """A process with the shared sockets, and with a port of its own if there is one for it."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], own_port: int | None) -> None:
        self._own_port = own_port
        super().__init__(config, sockets)

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves. Runs in the new process."""
        # Before the thread that answers the parent asks for it.
        server = self._server = Server(self.config)
        signal.signal(_RETIRE, lambda *_: server.retire())
        # A group of processes may get it, of which only the parent reloads.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WORKERS_SIGNALS)
        shared = sockets or []
        super().target(shared if self._own_port is None else [*shared, self._own_socket(self._own_port)])

    def _own_socket(self, port: int) -> socket.socket:
        try:
            own = _own_socket(self.config.host, port)
        except OSError as error:
            # The parent tries again.
            _log.error("Can't listen on %s:%d: %s", self.config.host, port, error.strerror)
            sys.exit(1)
        _pass_port(self.config, port)
        return own

    def retire(self) -> None:
        """Stops it without losing a request: its successor is ready."""
        if self.process.exitcode is None and self.pid is not None:
            os.kill(self.pid, _RETIRE)


class _Stop(threading.Event):
    """Whether the parent is asked to stop: it is set, or a signal that sets it is in the queue."""

    def __init__(self, signal_queue: list[int]) -> None:
        super().__init__()
        self._signal_queue = signal_queue

    def is_set(self) -> bool:
        return super().is_set() or not {signal.SIGTERM, signal.SIGINT}.isdisjoint(self._signal_queue)


class Workers(Multiprocess):
    """Processes that share a port. A worker that dies or no longer responds to its parent is replaced.

    A replacement has the port of its predecessor.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], own_ports: Sequence[int]) -> None:
        super().__init__(config, sockets)
        self.should_exit = _Stop(self.signal_queue)
        self._own_ports = own_ports
        # They were replaced, and finish what they have begun.
        self._retired: list[Worker] = []

    def init_processes(self) -> None:
        if not self.processes:
            self.processes = [self._started(index) for index in range(self.processes_num)]

    def take_over(self, server: Server) -> None:
        """Replaces a server in this process by a worker, and watches that one until it is asked to stop.

        If the worker does not start, the server goes on, and the next SIGHUP tries again.
        """
        while (successor := self._ready_successor(0)) is None:
            if not self.should_exit.is_set():
                _log.error("Not reloaded: the new process was not ready. This one keeps running.")
            while signal.SIGHUP not in self.signal_queue:
                if self.should_exit.is_set():
                    return
                self.should_exit.wait(_LOOK_EVERY_S)
            self.signal_queue.remove(signal.SIGHUP)
        self.processes = [successor]
        server.retire()
        self.run()

    def stop(self) -> None:
        """Ends what `take_over` does."""
        self.signal_queue.append(signal.SIGTERM)

    def terminate_all(self) -> None:
        # Or else the kernel would let clients connect to this process, which never answers.
        for each in self.sockets:
            each.close()
        super().terminate_all()
        for worker in self._retired:
            worker.terminate()

    def join_all(self) -> None:
        super().join_all()
        for worker in self._retired:
            worker.join()

    def keep_subprocess_alive(self) -> None:
        """Replaces dead workers, as uvicorn does, but without waiting for a dead worker's reply.

        If a worker dies after the parent has pinged it, uvicorn would wait for the full ping timeout and replace no
        other worker meanwhile. The cause is that the parent keeps a copy of the worker's end of their pipe. Without
        that copy, the pipe closes when the worker dies.
        """
        self._retired = [worker for worker in self._retired if worker.process.is_alive()]
        for process in self.processes:
            process.child_conn.close()
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if not process.is_alive(timeout=self.config.timeout_worker_healthcheck):
                self._replace(index, process)

    def restart_all(self) -> None:
        """Replaces each worker by one that is ready. The old one finishes what it has begun; nothing waits for that."""
        for index, process in enumerate(self.processes):
            successor = self._ready_successor(index)
            if successor is None and self.should_exit.is_set():
                return
            if successor is None:
                _log.error("Not reloaded: the new process was not ready. Process %s keeps running.", process.pid)
                return
            assert isinstance(process, Worker)
            process.retire()
            self._retired.append(process)
            self.processes[index] = successor

    def handle_ttin(self) -> None:
        """Adds a worker. It has no port of its own, unless it takes the place of one that was removed."""
        worker = self._started_or_none(len(self.processes))
        if worker is not None:
            self.processes_num += 1
            self.processes.append(worker)

    def _replace(self, index: int, process: Process) -> None:
        process.kill()
        process.join()
        if process.exitcode == STARTUP_FAILURE:
            # Another one would fail in the same way.
            _log.error("Process %s failed to start. Stopping.", process.pid)
            self.should_exit.set()
        elif (worker := self._started_or_none(index)) is not None:
            self.processes[index] = worker

    def _ready_successor(self, index: int) -> Worker | None:
        successor = self._started_or_none(index)
        if successor is None:
            return None
        if successor.wait_until_ready(_READY_WITHIN_S, self.should_exit):
            return successor
        successor.kill()
        successor.join()
        return None

    def _started_or_none(self, index: int) -> Worker | None:
        """A new worker. None if the system lacks memory, processes or descriptors for one; later it may have them."""
        try:
            return self._started(index)
        except (OSError, MemoryError, RuntimeError) as error:
            _log.error("Can't start a process: %s", error)
            return None

    def _started(self, index: int) -> Worker:
        own_port = self._own_ports[index] if index < len(self._own_ports) else None
        worker = Worker(self.config, self.sockets, own_port)
        # Until the worker handles them itself. It inherits this.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WORKERS_SIGNALS)
        try:
            worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return worker


def serve(config: uvicorn.Config, own_ports: Sequence[int] = (), also_free: Sequence[tuple[str, int]] = ()) -> None:
    """Serves until it is asked to stop. Exits the process if it cannot start.

    `also_free` are addresses that the application uses itself. They must be free now: later, a worker waits for one.
    """
    # Later, a worker can't tell a program that listens on its port from the worker that it replaces.
    for host, port in (*also_free, *((config.host, port) for port in own_ports)):
        _free(host, port).close()
    with suppress(KeyboardInterrupt), ExitStack() as kept:
        for port in own_ports:
            keep_port(kept, config.host, port)
        if config.workers > 1:
            Workers(config, [config.bind_socket()], own_ports).run()
        else:
            _serve_alone(config, own_ports)


def _serve_alone(config: uvicorn.Config, own_ports: Sequence[int]) -> None:
    shared = _free(config.host, config.port)
    # It keeps what it loads in its configuration, which workers must be able to receive.
    server = Server(copy.copy(config))
    sockets = [shared.dup()]
    if own_ports:
        sockets.append(_own_socket(config.host, own_ports[0]))
        _pass_port(server.config, own_ports[0])
    with _restored_signals():
        workers = Workers(config, [shared], own_ports)
        reload = Reload(workers, server)
        reload.start()
        try:
            server.run(sockets)
        finally:
            reload.finish()
    if reload.is_done:
        return
    stop_again(server.stop_signals)
    if not server.started:
        sys.exit(STARTUP_FAILURE)


class Reload:
    """Makes a process that serves by itself the parent of a worker, on SIGHUP."""

    def __init__(self, workers: Workers, server: Server) -> None:
        self._workers = workers
        self._server = server
        # In a signal handler, a thread can't be started: the handler may have interrupted code that holds the lock for
        # that. So it is there already. A SimpleQueue is made for signal handlers.
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._has_begun = False
        self._thread = threading.Thread(target=self._take_over)

    def start(self) -> None:
        """Handles SIGHUP from now on, and passes signals that stop the server on to the worker."""
        self._thread.start()
        # At once, and not when the server has finished what it has begun.
        self._server.on_exit = self._workers.stop
        signal.signal(signal.SIGHUP, self.on_signal)

    @property
    def is_done(self) -> bool:
        """Whether the process has become a parent."""
        return bool(self._workers.processes)

    def on_signal(self, *_: object) -> None:
        """Begins, or has the worker replaced that has begun to start."""
        if self._has_begun:
            self._workers.signal_queue.append(signal.SIGHUP)
        else:
            self._has_begun = True
            self._wanted.put(True)

    def finish(self) -> None:
        """Waits for the end of the worker, which was asked to stop if the server was."""
        if self._server.stop_signals or not self.is_done:
            self._workers.stop()
        # It has no effect on a thread that has begun.
        self._wanted.put(False)
        self._thread.join()

    def _take_over(self) -> None:
        if self._wanted.get():
            self._workers.take_over(self._server)


@contextmanager
def _restored_signals() -> Generator[None, None, None]:
    """Restores the signal handlers that `Workers` replaces."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _own_socket(host: str, port: int) -> socket.socket:
    """A socket on a worker's own port. Two may listen while one of them replaces the other."""
    return _bound(host, port, is_shared=True)


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
