"""A whole service with archives, whose machines are lost and restored by the commands of docs/backups.md.

    with running_site() as site:
        site.follow(site.new_machine(), commands)

Clusters are Debian's, on machines in folders (`debian_machine.py`). The planes are nodes with TLS on both sides. Where
a guide says `apt` or `systemctl`, the site does what that would do; everything else is run as it is written.
"""

import os
import re
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.directory.rights.grants import Role
from plainsql_server.directory.sealing.keyring import new_key
from server.tests import logs
from server.tests.drills.rotation_site import libpq_settings
from server.tests.load import IS_FULL, Node, running_node
from server.tests.operations.backups_guide import listed, section
from server.tests.operations.debian_machine import DIRECTORY, MAIN, DebianMachine, give_to_postgres
from server.tests.operations.ledgers import HALVES, TABLES, Endpoints
from server.tests.operations.wal_receiver import Receiver
from server.tests.pki_cell import Pki
from server.tests.postgres import SUPERUSER, as_role
from server.tests.processes import kill_with_children, wait_for
from server.tests.programs import need

DATABASE = "plainsql_directory"
# How often a cluster closes a file of its WAL here. In full size, as `cell files` says.
CLOSED_AFTER_S = 50 if IS_FULL else 3
_SETTINGS = "" if IS_FULL else f"fsync = off\nshared_buffers = 16MB\narchive_timeout = {CLOSED_AFTER_S}\n"
_LIMIT_S = 120
_UNIT = re.compile(r"(plainsql-[a-z-]+)@(full)\.service")
_PRINTED_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*$", re.MULTILINE)
_HBA = "local all all trust\n"
# Of a file of the WAL, what is behind the slash here, and the end of its name, which does not tell the timeline.
_NEWEST_FILE = re.compile(r"wal archive min/max \(15\): \w{24}/(\w{24})")
_POSITION_LENGTH = 16
_WITHOUT_GAP = re.compile(r"wal start: (\w{8})\w{16}, wal stop: \w{24}")


