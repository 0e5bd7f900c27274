"""A running cell of three machines, with a directory and a customer in it, for tests that take it apart.

Owns making it and the certificates that everybody in it shows, asking who leads, and waiting until all is well. The
directory is in the same servers, so that it fails over with the cell.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import trustme

from plainsql_server.dev.ports import choose_ports
from plainsql_server.directory.migrations import migrate
from plainsql_server.operations.files.cell import CellConfig, Tls
from plainsql_server.operations.files.ha_cell import REPLICATION_ROLE, Files, HaConfig, Node
from server.tests.cell import new_customer
from server.tests.failover.machines import Machine, hand_over, system_user
from server.tests.postgres import SUPERUSER
from server.tests.processes import end_all_of, wait_for
from server.tests.programs import need

NAMES = ("ada", "bea", "cia")
_DIRECTORY = "plainsql_directory"
# Three servers are made, two of them as copies of the first.
_START_LIMIT_S = 90
# What servers that live for a minute need not have.
_LIGHT = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "100"}


@dataclass(frozen=True)
class Place:
    """Where a machine is in the network."""

    host: str
    inside: Sequence[str] = ()
    public_host: str = ""


LOOPBACK = (Place("127.0.0.1"),) * len(NAMES)


@dataclass
class HaCell:
    """The cell. Its customer's key is `key`."""

    folder: Path
    machines: list[Machine]
    key: str = ""

    def conninfo(self, certificate: str, machines: Sequence[Machine] | None = None) -> str:
        """How somebody with a certificate reaches it, without user and dbname."""
        chosen = machines or self.machines
        hosts = ",".join(machine.public_host or machine.node.host for machine in chosen)
        ports = ",".join(str(machine.node.postgres_port) for machine in chosen)
        tls = self.folder / "tls"
        return (
            f"host={hosts} port={ports} target_session_attrs=primary sslmode=verify-full sslrootcert={tls}/nodes.pem"
            f" sslcert={tls}/{certificate}.pem sslkey={tls}/{certificate}.key"
        )

    @property
    def service_conninfo(self) -> str:
        """As the directory has it. The planes have their own certificates at one path."""
        return self.conninfo("mine")

    @property
    def directory_dsn(self) -> str:
        return f"{self.conninfo('admin')} user={SUPERUSER} dbname={_DIRECTORY}"

    def connect(self, machine: Machine | None = None, database: str = "postgres") -> psycopg.Connection:
        """A superuser's connection to the leader, or to one of the servers."""
        conninfo = self.conninfo("admin", [machine] if machine else None)
        wanted = "any" if machine else "primary"
        return psycopg.connect(
            conninfo, user=SUPERUSER, dbname=database, autocommit=True, connect_timeout=2, target_session_attrs=wanted
        )

    def members(self, asked: Machine) -> dict[str, dict[str, Any]]:
        """The machines of the cell as one of them sees them."""
        found = asked.status("/cluster").get("members", [])
        return {member["name"]: member for member in found}

    def leader(self) -> Machine:
        """The machine that leads. Fails if none does within the time that a fail-over takes."""
        wait_for(lambda: self._leader() is not None, 45, self.story)
        found = self._leader()
        assert found is not None
        return found

    def followers(self) -> list[Machine]:
        leader = self.leader()
        return [machine for machine in self.machines if machine is not leader]

    def wait_until_whole(self, limit_s: float = _START_LIMIT_S) -> None:
        """Returns when one machine leads and all others follow it without delay, one at least in step."""
        wait_for(self._is_whole, limit_s, self.story)

    def story(self) -> str:
        """What the machines' logs say last, for a test that fails."""
        return "\n".join(
            f"== {each.name}\n{each.log('patroni')[-3000:]}\n{each.log('etcd')[-500:]}" for each in self.machines
        )

    def show(self, certificate: str) -> None:
        """From now on, who connects as the service shows this certificate."""
        for ending in ("pem", "key"):
            shutil.copy2(self.folder / f"tls/{certificate}.{ending}", self.folder / f"tls/mine.{ending}")

    def _leader(self) -> Machine | None:
        for machine in self.machines:
            with suppress(httpx.TransportError, json.JSONDecodeError, FileNotFoundError):
                status = machine.status()
                if status.get("role") == "primary" and status.get("state") == "running":
                    return machine
        return None

    def _is_whole(self) -> bool:
        with suppress(httpx.TransportError, json.JSONDecodeError, psycopg.Error):
            leader = self._leader()
            if leader is None:
                return False
            with self.connect(leader) as admin:
                rows = admin.execute("select sync_state from pg_stat_replication where state = 'streaming'").fetchall()
            return len(rows) == len(self.machines) - 1 and any(row[0] in ("sync", "quorum") for row in rows)
        return False


