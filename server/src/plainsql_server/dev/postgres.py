"""The PostgreSQL parts: creating the cluster once, and running it."""

import contextlib
import os
import subprocess
from signal import Signals as Signal

from plainsql_server.dev.binaries import Binaries
from plainsql_server.dev.cluster import PORT, SUPERUSER, Cluster
from plainsql_server.dev.folder import RecordedProcess, RunState
from plainsql_server.dev.options import DevError
from plainsql_server.dev.parts import Part
from plainsql_server.dev.processes import Launcher, running_inside, started, wait_until_gone
from plainsql_server.operations.files.cell import with_bounded_memory

# The first release with built-in locales, which don't depend on the operating system.
_BUILTIN_LOCALE_MAJOR = 17
# A stop takes a tenth of a second. Ending 1,500 connections takes three seconds on two busy cores.
_FAST_STOP_S = 8.0
# After SIGQUIT, PostgreSQL itself kills the processes that are left after five seconds. If it were killed earlier,
# some of them could go on without it.
_HARD_STOP_S = 6.0
_KILL_LIMIT_S = 5.0
_LEFTOVER_PLAN = ((Signal.SIGINT, _FAST_STOP_S), (Signal.SIGQUIT, _HARD_STOP_S), (Signal.SIGKILL, _KILL_LIMIT_S))


class NewCluster(Part):
    """Runs initdb on the first start. Does nothing on later ones."""

    name = "cluster"
    lasting = False
    start_limit_s = 60.0
    stop_plan = ((0.0, Signal.SIGKILL),)

    def __init__(self, launcher: Launcher, cluster: Cluster, binaries: Binaries) -> None:
        self._launcher = launcher
        self._cluster = cluster
        self._binaries = binaries
        self._made = False

    def start(self) -> None:
        if self._cluster.existing_major() is not None:
            return
        self.child = self._launcher.launch(
            self.name,
            [self._binaries.program("initdb"), "-D", self._cluster.draft, *_initdb_options(self._binaries.major)],
            environment=_environment(),
            death_signal=Signal.SIGKILL,
            account=self._cluster.account,
        )

    def ready(self) -> bool:
        if self.child is None:
            return True
        if not self.child.exited():
            return False
        if self.child.process.returncode != 0:
            raise self.failure("couldn't be created")
        self._cluster.draft.rename(self._cluster.data)
        self._made = True
        return True

    def detail(self) -> str:
        return f"{'created' if self._made else 'reused'} in {self._cluster.home}"


class Postgres(Part):
    """The server: both the cell and the directory."""

    name = "postgres"
    needs = frozenset({NewCluster.name})
    # After a crash it first replays its WAL, which takes long after heavy writes.
    start_limit_s = 120.0
    stop_plan = (
        (0.0, Signal.SIGINT),
        (_FAST_STOP_S, Signal.SIGQUIT),
        (_FAST_STOP_S + _HARD_STOP_S, Signal.SIGKILL),
    )

    def __init__(self, launcher: Launcher, cluster: Cluster, binaries: Binaries) -> None:
        self._launcher = launcher
        self._cluster = cluster
        self._binaries = binaries

    def start(self) -> None:
        self._cluster.configure(self._binaries.directory)
        self.child = self._launcher.launch(
            self.name,
            with_bounded_memory([self._binaries.program("postgres"), "-D", self._cluster.data]),
            environment=_environment(),
            death_signal=Signal.SIGINT,
            account=self._cluster.account,
            # If a server is left running, it is not killed but stopped, by `end_leftover_postgres`.
            marked=False,
        )

    def ready(self) -> bool:
        host, port = str(self._cluster.socket_directory), str(PORT)
        asked = [str(self._binaries.program("pg_isready")), "--quiet", "--timeout=1", "-h", host, "-p", port]
        return subprocess.run(asked, env=_environment(), capture_output=True, check=False).returncode == 0

    def detail(self) -> str:
        return f"PostgreSQL {self._binaries.version}, socket in {self._cluster.socket_directory}"

    def gone(self) -> bool:
        # Its child processes exit after it does. The cluster is free only when they are gone, too.
        return super().gone() and not running_inside(self._cluster.home, "postgres")

    def send(self, number: Signal) -> None:
        super().send(number)
        if number is Signal.SIGKILL or (self.child is not None and self.child.exited()):
            # Each backend leads its own process group, and a running statement does not notice that the server is gone.
            _signal_servers(running_inside(self._cluster.home, "postgres"), Signal.SIGKILL)


def end_leftover_postgres(cluster: Cluster, state: RunState | None) -> None:
    """Stops a PostgreSQL that a killed run left running in this cluster. No committed row is lost."""
    left = running_inside(cluster.home, "postgres") | _still_running(state)
    for number, limit_s in _LEFTOVER_PLAN:
        _signal_servers(left, number)
        if wait_until_gone(left, limit_s):
            break
    else:
        raise DevError(f"Can't stop the PostgreSQL of an earlier run (processes {sorted(left)}).")
    cluster.forget_crash()


def _still_running(state: RunState | None) -> dict[int, str]:
    recorded: list[RecordedProcess] = state.processes if state else []
    servers = [entry for entry in recorded if entry.name == Postgres.name]
    return {entry.pid: entry.started for entry in servers if entry.started and started(entry.pid) == entry.started}


def _signal_servers(left: dict[int, str], number: Signal) -> None:
    for pid, began in left.items():
        # Check again right before the signal: the process may have exited, and its pid may have been reused.
        if started(pid) == began and (number is Signal.SIGKILL or _is_server(pid, left)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _is_server(pid: int, left: dict[int, str]) -> bool:
    """Whether it is the server itself, not one of its children, for which the signals have other meanings."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except FileNotFoundError:
        return len(left) == 1
    return int(text[text.rindex(")") + 2 :].split()[1]) not in left


def _initdb_options(major: int) -> list[str]:
    # --no-sync skips fsync only for the new, empty cluster. Everything stored later is synced.
    options = ["-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
    return [*options, "--locale-provider=builtin"] if major >= _BUILTIN_LOCALE_MAJOR else options


def _environment() -> dict[str, str]:
    """An environment without the user's PG… variables and locales, which would affect the cluster."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
