"""The PostgreSQL clusters of a Debian machine, in a folder: made, configured and lost as on a machine of its own.

    machine = DebianMachine.made(folder)
    machine.run("pg_createcluster", "15", "directory")
    machine.lose()

Commands that a guide has for root run here as they are, in bash, with the paths and ports of the machine. So it needs
root.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plainsql_server.dev.ports import free_port
from server.tests import forks
from server.tests.processes import kill_with_children

MAIN, DIRECTORY = "main", "directory"
_TIMEOUT_S = 170


@dataclass(frozen=True)
class DebianMachine:
    """One machine."""

    root: Path
    ports: Mapping[str, int] = field(default_factory=lambda: {MAIN: free_port(), DIRECTORY: free_port()})

    @classmethod
    def made(cls, root: Path) -> "DebianMachine":
        machine = cls(root)
        for folder in (root, machine.socket_folder, machine.units, machine.certificates, root / "data", root / "etc"):
            folder.mkdir()
            give_to_postgres(folder)
        return machine

    @property
    def socket_folder(self) -> Path:
        return self.root / "run"

    @property
    def units(self) -> Path:
        return self.root / "units"

    @property
    def certificates(self) -> Path:
        return self.root / "tls"

    def config(self, cluster: str) -> Path:
        return self.root / "etc/15" / cluster

    def data(self, cluster: str) -> Path:
        return self.root / "data" / cluster

    def conninfo(self, cluster: str) -> str:
        return f"host={self.socket_folder} port={self.ports[cluster]}"

    def run(
        self, command: str, settings: Mapping[str, str] | None = None, codes: tuple[int, ...] = (0,)
    ) -> "subprocess.CompletedProcess[str]":
        """A command line of root's, in bash. It must end with one of these exit codes."""
        text = self._with_own_paths(command)
        environment = {
            "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PG_CLUSTER_CONF_ROOT": str(self.root / "etc"),
            # This machine's systemd has nothing to do with it.
            "_SYSTEMCTL_SKIP_REDIRECT": "1", **(settings or {}),
        }  # fmt: skip
        if text.startswith("plainsql-server "):
            ended = forks.run(shlex.split(text)[1:], environment, timeout=_TIMEOUT_S)
        else:
            ended = subprocess.run(
                ["bash", "-c", text],
                capture_output=True, text=True, check=False, cwd="/", timeout=_TIMEOUT_S, env=environment,
            )  # fmt: skip
        assert ended.returncode in codes, f"{text}\n{ended.stdout}{ended.stderr}"
        return ended

    def create_cluster(self, name: str) -> None:
        """As Debian's package does for `main`."""
        self.run(f"pg_createcluster 15 {name}")

    def created(self, command: str) -> str:
        """A command line of pg_createcluster with where its cluster is to be."""
        name = command.split()[2]
        return (
            f"{command.partition(' --port')[0]} --port {self.ports[name]} --datadir {self.data(name)}"
            f" --socketdir {self.socket_folder} --logfile {self.root}/log-{name} -- --no-sync"
        )

    def is_running(self, cluster: str) -> bool:
        return (self.data(cluster) / "postmaster.pid").exists()

    def kill(self, *clusters: str) -> None:
        """Ends every process of these clusters at once, as a power cut would."""
        for cluster in clusters:
            kill_with_children(int((self.data(cluster) / "postmaster.pid").read_text().split("\n")[0]))

    def lose(self, *clusters: str) -> None:
        """Nothing of these clusters is left."""
        for cluster in clusters:
            self._remove_locks(cluster)
            shutil.rmtree(self.data(cluster))
            shutil.rmtree(self.config(cluster))

    def stop(self) -> None:
        """Ends all that runs."""
        for cluster in self.ports:
            if self.is_running(cluster):
                self.kill(cluster)
            self._remove_locks(cluster)

    def _remove_locks(self, cluster: str) -> None:
        """The folder of pgBackRest's locks, which is outside of the machine's."""
        conf = self.config(cluster) / "pgbackrest/pgbackrest.conf"
        if conf.exists():
            (folder,) = re.findall("^lock-path=(.+)$", conf.read_text(), re.MULTILINE)
            shutil.rmtree(folder, ignore_errors=True)

    def _with_own_paths(self, command: str) -> str:
        text = command.replace("/etc/postgresql/15", str(self.root / "etc/15"))
        text = text.replace("/etc/systemd/system", str(self.units))
        return self.created(text) if text.startswith("pg_createcluster") else text


def give_to_postgres(path: Path) -> None:
    shutil.chown(path, "postgres", "postgres")
