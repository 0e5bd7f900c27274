"""The configuration of a cell that survives the loss of a machine: three or more PostgreSQL servers, Patroni and etcd.

    config = HaConfig("eu-1", nodes, cell, Files.in_folder("/etc/plainsql"))
    config.patroni_yml(nodes[0]), config.etcd_yml(nodes[0])

PostgreSQL's settings and login rules are those of every cell (`cell.py`), plus what replication needs.
`plainsql-server cell ha-files` writes the files, and the tests use them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from plainsql_server.engine.admin.cell import REWIND_ROLE
from plainsql_server.operations.files.cell import LOCAL_MAP, CellConfig, one_address, quoted_role

HEADING = "# Written by PlainSQL. Do not edit: generate it again. Change what all machines share with patronictl.\n"

REPLICATION_ROLE = "plainsql_replication"
# Name of the map in pg_ident.conf for the certificates that servers present to each other.
_NODES_MAP = "nodes"

# How long a leader's lock is valid. If its machine dies, another one takes over a second or two after that. Twenty is
# Patroni's minimum.
LOCK_TTL_S = 20
# How often each Patroni checks its server. It detects a PostgreSQL crash within this time. A new leader also needs two
# or three rounds until it waits for the remaining standby instead of the former leader.
_LOOP_WAIT_S = 1
# How long etcd may be unavailable before a leader steps down. It must step down before its lock expires: Patroni
# requires loop_wait + 2 × retry_timeout ≤ ttl.
_RETRY_TIMEOUT_S = 5
# A leader that steps down is killed if it has not stopped after this time.
_STOP_TIMEOUT_S = 5

# Patroni keeps these equal on all servers and reads them only from etcd.
_SHARED = ("max_connections", "max_prepared_transactions", "max_locks_per_transaction", "max_worker_processes")
# Patroni's minimum; a cell of one machine has 0. If tenants ask for parallel workers, all their statements together can
# have this many.
_LEAST_WORKERS = {"max_worker_processes": "2"}

_REPLICATION = {
    # When a silent standby is given up, and how often a standby that lost its leader looks for it.
    "wal_sender_timeout": "10s",
    "wal_receiver_timeout": "10s",
    "wal_retrieve_retry_interval": "500ms",
    # WAL kept for a server that is down. Beyond this, that server is copied again, and the disk doesn't fill up.
    "max_slot_wal_keep_size": "16GB",
}


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the cell; `host` is the address where the other machines reach it."""

    name: str
    host: str
    postgres_port: int = 5432
    patroni_port: int = 8008
    etcd_port: int = 2379
    etcd_peer_port: int = 2380


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of the certificates on each machine. The machines' CA must sign nothing else."""

    node_cert: str
    node_key: str
    nodes_ca: str
    # Names the replication role, and is signed by the CA of the service's certificates.
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
    """A cell of several machines. `cell` must have TLS, with which the servers authenticate each other."""

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
        """Return Patroni's configuration for one machine, as JSON, which is valid YAML."""
        return HEADING + self.cell.origin() + json.dumps(self._patroni(node), indent=2) + "\n"

    def etcd_yml(self, node: Node) -> str:
        """Return etcd's configuration for one machine."""
        return HEADING + json.dumps(self._etcd(node), indent=2) + "\n"

    def conninfo(self) -> str:
        """Return the cell's hosts for `cell add --conninfo`."""
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
                # This API can shut the cell down, so only the machines may call it.
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
            # Resets a machine whose Patroni hangs before its lock expires. "required": no leader without a watchdog.
            "watchdog": {"mode": self.watchdog, "device": "/dev/watchdog", "safety_margin": 5},
        }

    def _shared(self) -> dict[str, Any]:
        """Return what all machines share in etcd after the first start; `patronictl edit-config` changes it."""
        settings = self.cell.settings()
        return {
            "ttl": LOCK_TTL_S,
            "loop_wait": _LOOP_WAIT_S,
            "retry_timeout": _RETRY_TIMEOUT_S,
            # A commit is on two machines before it is acknowledged or visible. This is strict: without a standby, there
            # are no commits. Any standby will do, so losing one delays nothing.
            "synchronous_mode": "quorum",
            "synchronous_mode_strict": True,
            "synchronous_node_count": 1,
            # A crashed server does not lead again if another one can: its recovery would show commits that no standby
            # has and that a second crash would lose.
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
            # The machine's certificate is not valid for `localhost`.
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
            # A server that pg_rewind can't repair is copied again.
            "remove_data_directory_on_rewind_failure": True,
            "remove_data_directory_on_diverged_timelines": True,
            "basebackup": [{"checkpoint": "fast"}],
        }

    def _pg_hba(self) -> list[str]:
        """Return the servers' own lines, whose roles the service's certificates can't use, then those of every cell."""
        lines = self.cell.local_lines()
        lines.append(f"local replication {quoted_role(REPLICATION_ROLE)} peer map={LOCAL_MAP}")
        for node in self.nodes:
            source = one_address(node.host)
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
            # Patroni uses it. It is off unless the file turns it on.
            "enable-grpc-gateway": True,
            # Patroni writes little, and needs no history older than an hour.
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "1h",
        }
