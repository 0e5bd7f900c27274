"""The configuration of a cell that survives the loss of a machine: three PostgreSQL servers under Patroni and etcd.

Owns what Patroni and etcd are told on each machine. PostgreSQL's own settings and who may log in are those of every
cell (`cell.py`), with what replication needs beside them. `plainsql-server cell ha-files` prints it, and tests
run on it. Refuses to know where the files are put.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from plainsql_server.engine.admin.cell import REWIND_ROLE
from plainsql_server.operations.files.cell import LOCAL_MAP, CellConfig, quoted_role

HEADING = "# Written by PlainSQL. Do not edit it: write it again. What all machines share is changed with patronictl.\n"

REPLICATION_ROLE = "plainsql_replication"
# What the certificates that servers show each other are mapped by.
_NODES_MAP = "nodes"

# A leader holds its lock for so long. When its machine dies, another one leads after that, and a second or two. Twenty
# is the least that Patroni takes.
LOCK_TTL_S = 20
# How often each server looks around: an engine that crashed under a living Patroni is noticed within this. A new leader
# also needs two or three looks until it waits for the standby that is left, and not for the one that led before.
_LOOP_WAIT_S = 1
# How long etcd may be silent. A leader without etcd steps down after it, which must be over before its lock ends:
# Patroni asks for loop_wait + 2 × retry_timeout ≤ ttl.
_RETRY_TIMEOUT_S = 5
# A leader that steps down is killed if it has not stopped by then.
_STOP_TIMEOUT_S = 5

# Patroni keeps these the same on all servers, and takes them from its own store alone.
_SHARED = ("max_connections", "max_prepared_transactions", "max_locks_per_transaction", "max_worker_processes")
# Patroni takes no smaller number, where a cell of one machine has none. So many parallel workers statements can have in
# all, if a tenant asks for them.
_LEAST_WORKERS = {"max_worker_processes": "2"}

_REPLICATION = {
    # A standby that fell silent is given up after this long, and one that lost its leader looks for it this often.
    "wal_sender_timeout": "10s",
    "wal_receiver_timeout": "10s",
    "wal_retrieve_retry_interval": "500ms",
    # What is kept for a server that is away. Beyond it, that server is copied anew rather than the disk filled.
    "max_slot_wal_keep_size": "16GB",
}


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the cell, at the address by which the other machines reach it."""

    name: str
    host: str
    postgres_port: int = 5432
    patroni_port: int = 8008
    etcd_port: int = 2379
    etcd_peer_port: int = 2380


@dataclass(frozen=True, slots=True)
class Files:
    """Where each machine has its certificates. The machines' authority signs for nothing else."""

    node_cert: str
    node_key: str
    nodes_ca: str
    # In the name of the replication role, by the authority of the service's certificates.
    replication_cert: str
    replication_key: str

    @classmethod
    def in_folder(cls, folder: str) -> Self:
        return cls(
            *(
                f"{folder}/{name}"
                for name in ("node.crt", "node.key", "nodes.crt", "replication.crt", "replication.key")
            )
        )


