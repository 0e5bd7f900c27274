"""A cell of three machines for tests: etcd, Patroni and PostgreSQL on each, configured as `deploy/cell-ha/` is.

Owns starting a machine, ending it as a power cut would, and bringing it back. A machine is a folder, some ports and a
place in the network; on loopback all have one address. Everything runs as the system's user `postgres` for root.
"""

import os
import pwd
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from plainsql_server.operations.files.cell import with_bounded_memory
from plainsql_server.operations.files.ha_cell import HaConfig, Node
from server.tests.processes import kill_with_children
from server.tests.secrets_in_logs import refuse_secrets

_STOP_LIMIT_S = 30


@dataclass
class Machine:
    """One machine of a cell."""

    node: Node
    config: HaConfig
    folder: Path
    # What a command is run by, to be run on this machine: nothing, or `ip netns exec …`.
    inside: Sequence[str] = ()
    # The address at which the service reaches it.
    public_host: str = ""
    _running: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def data(self) -> Path:
        return Path(self.config.data_directory)

    def start(self) -> None:
        """Starts etcd and Patroni, which starts PostgreSQL. Does not wait for them."""
        self.start_etcd()
        self.start_patroni()

    def start_etcd(self) -> None:
        file = self._written("etcd.yml", self.config.etcd_yml(self.node))
        self._start("etcd", ["etcd", "--config-file", str(file)])

    def start_patroni(self) -> None:
        file = self._written("patroni.yml", self.config.patroni_yml(self.node))
        self._start("patroni", with_bounded_memory([sys.executable, "-m", "patroni", str(file)]))

    def kill(self) -> None:
        """Ends everything on it at once, as a power cut would."""
        self.kill_patroni()
        self.kill_postgres()
        self.kill_etcd()

    def kill_patroni(self) -> None:
        self._kill("patroni")

    def kill_etcd(self) -> None:
        self._kill("etcd")

    def kill_postgres(self) -> None:
        """Ends PostgreSQL alone, with every process of it."""
        with suppress(FileNotFoundError, ProcessLookupError):
            kill_with_children(self.postmaster_pid())

    def restart_patroni(self) -> None:
        """Stops Patroni as an operator does, PostgreSQL with it, and starts both again."""
        process = self._running.pop("patroni")
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_LIMIT_S)
        self.start_patroni()

    def postmaster_pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n")[0])

    def status(self, path: str = "/patroni") -> dict[str, Any]:
        """What its Patroni says. Raises httpx.TransportError if it says nothing."""
        files = self.config.files
        trust = ssl.create_default_context(cafile=files.nodes_ca)
        trust.load_cert_chain(files.node_cert, files.node_key)
        url = f"https://{self.node.host}:{self.node.patroni_port}{path}"
        answer: dict[str, Any] = httpx.get(url, verify=trust, timeout=3).json()
        return answer

    def log(self, program: str) -> str:
        file = self.folder / f"{program}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def check_logs(self) -> None:
        refuse_secrets(*self.folder.glob("*.log"))

    def _kill(self, program: str) -> None:
        process = self._running.pop(program, None)
        if process is not None:
            process.kill()
            process.wait(_STOP_LIMIT_S)

    def _start(self, program: str, command: Sequence[str]) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            self._running[program] = subprocess.Popen(
                [*self.inside, *_as_postgres(), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            )  # fmt: skip

    def _written(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        return file


def _as_postgres() -> list[str]:
    """What runs a command as the user that PostgreSQL runs as."""
    if os.geteuid() != 0:
        return []
    # It may read what root may: the interpreter can be in a folder of root's own.
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *reads]


def system_user() -> str:
    """The user that PostgreSQL runs as."""
    return "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def hand_over(folder: Path) -> None:
    """Gives a folder and what is in it to the user that PostgreSQL runs as."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, "postgres", "postgres")
