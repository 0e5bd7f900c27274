"""The parts that are PostgreSQL: making the cluster once, and running it.

Owns how the engine's programs are called. Refuses to know what is stored in the cluster.
"""

import os
import subprocess
from signal import Signals as Signal

from plainsql_server.dev.binaries import Binaries
from plainsql_server.dev.cluster import PORT, SUPERUSER, Cluster
from plainsql_server.dev.folder import Recorded, State
from plainsql_server.dev.options import DevError
from plainsql_server.dev.parts import Part
from plainsql_server.dev.processes import Launcher, running_inside, started, wait_until_gone
from plainsql_server.operations.files.cell import with_bounded_memory

# The first release with a locale of its own, which needs nothing from the operating system.
_BUILTIN_LOCALE_MAJOR = 17
_FAST_STOP_S = 3.0
_HARD_STOP_S = 2.0


class NewCluster(Part):
    """Runs initdb on the first start; nothing on later ones."""

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
            raise self.failure("could not be made")
        self._cluster.draft.rename(self._cluster.data)
        self._made = True
        return True

    def detail(self) -> str:
        return f"{'made' if self._made else 'kept'} in {self._cluster.home}"


class Postgres(Part):
    """The server: the cell and the directory in one."""

    name = "postgres"
    needs = frozenset({NewCluster.name})
    # After a crash it replays its log first, which a lot of writing makes long.
    start_limit_s = 120.0
    stop_plan = ((0.0, Signal.SIGINT), (1.3, Signal.SIGQUIT), (1.8, Signal.SIGKILL))

    def __init__(self, launcher: Launcher, cluster: Cluster, binaries: Binaries) -> None:
        self._launcher = launcher
        self._cluster = cluster
        self._binaries = binaries

    def start(self) -> None:
        self._cluster.configure()
        self.child = self._launcher.launch(
            self.name,
            with_bounded_memory([self._binaries.program("postgres"), "-D", self._cluster.data]),
            environment=_environment(),
            death_signal=Signal.SIGINT,
            account=self._cluster.account,
            # A leftover server is not killed but stopped, by `end_leftover_postgres`.
            marked=False,
        )

    def ready(self) -> bool:
        host, port = str(self._cluster.socket_directory), str(PORT)
        asked = [str(self._binaries.program("pg_isready")), "--quiet", "--timeout=1", "-h", host, "-p", port]
        return subprocess.run(asked, env=_environment(), capture_output=True, check=False).returncode == 0

    def detail(self) -> str:
        return f"PostgreSQL {self._binaries.version}, socket in {self._cluster.socket_directory}"

    def gone(self) -> bool:
        # Its own children end by themselves when it does, but only then is the cluster free.
        return super().gone() and not running_inside(self._cluster.home, "postgres")


def end_leftover_postgres(cluster: Cluster, state: State | None) -> None:
    """Ends the PostgreSQL that a killed run left in this cluster, keeping every committed row."""
    left = running_inside(cluster.home, "postgres") | _still_running(state)
    for number, limit_s in ((Signal.SIGINT, _FAST_STOP_S), (Signal.SIGQUIT, _HARD_STOP_S), (Signal.SIGKILL, 1.0)):
        _signal_servers(left, number)
        if wait_until_gone(left, limit_s):
            break
    else:
        raise DevError(f"PostgreSQL of an earlier run (processes {sorted(left)}) does not end.")
    cluster.forget_crash()


def _still_running(state: State | None) -> dict[int, str]:
    recorded: list[Recorded] = state.processes if state else []
    servers = [entry for entry in recorded if entry.name == Postgres.name]
    return {entry.pid: entry.started for entry in servers if entry.started and started(entry.pid) == entry.started}


def _signal_servers(left: dict[int, str], number: Signal) -> None:
    for pid, began in left.items():
        # Read again right before: the process may have ended, and its number may serve someone else.
        if started(pid) == began and (number is Signal.SIGKILL or _is_server(pid, left)):
            os.kill(pid, number)


def _is_server(pid: int, left: dict[int, str]) -> bool:
    """Whether it is the server itself and not one of its children, whom a signal would mean other things to."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except FileNotFoundError:
        return len(left) == 1
    return int(text[text.rindex(")") + 2 :].split()[1]) not in left


def _initdb_options(major: int) -> list[str]:
    # --no-sync only skips making the empty cluster durable; fsync is on for everything that is stored later.
    options = ["-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
    return [*options, "--locale-provider=builtin"] if major >= _BUILTIN_LOCALE_MAJOR else options


def _environment() -> dict[str, str]:
    """Nothing of the user's: PG… variables and locales there would change what the cluster is."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