@dataclass(frozen=True, slots=True)
class HaConfig:
    """A cell of several machines. `cell` has TLS: without it, servers could not know each other."""

    name: str
    nodes: Sequence[Node]
    cell: CellConfig
    files: Files
    data_directory: str = "/var/lib/postgresql/15/plainsql"
    etcd_directory: str = "/var/lib/etcd/plainsql"
    bin_directory: str = "/usr/lib/postgresql/15/bin"
    watchdog: str = "automatic"
    system_user: str = "postgres"

    def patroni_yml(self, node: Node) -> str:
        """The text of Patroni's configuration on one machine. JSON is YAML."""
        return HEADING + json.dumps(self._patroni(node), indent=2) + "\n"

    def etcd_yml(self, node: Node) -> str:
        """The text of etcd's configuration on one machine."""
        return HEADING + json.dumps(self._etcd(node), indent=2) + "\n"

    def conninfo(self) -> str:
        """The hosts of the cell, as `cell add` takes them."""
        hosts = ",".join(node.host for node in self.nodes)
        ports = ",".join(str(node.postgres_port) for node in self.nodes)
        return f"host={hosts} port={ports} target_session_attrs=primary"

    def _patroni(self, node: Node) -> dict[str, Any]:
        files = self.files
        return {
            "scope": self.name,
            "namespace": "/plainsql/",
            "name": node.name,
            "restapi": {
                "listen": f"{node.host}:{node.patroni_port}",
                "connect_address": f"{node.host}:{node.patroni_port}",
                "certfile": files.node_cert,
                "keyfile": files.node_key,
                "cafile": files.nodes_ca,
                # Whoever may call it can end the cell: the machines alone.
                "verify_client": "required",
            },
            "ctl": {"certfile": files.node_cert, "keyfile": files.node_key, "cacert": files.nodes_ca},
            "etcd3": {
                "hosts": [f"{each.host}:{each.etcd_port}" for each in self.nodes],
                "protocol": "https",
                "cacert": files.nodes_ca,
                "cert": files.node_cert,
                "key": files.node_key,
            },
            "bootstrap": {"dcs": self._shared(), "initdb": self._initdb()},
            "postgresql": self._postgresql(node),
            # Ends a machine whose Patroni hangs, before its lock does. "required" has no leader without one.
            "watchdog": {"mode": self.watchdog, "device": "/dev/watchdog", "safety_margin": 5},
        }

    def _shared(self) -> dict[str, Any]:
        """What all machines keep in etcd from the first start on; `patronictl edit-config` changes it."""
        settings = self.cell.settings()
        return {
            "ttl": LOCK_TTL_S,
            "loop_wait": _LOOP_WAIT_S,
            "retry_timeout": _RETRY_TIMEOUT_S,
            # A commit is on two machines before it is told or seen, and strictly so: no standby, no commit. Any standby
            # will do, so that losing one holds nobody up.
            "synchronous_mode": "quorum",
            "synchronous_mode_strict": True,
            "synchronous_node_count": 1,
            # An engine that crashed does not lead again if another can: its recovery would show commits that no standby
            # has, and that a second crash would take back.
            "primary_start_timeout": 0,
            "primary_stop_timeout": _STOP_TIMEOUT_S,
            "postgresql": {
                "use_pg_rewind": True,
                "use_slots": True,
                "parameters": {**{name: settings[name] for name in _SHARED}, **_LEAST_WORKERS, "wal_log_hints": "on"},
            },
        }

    def _initdb(self) -> list[Any]:
        return [
            "data-checksums",
            {"encoding": "UTF8"},
            {"locale": "C.UTF-8"},
            {"auth-local": "peer"},
            {"auth-host": "reject"},
        ]

    def _postgresql(self, node: Node) -> dict[str, Any]:
        files = self.files
        shown = {
            "sslmode": "verify-full",
            "sslrootcert": files.nodes_ca,
            "sslcert": files.replication_cert,
            "sslkey": files.replication_key,
        }
        settings = {**self.cell.settings(), **_REPLICATION}
        return {
            "listen": f"{self.cell.listen_addresses}:{node.postgres_port}",
            "connect_address": f"{node.host}:{node.postgres_port}",
            "data_dir": self.data_directory,
            "bin_dir": self.bin_directory,
            # The machine's own certificate is not for `localhost`.
            "use_unix_socket": True,
            "use_unix_socket_repl": True,
            "authentication": {
                "superuser": {"username": self.cell.admin_role},
                "replication": {"username": REPLICATION_ROLE, **shown},
                "rewind": {"username": REWIND_ROLE, **shown},
            },
            "parameters": {
                name: value for name, value in settings.items() if name not in (*_SHARED, "listen_addresses")
            },
            "pg_hba": self._pg_hba(),
            "pg_ident": [
                self.cell.ident_line(self.system_user),
                f"{LOCAL_MAP} {self.system_user} {REPLICATION_ROLE}",
                *(f"{_NODES_MAP} {REPLICATION_ROLE} {role}" for role in (REPLICATION_ROLE, REWIND_ROLE)),
            ],
            # A server that cannot be brought back in line is copied anew.
            "remove_data_directory_on_rewind_failure": True,
            "remove_data_directory_on_diverged_timelines": True,
            "basebackup": [{"checkpoint": "fast"}],
        }

    def _pg_hba(self) -> list[str]:
        """As every cell's, after the servers' own roles, which none of the service's certificates opens."""
        lines = self.cell.local_lines()
        lines.append(f"local replication {quoted_role(REPLICATION_ROLE)} peer map={LOCAL_MAP}")
        for node in self.nodes:
            source = _one_address(node.host)
            lines += [
                f"hostssl replication {quoted_role(REPLICATION_ROLE)} {source} cert map={_NODES_MAP}",
                f"hostssl postgres {quoted_role(REWIND_ROLE)} {source} cert map={_NODES_MAP}",
            ]
        lines += [f"hostssl all {quoted_role(role)} all reject" for role in (REPLICATION_ROLE, REWIND_ROLE)]
        return lines + self.cell.service_lines()

    def _etcd(self, node: Node) -> dict[str, Any]:
        files = self.files
        own = {"cert-file": files.node_cert, "key-file": files.node_key, "trusted-ca-file": files.nodes_ca}
        members = ",".join(f"{each.name}=https://{each.host}:{each.etcd_peer_port}" for each in self.nodes)
        return {
            "name": node.name,
            "data-dir": self.etcd_directory,
            "listen-client-urls": f"https://{node.host}:{node.etcd_port}",
            "advertise-client-urls": f"https://{node.host}:{node.etcd_port}",
            "listen-peer-urls": f"https://{node.host}:{node.etcd_peer_port}",
            "initial-advertise-peer-urls": f"https://{node.host}:{node.etcd_peer_port}",
            "initial-cluster": members,
            "initial-cluster-token": f"plainsql-{self.name}",
            "initial-cluster-state": "new",
            "client-transport-security": {**own, "client-cert-auth": True},
            "peer-transport-security": {**own, "client-cert-auth": True},
            # What Patroni talks to; a file that does not name it switches it off.
            "enable-grpc-gateway": True,
            # Patroni writes little; what it wrote an hour ago is of no use.
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "1h",
        }


def _one_address(host: str) -> str:
    """A host as pg_hba.conf takes it: an address needs a mask, a name does not."""
    if ":" in host:
        return f"{host}/128"
    return f"{host}/32" if host.replace(".", "").isdigit() else host