@contextmanager
def running_ha_cell(
    places: Sequence[Place] = LOOPBACK, networks: Sequence[str] = ("127.0.0.1/32",)
) -> Iterator[HaCell]:
    """A cell for the length of the block."""
    need("etcd")
    folder = Path(tempfile.mkdtemp(prefix="plainsql-ha-"))
    folder.chmod(0o755)
    cell = HaCell(folder, [])
    try:
        _make_certificates(folder / "tls", places)
        cell.machines += _machines(folder, places, networks)
        for machine in cell.machines:
            machine.start()
        cell.wait_until_whole()
        cell.show("admin")
        with cell.connect() as admin:
            admin.execute(f"create database {_DIRECTORY} template template0".encode())
        migrate(cell.directory_dsn)
        cell.key = new_customer(cell.directory_dsn, cell.service_conninfo)
        cell.show("data")
        yield cell
        for machine in cell.machines:
            machine.check_logs()
    finally:
        for machine in cell.machines:
            machine.kill()
        # PostgreSQL may have been starting or stopping, and then its file does not say which process it is.
        end_all_of(folder)
        shutil.rmtree(folder)


def _machines(folder: Path, places: Sequence[Place], networks: Sequence[str]) -> list[Machine]:
    wanted = ("postgres", "patroni", "etcd", "etcd_peer")
    ports = choose_ports({f"{name}_{what}": 0 for name in NAMES for what in wanted})
    nodes = [
        Node(name, place.host, *(ports[f"{name}_{what}"] for what in wanted))
        for name, place in zip(NAMES, places, strict=True)
    ]
    machines = []
    for node, place in zip(nodes, places, strict=True):
        own = folder / node.name
        own.mkdir()
        machines.append(Machine(node, _config(own, nodes, networks), own, place.inside, place.public_host))
        hand_over(own)
    return machines


def _config(own: Path, nodes: Sequence[Node], networks: Sequence[str]) -> HaConfig:
    tls = own.parent / "tls"
    cell = CellConfig(
        SUPERUSER, str(own), Tls(f"{tls}/node.pem", f"{tls}/node.key", f"{tls}/clients.pem"), networks=tuple(networks),
        others=_LIGHT,
    )  # fmt: skip
    files = Files(
        f"{tls}/node.pem", f"{tls}/node.key", f"{tls}/nodes.pem", f"{tls}/replication.pem", f"{tls}/replication.key"
    )
    return HaConfig(
        "test", nodes, cell, files, str(own / "data"), str(own / "etcd"), watchdog="off", system_user=system_user()
    )


def _make_certificates(folder: Path, places: Sequence[Place]) -> None:
    folder.mkdir()
    nodes, clients = trustme.CA(), trustme.CA()
    nodes.cert_pem.write_to_path(folder / "nodes.pem")
    clients.cert_pem.write_to_path(folder / "clients.pem")
    hosts = {host for place in places for host in (place.host, place.public_host) if host}
    made = {
        "node": nodes.issue_cert(*sorted(hosts), common_name="node"),
        "replication": clients.issue_cert("nodes@test.example", common_name=REPLICATION_ROLE),
        "admin": clients.issue_cert("admin@test.example", common_name=SUPERUSER),
        "data": clients.issue_cert("data@test.example", common_name="plainsql_data"),
    }
    for name, issued in made.items():
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.key").chmod(0o600)
    hand_over(folder)
