"""The machine that receives a cell's WAL, as docs/backups.md sets it up: its folders, and its unit's program.

receiver = Receiver(root, received)
receiver.install(units)
receiver.start()                # the command of plainsql-stream.service, as the user postgres
"""

import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from server.tests.operations.debian_machine import MAIN, DebianMachine
from server.tests.postgres import SUPERUSER
from server.tests.processes import kill_with_children

_END_S = 60


@dataclass
class Receiver:
    """`config` is its /etc/plainsql, and `received` its folder of received WAL."""

    config: Path
    received: Path
    command: list[str] = field(default_factory=list)
    process: "subprocess.Popen[bytes] | None" = None
    logged: Path = field(init=False)

    def __post_init__(self) -> None:
        self.config.mkdir(exist_ok=True)
        self.logged = self.config / "log-receiver"

    def install(self, units: Path) -> None:
        """Notes what the unit runs."""
        text = (units / "plainsql-stream.service").read_text()
        (line,) = re.findall("^ExecStart=(.*)$", text, re.MULTILINE)
        self.command = shlex.split(line)

    def start(self) -> None:
        """As systemd starts the unit."""
        environment = (self.config / "stream.env").read_text().replace("/etc/plainsql", str(self.config))
        with self.logged.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env={"PATH": "/usr/bin:/bin", **dict(re.findall("^(PG[A-Z]+)=(.*)$", environment, re.MULTILINE))},
                user="postgres", group="postgres", extra_groups=[],
            )  # fmt: skip

    def stop(self) -> None:
        """As systemd stops the unit."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(_END_S)
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            kill_with_children(self.process.pid)
            self.process.wait(_END_S)
            self.process = None

    def adapted(self, command: str, machine: DebianMachine, pki: Path) -> str:
        """A command of the guide with the paths, the port and the roles of this site."""
        text = command.replace("/etc/plainsql/pki", str(pki))
        text = text.replace("/srv/received", str(self.received)).replace("/etc/plainsql", str(self.config))
        text = text.replace("--stream-from cell-1.example", "--stream-from localhost")
        text = text.replace("--stream-receiver receiver-1.example", "--stream-receiver localhost")
        text = text.replace("PGHOST=cell-2.example/", f"PGHOST=localhost/; s/^PGPORT=.*/PGPORT={machine.ports[MAIN]}/")
        text = text.replace("plainsql_admin", SUPERUSER)
        if text.startswith("plainsql-server cell files") and "--stream-to" not in text:
            # "With the same options."
            text += f" --stream-to {self.received} --stream-from localhost --stream-receiver localhost"
        if text.startswith("plainsql-server wal place"):
            text = text.replace("/var/lib/postgresql/15/main", str(machine.data(MAIN)))
        if text.startswith("plainsql-server wal check"):
            text += f" --socket-directory {machine.socket_folder} --port {machine.ports[MAIN]}"
        return text
