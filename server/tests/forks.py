"""Processes of ours for tests, as forks of a process that has imported the programs.

    process = forks.start(["data"], environment, output=log)
    ended = forks.run(["key", "list", "--org", "acme"], environment)

They are processes of their own, with the arguments, environment, streams and exit codes that the programs would have,
without half a second of imports each. So are the workers of a plane that has several. A test worker has one process
that forks. It starts with the first use and ends with the worker, also with one that is killed, and its forks end with
it. What only a new process has is started as one: see `needs_new_process`.
"""

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

from plainsql_server.dev.forks import Fork, _forget_signal_handlers, fork
from server.tests.run_folder import RUN, lasting_folder, run_folder

_ROOT = Path(__file__).resolve().parents[2]
SERVER, CLIENT = "plainsql_server.cli", "plainsql.command"
_PROGRAMS = {SERVER: "plainsql-server", CLIENT: "plainsql"}
# What the commands import when they are called.
_LOADED = ("plainsql_server.assembly", "plainsql_server.directory.migrations", "plainsql.client", "plainsql.control")
# Read by the dynamic linker, the allocator or the interpreter when a program starts.
_READ_AT_START = ("LD_", "MALLOC_", "PYTHON")
_REQUEST_BYTES = 1 << 17
_LIMIT_S = 120.0


class ForkedProcess:
    """A fork, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], status: socket.socket) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._status = status
        self.pid = int(self._received(_LIMIT_S))

    def poll(self) -> int | None:
        """The exit code, or None as long as it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            try:
                self.returncode = int(self._received(timeout))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _received(self, timeout_s: float | None) -> bytes:
        self._status.settimeout(timeout_s)
        received = self._status.recv(64)
        assert received, "the process that forks has ended"
        return received


Process = subprocess.Popen[bytes] | ForkedProcess


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


# As they are before a test changes something: those of the process that forks.
_OURS = _read_at_start(os.environ)


def needs_new_process(environment: Mapping[str, str]) -> bool:
    """Whether a fork would not do: a variable counts that only a new process reads."""
    return not _read_at_start(environment).items() <= _OURS.items()


def start(
    arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes], folder: Path, *, module: str = SERVER
) -> Process:
    """`plainsql-server …` in this folder, with its output in a file. Or a module of the tests that runs it."""
    if needs_new_process(environment):
        command = [sys.executable, "-m", _module_of(module), *arguments]
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
    with open(os.devnull, "rb") as nothing:
        streams = (nothing.fileno(), output.fileno(), output.fileno())
        return _fork(module, arguments, environment, streams, folder)


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    program: str = SERVER,
    input: str = "",
    stdin: IO[bytes] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> "subprocess.CompletedProcess[str]":
    """A command and what it prints, as `subprocess.run` does it with `capture_output`."""
    if needs_new_process(environment):
        command = [sys.executable, "-m", _module_of(program), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, input=input
        )
    with _text_file() as given, _text_file() as output, _text_file() as errors:
        given.write(input)
        given.seek(0)
        streams = ((stdin or given).fileno(), output.fileno(), errors.fileno())
        process = _fork(program, arguments, environment, streams, cwd or Path.cwd())
        try:
            process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, process.wait(), output.read(), errors.read())


def _module_of(program: str) -> str:
    """What Python runs as `__main__`."""
    return program.partition(".")[0] if program in _PROGRAMS else program


def _text_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8")


def _fork(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int], folder: Path
) -> ForkedProcess:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {"program": program, "arguments": arguments, "environment": dict(environment), "folder": str(folder)}
    with theirs:
        socket.send_fds(_server().requests, [json.dumps(request).encode()], [*streams, theirs.fileno()])
    return ForkedProcess(arguments, ours)


class _Server:
    """The process that forks, for this one."""

    def __init__(self) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                # It belongs to no test file, since it stays until the worker ends.
                env=_OURS | {"TMPDIR": str(lasting_folder()), "PATH": os.environ["PATH"], RUN: str(run_folder())},
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def end(self) -> None:
        self.requests.close()
        self._process.wait(_LIMIT_S)


