"""Runs the commands of the steps, and asks the machine's PostgreSQL clusters.

    notes = run(["useradd", "plainsql"])           # what it printed to stderr; SetupError if it fails
    ask(machine, "main", "SELECT datname FROM pg_database")

Commands get no variables of root's shell: those of libpq would lead psql to another server, and a locale that the
machine lacks would be that of a new cluster.
"""

import shlex
import subprocess
from collections.abc import Sequence

from plainsql_server.operations.setup.machine import ENVIRONMENT, Machine, SetupError

AS_POSTGRES = ("runuser", "-u", "postgres", "--")


def run(command: Sequence[str]) -> str:
    """Run a command. Returns what it printed to stderr: warnings and remarks."""
    return _ended(command).stderr.strip()


def succeeds(command: Sequence[str]) -> bool:
    """Whether a command exits with 0."""
    try:
        _ended(command)
    except SetupError:
        return False
    return True


def ask(machine: Machine, cluster: str, query: str) -> list[str]:
    """The rows of a query with one column, as the superuser of a cluster. Raises SetupError if it can't be asked."""
    psql = ["psql", *cluster_option(machine, cluster), "--no-psqlrc", "--tuples-only", "--no-align", "--command", query]
    clusters = {"PG_CLUSTER_CONF_ROOT": str(machine.clusters)}
    return _ended([*AS_POSTGRES, *psql, "postgres"], clusters).stdout.splitlines()


def cluster_option(machine: Machine, cluster: str) -> list[str]:
    """How Debian's psql, createuser and createdb find a cluster, whatever its port is."""
    return ["--cluster", f"{machine.major}/{cluster}"]


def _ended(command: Sequence[str], more: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    try:
        # Other users can't enter the folder of root.
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd="/", env={**ENVIRONMENT, **(more or {})}
        )
    except OSError as error:
        raise SetupError(f"`{shlex.join(command)}` failed: {error}.") from error
    if ended.returncode != 0:
        output = " ".join((ended.stderr or ended.stdout).split())
        raise SetupError(f"`{shlex.join(command)}` failed: {output}")
    return ended