@dataclass
class Site:
    """Everything that runs, and what an operator does with it."""

    root: Path
    pki: Pki
    # Where the cell and the directory are.
    cell: DebianMachine = field(init=False)
    directory: DebianMachine = field(init=False)
    nodes: dict[str, Node] = field(default_factory=dict)
    key: str = ""
    organization_id: str = ""
    # The moment of each cluster that was restored, in seconds since 1970, as the guide's command shows it.
    restored_until_s: dict[str, float] = field(default_factory=dict)
    machines: list[DebianMachine] = field(default_factory=list)
    # If the cell's WAL is streamed.
    receiver: Receiver | None = None
    _newest_file: str = ""

    @property
    def dsn(self) -> str:
        return f"{self.directory.conninfo(DIRECTORY)} user=postgres dbname={DATABASE}"

    @property
    def settings(self) -> dict[str, str]:
        """Those of an operator's shell."""
        return {
            "PLAINSQL_DIRECTORY_DSN": as_role(self.dsn, Role.OPERATOR), "PLAINSQL_DIRECTORY_GRACE_MS": "0",
            "PLAINSQL_SECRETS_KEYS_FILE": str(self.root / "keys"), **libpq_settings(self.pki.root, "control"),
        }  # fmt: skip

    @property
    def endpoints(self) -> Endpoints:
        trust = ssl.create_default_context(cafile=self.pki.root / "data/servers.crt")
        return Endpoints(self.nodes["data"].port, self.nodes["control"].port, self.key, trust)

    def operate(self, command: str, codes: tuple[int, ...] = (0,)) -> str:
        """What a command of the operator's prints to standard output."""
        return self.directory.run(f"plainsql-server {command}", self.settings, codes).stdout.strip()

    def ask_directory(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def as_admin(self, database: str = "postgres") -> psycopg.Connection:
        """The cell's admin role, over TLS. A database by its name there."""
        own = self.pki.root / "control"
        return psycopg.connect(
            f"host=localhost port={self.cell.ports[MAIN]} sslmode=verify-full sslrootcert={own}/servers.crt"
            f" sslcert={own}/client.crt sslkey={own}/client.key user={SUPERUSER} dbname={database}",
            autocommit=True,
        )

    def engine_name(self, database: str) -> str:
        query = f"select engine_name from databases where name = '{database}' and state = 'ready'"
        ((name,),) = self.ask_directory(query)
        return str(name)

    def rows(self) -> dict[tuple[str, str], list[str]]:
        """What is written, by database and table."""
        found = {}
        for database, table in {half for halves in HALVES.values() for half in halves}:
            with self.as_admin(self.engine_name(database)) as admin:
                found[database, table] = [number for (number,) in admin.execute(f"select n from {table}".encode())]
        return found

    def wait_until_settled(self) -> None:
        """Until the control plane has ended what was prepared."""
        prepared = "select gid from pg_prepared_xacts"
        with self.as_admin() as admin:
            wait_for(lambda: not admin.execute(prepared).rowcount, _LIMIT_S, lambda: "there are prepared transactions")

    def wait_until_archived(self, machine: DebianMachine, cluster: str) -> None:
        """Until another file of the WAL is in the archive, by itself."""
        archived = "select archived_count from pg_stat_archiver"
        with self._superuser(machine, cluster) as admin:
            before = admin.execute(archived).fetchone()
            wait_for(lambda: admin.execute(archived).fetchone() != before, _LIMIT_S, lambda: "nothing is archived")

    def _superuser(self, machine: DebianMachine, cluster: str) -> psycopg.Connection:
        if cluster == MAIN:
            return self.as_admin()
        return psycopg.connect(f"{machine.conninfo(cluster)} user=postgres dbname=postgres", autocommit=True)

    # Guides --------------------------------------------------------------------------------------------------------

    def new_machine(self) -> DebianMachine:
        machine = DebianMachine.made(self.root / str(len(self.machines) + 1))
        self.machines.append(machine)
        for name in ("server.crt", "server.key", "clients.crt", "clients.crl"):
            copy = machine.certificates / name
            shutil.copy(self.pki.root / "cell" / name, copy)
            copy.chmod(0o600)
            give_to_postgres(copy)
        return machine

    def follow(self, machine: DebianMachine, commands: list[str]) -> None:
        """Types the commands on the new machine, or where the operator is."""
        for command in commands:
            print(f"\n# {command}", flush=True)
            if command.startswith("apt "):
                self._install(machine)
            elif command.startswith("plainsql-server wal ") and self.receiver is None:
                # For a cell whose WAL is streamed.
                continue
            elif command.startswith("systemctl "):
                self._systemctl(machine, command.split()[1:])
            else:
                self._type(machine, command)

    def _install(self, machine: DebianMachine) -> None:
        """Debian's package makes a cluster `main`, unless there is one."""
        if not machine.config(MAIN).exists():
            machine.create_cluster(MAIN)
            self._configure(machine, MAIN)
            machine.run("pg_ctlcluster 15 main start")

    def _configure(self, machine: DebianMachine, cluster: str) -> None:
        own = machine.config(cluster) / "conf.d/zz-test.conf"
        own.write_text(_SETTINGS)
        give_to_postgres(own)
        if cluster == DIRECTORY:
            (machine.config(cluster) / "pg_hba.conf").write_text(_HBA)

    def _systemctl(self, machine: DebianMachine, words: list[str]) -> None:
        match words:
            case ["stop", *planes] if planes[0] in ("plainsql-data", "plainsql-control"):
                self.stop_planes()
            case ["start", *planes] if planes[0] in ("plainsql-data", "plainsql-control"):
                self.start_planes()
            case ["start", unit] if match := _UNIT.fullmatch(unit):
                self._back_up(machine, *match.groups())
            case ["enable", "plainsql-stream.service", timer] if self.receiver is not None:
                assert (machine.units / timer).exists()
                self.receiver.install(machine.units)
            case ["restart", "plainsql-stream.service", _] if self.receiver is not None:
                self.receiver.stop()
                self.receiver.start()
            case ["stop" | "start" as verb, "plainsql-stream.service"] if self.receiver is not None:
                self.receiver.stop() if verb == "stop" else self.receiver.start()
            case ["enable", "--now", *timers]:
                missing = [timer for timer in timers if not (machine.units / timer).exists()]
                assert not missing, missing
            case _:
                assert words == ["daemon-reload"], words

    def _back_up(self, machine: DebianMachine, unit: str, kind: str) -> None:
        """Runs the commands of the unit."""
        (file,) = machine.root.glob(f"etc/15/*/{unit}@.service")
        for line in re.findall(r"^ExecStart(?:Pre)?=(.*)$", file.read_text(), re.MULTILINE):
            machine.run(f"runuser -u postgres -- {line.replace('%i', kind)}")

    def _type(self, machine: DebianMachine, command: str) -> None:
        ended = machine.run(self._adapted(machine, command), self.settings, (0, 1) if "doctor" in command else (0,))
        print(ended.stdout + ended.stderr, end="", flush=True)
        if command.startswith("pg_createcluster"):
            self._configure(machine, command.split()[2])
        if command.endswith(" info"):
            self._newest_file = _NEWEST_FILE.findall(ended.stdout)[-1]
        if "pg_last_wal_replay_lsn" in command:
            # More, if files were received that the archive did not have.
            assert ended.stdout.strip()[-_POSITION_LENGTH:] >= self._newest_file[-_POSITION_LENGTH:]
        if command.endswith(" verify"):
            check_verified(ended.stdout)
        if command.startswith("until "):
            cluster = DIRECTORY if f"15/{DIRECTORY}" in command else MAIN
            self.restored_until_s[cluster] = datetime.fromisoformat(_PRINTED_TIME.findall(ended.stdout)[-1]).timestamp()
            if cluster == DIRECTORY:
                self.directory = machine
                for node in self.nodes.values():
                    node.directory_dsn = self.dsn

    def _adapted(self, machine: DebianMachine, command: str) -> str:
        """A command of the guide with what this site has in other places, and with the other options of its cell."""
        text = command.replace("/srv/archive", str(self.root / "archive")).replace("/root/", f"{self.root}/kept/")
        text = text.replace("host=cell-2.example port=5432", f"host=localhost port={machine.ports[MAIN]}")
        # No one waits for a whole second to look again.
        text = text.replace("sleep 1;", "sleep 0.1;")
        if self.receiver is not None:
            text = self.receiver.adapted(text, machine, self.pki.root / "pki")
        common = f" --socket-directory {machine.socket_folder}"
        if text.startswith("plainsql-server cell files"):
            own = machine.certificates
            return (
                f"{text}{common} --data-folder {machine.data(MAIN)} --archive-port {machine.ports[MAIN]}"
                f" --cert-file {own}/server.crt --key-file {own}/server.key --client-ca-file {own}/clients.crt"
                f" --client-crl-file {own}/clients.crl --network 127.0.0.1/32 --memory-gib 1"
            )
        if text.startswith("plainsql-server directory files"):
            return f"{text}{common} --data-folder {machine.data(DIRECTORY)} --port {machine.ports[DIRECTORY]}"
        return text

    def stop(self) -> None:
        if self.receiver is not None:
            self.receiver.stop()
        for machine in self.machines:
            machine.stop()

    # Planes --------------------------------------------------------------------------------------------------------

    def stop_planes(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.stop()

    def start_planes(self) -> None:
        for node in self.nodes.values():
            node.start()

    def kill_planes(self) -> None:
        for node in self.nodes.values():
            kill_with_children(node.process.pid)
            node.process.wait(_LIMIT_S)


def check_verified(shown: str) -> None:
    """What the guide says about it: nothing is missing or damaged, and each timeline has no gap."""
    faults = re.findall(r"(?:missing|invalid|other): (\d+)", shown)
    assert faults, shown
    assert set(faults) == {"0"}, shown
    timelines = _WITHOUT_GAP.findall(shown)
    assert timelines, shown
    assert len(timelines) == len(set(timelines)), shown


@contextmanager
def running_site() -> Iterator[Site]:
    """A site for the length of the block: an organization with the databases `main` and `other`, and archives."""
    need("pgbackrest", "pg_createcluster")
    if os.geteuid() != 0:
        pytest.skip("the guides are for root")
    # A socket's path may have about 100 characters and must be open to `postgres`; pytest's folders are neither.
    root = Path(tempfile.mkdtemp(prefix="plainsql-lost-"))
    try:
        root.chmod(0o755)
        with ExitStack() as stack:
            site = _prepared(root, stack)
            stack.enter_context(logs.watching(root, "*/log-*"))
            yield site
    finally:
        shutil.rmtree(root)


def _prepared(root: Path, stack: ExitStack) -> Site:
    pki = Pki(root)
    assert CliRunner().invoke(main, ["pki", "init", str(root / "pki")]).exit_code == 0
    pki.issue("cell", "--server", "localhost")
    for plane, role in (("data", "plainsql_data"), ("control", SUPERUSER)):
        pki.issue(plane, "--client", role)
        pki.run("issue", f"{plane}-server", "--server", "localhost", "--to", str(root / plane))
    (root / "keys").write_text(new_key())
    (root / "kept").mkdir()
    site = Site(root, pki)
    stack.callback(site.stop)
    site.cell = site.directory = machine = site.new_machine()
    _make_cell(site, machine)
    _make_directory(site, machine)
    _make_customer(site)
    for plane in ("data", "control"):
        settings = {
            "tls_cert_file": root / plane / "server.crt", "tls_key_file": root / plane / "server.key",
            "secrets_keys_file": root / "keys", **libpq_settings(root, plane),
        }  # fmt: skip
        site.nodes[plane] = stack.enter_context(running_node(site.dsn, None, plane, **settings))
    return site


def _make_cell(site: Site, machine: DebianMachine) -> None:
    machine.create_cluster(MAIN)
    site._configure(machine, MAIN)
    machine.run("pg_ctlcluster 15 main start")
    machine.run(f"runuser -u postgres -- psql --cluster 15/main -c 'create role {SUPERUSER} superuser login' postgres")
    _archive(site, machine, "The archive of a cell", MAIN)


def _make_directory(site: Site, machine: DebianMachine) -> None:
    machine.create_cluster(DIRECTORY)
    site._configure(machine, DIRECTORY)
    machine.run("pg_ctlcluster 15 directory start")
    machine.run(f"runuser -u postgres -- createdb --cluster 15/directory {DATABASE}")
    _archive(site, machine, "The archive of the directory", DIRECTORY)


def _archive(site: Site, machine: DebianMachine, heading: str, cluster: str) -> None:
    """By the guide. Its key is kept elsewhere."""
    site.follow(machine, listed(section(heading)))
    name = "key.conf" if cluster == MAIN else f"{cluster}-key.conf"
    shutil.copy(machine.config(cluster) / "pgbackrest/conf.d/key.conf", site.root / "kept" / name)


def _make_customer(site: Site) -> None:
    site.directory.run("plainsql-server migrate", {**site.settings, "PLAINSQL_DIRECTORY_DSN": site.dsn})
    conninfo = f"host=localhost port={site.cell.ports[MAIN]} sslmode=verify-full"
    site.operate(f"cell add eu-1 --admin-role {SUPERUSER} --conninfo '{conninfo}'")
    made = site.operate("org create acme --tier dedicated --database main --key first").splitlines()
    site.organization_id, site.key = made[0], made[-1]
    site.operate(f"database create --org {site.organization_id} other")
    for database in ("main", "other"):
        with site.as_admin(site.engine_name(database)) as admin:
            ((owner,),) = site.ask_directory(
                "select o.engine_name from roles o join databases d on d.id = o.database_id"
                f" where d.name = '{database}' and o.kind = 'owner'"
            )
            admin.execute(f"set role {owner}".encode())
            for table in TABLES:
                admin.execute(f"create table {table} (n text not null)".encode())