_server = cache(_Server)


def end() -> None:
    """Ends the process that forks, if there is one."""
    if _server.cache_info().currsize:
        _server().end()
        _server.cache_clear()


class _Forking:
    """What the process that forks does."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._running: dict[int, socket.socket] = {}
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Forks until nobody can ask for it any more."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        is_asked = True
        while is_asked:
            ready, _, _ = select.select([self._requests.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._report_ended()
            if self._requests.fileno() in ready:
                is_asked = self._answer()
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)

    def _answer(self) -> bool:
        request, descriptors, _, _ = socket.recv_fds(self._requests, _REQUEST_BYTES, 4)
        if not request:
            return False
        asked = json.loads(request)
        *streams, status_descriptor = descriptors
        status = socket.socket(fileno=status_descriptor)
        work = partial(_run, asked["program"], asked["arguments"])
        made = fork(
            work, environment=asked["environment"], streams=(streams[0], streams[1], streams[2]), folder=asked["folder"]
        )
        for each in streams:
            os.close(each)
        self._running[made.pid] = status
        _tell(status, made.pid)
        return True

    def _report_ended(self) -> None:
        for pid in list(self._running):
            # Seen first and reaped last: as long as it is not reaped, its number is no other process's.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                with self._running.pop(pid) as status:
                    _tell(status, Fork(pid).wait())


def _tell(status: socket.socket, number: int) -> None:
    # A worker that was killed is not there to hear it.
    with contextlib.suppress(OSError):
        status.send(str(number).encode())


def _run(program: str, arguments: Sequence[str]) -> int:
    sys.argv = [_PROGRAMS.get(program, program), *arguments]
    if program not in _PROGRAMS:
        runpy.run_module(program, run_name="__main__")
        return 0
    main: Any = importlib.import_module(program).main
    code = main() if program == CLIENT else main(prog_name=_PROGRAMS[program])
    return int(code or 0)


class _Forked:
    """What uvicorn starts its workers with."""

    def Process(self, *, target: Callable[..., None], kwargs: dict[str, Any]) -> Any:  # noqa: N802  # multiprocessing's
        if threading.active_count() > 1:
            # A fork would lack the other threads.
            return multiprocessing.get_context("spawn").Process(target=target, kwargs=kwargs)
        return multiprocessing.get_context("fork").Process(target=_as_new_process, args=(target,), kwargs=kwargs)


def _as_new_process(target: Callable[..., None], /, **kwargs: Any) -> None:
    """A worker as if it were spawned: without its parent's signal handlers, and without other workers' pipes."""
    _forget_signal_handlers()
    parent = multiprocessing.parent_process()
    assert parent is not None
    kept = {0, 1, 2, parent.sentinel, kwargs["target"].__self__.child_conn.fileno()}
    kept |= {each.fileno() for each in kwargs["sockets"]}
    for number in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        # The listing's own descriptor is among them, and closed by now.
        with contextlib.suppress(OSError):
            os.close(number)
    target(**kwargs)


def _serve_forks() -> None:
    import uvicorn._subprocess  # noqa: PLC0415

    import plainsql_server.cli as commands  # noqa: PLC0415
    from plainsql_server.dev import service  # noqa: PLC0415

    setattr(uvicorn._subprocess, "spawn", _Forked())  # noqa: B010  # mypy knows it as a context
    # So that `dev` can fork a plane whose workers are forks, too.
    setattr(service.Plane, "_is_forked", property(lambda _: True, lambda *_: None))  # noqa: B010

    for module in (*_PROGRAMS, *_LOADED):
        importlib.import_module(module)
    for path in Path(commands.__path__[0]).rglob("*.py"):
        relative = path.relative_to(commands.__path__[0]).with_suffix("")
        importlib.import_module(".".join([SERVER, *(part for part in relative.parts if part != "__init__")]))
    # A fork shares the memory of what was imported until one side writes to it. A collection would write to all of it.
    gc.freeze()
    _Forking(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    _serve_forks()
