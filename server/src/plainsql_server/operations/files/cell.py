"""The configuration files of a cell's PostgreSQL, and why each setting has its value.

    tls = Tls("server.crt", "server.key", "clients.crt")
    config = CellConfig("plainsql_admin", "/run/postgresql", tls, memory_bytes=24 * GIB)
    config.postgresql_conf(), config.pg_hba_conf(), config.pg_ident_conf()

`plainsql-server cell files` writes these files, `dev` writes them at each start, and the tests use them, so what we
promise about cells is tested. `sizing.py` computes what depends on the memory. This module needs no third-party
library, because `dev` loads it first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

from plainsql_server.engine.admin.cell import STREAM_ROLE, TEMP_FILE_LIMIT, TENANTS_ROLE
from plainsql_server.operations.files.placing import WRITTEN_BY
from plainsql_server.operations.files.sizing import (
    GIB,
    PREPARED_TRANSACTIONS,
    RESERVED_CONNECTIONS,
    locks_per_transaction,
    max_connections,
    tenant_connections,
)

HEADING = f"{WRITTEN_BY} Do not edit: generate it again. Override settings with ALTER SYSTEM.\n"

# Name of the map in pg_ident.conf that maps system users to roles for local connections.
LOCAL_MAP = "plainsql"

# Memory limit of one backend, without the shared buffers. A tenant can set work_mem as high as it likes, and PostgreSQL
# has no upper limit for it. The operating system does: a statement that reaches the limit fails alone, with SQLSTATE
# 53200. Building a single value can take up to 1 GB.
BACKEND_MEMORY_BYTES = 2 * 1024**3

_LIMITS = {
    # Lets administration, including the reaper, connect when tenants use every other connection.
    "superuser_reserved_connections": str(RESERVED_CONNECTIONS),
    # The service prepares transactions that span databases.
    "max_prepared_transactions": str(PREPARED_TRANSACTIONS),
    "shared_buffers": "128MB",
    "work_mem": "4MB",
    "maintenance_work_mem": "64MB",
    # Each connection maps all shared memory. With huge pages, opening one is about 10 % faster. The machine has to
    # reserve them (vm.nr_hugepages); otherwise PostgreSQL starts with ordinary pages.
    "huge_pages": "try",
    "temp_buffers": "8MB",
    "temp_file_limit": TEMP_FILE_LIMIT,
    # Parallel workers take CPU time from other tenants. Tenants can set how many they want, but can't change this.
    "max_worker_processes": "0",
    "max_logical_replication_workers": "0",
    "max_parallel_workers_per_gather": "0",
    # JIT helps few statements and uses memory that is not limited. Without a provider, tenants can't turn it on.
    "jit": "off",
    "jit_provider": "none",
}

# A cell has up to a thousand databases, most of them idle.
_MANY_DATABASES = {
    # Autovacuum visits every database once in this time, at a few milliseconds each. With PostgreSQL's default of a
    # minute, a thousand idle databases take 7 % of a core.
    "autovacuum_naptime": "5min",
    # Before it recovers from a crash, PostgreSQL writes to disk what the crashed server may have left in the page
    # cache. By default it opens each file for that: a start with a hundred databases, which have 30,000 files, took 11
    # to 31 s, and with `syncfs` 1.1 to 1.4 s. That is as safe: it waits for the whole file system, and if a write
    # fails, both only log it. (Before Linux 5.8, even that message can be missing.) It is slow if other programs write
    # much to the same file system.
    "recovery_init_sync_method": "syncfs",
}

# Customers' statements, parameters and values must not appear in a log, nor may the secret that the service sends as a
# parameter. Error messages quote values, so a cell logs none: the service receives and counts them.
_LOG = {
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_statement": "none",
    "log_min_duration_statement": "-1",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "lc_messages": "C",
    "log_timezone": "UTC",
}

_SAFETY = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "row_security": "on",
    "lo_compat_privileges": "off",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    # How often a backend checks that its client is connected. The service normally cancels the statement earlier.
    "client_connection_check_interval": "10s",
    "tcp_keepalives_idle": "60",
    "authentication_timeout": "10s",
}


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of a networked cell's certificate, of the CA that signs the service's certificates, and of its CRL."""

    cert_file: str
    key_file: str
    client_ca_file: str
    client_crl_file: str | None = None


@dataclass(frozen=True, slots=True)
class CellConfig:
    """How a cell is reached. Without `tls`, only by its socket, protected by the folder's permissions."""

    admin_role: str
    socket_directory: str
    tls: Tls | None = None
    listen_addresses: str = "*"
    networks: tuple[str, ...] = ("0.0.0.0/0", "::0/0")
    """Networks that the service connects from."""
    memory_bytes: int | None = None
    """Memory of the cell's machine, from which the number of connections follows. None: the fewest of any cell."""
    others: Mapping[str, str] = field(default_factory=dict)
    receiver: str | None = None
    """Address, network or name of the machine that receives the WAL (`stream.py`), `all` for any. None: none does."""

    def settings(self) -> dict[str, str]:
        """Return every setting that differs from PostgreSQL's default, or must equal it."""
        return {**self._sizes(), **_LIMITS, **_MANY_DATABASES, **_LOG, **_SAFETY, **self._reach(), **self.others}

    def postgresql_conf(self) -> str:
        """Return the text of postgresql.conf."""
        return (
            HEADING + self.origin() + "".join(f"{name} = {_quoted(value)}\n" for name, value in self.settings().items())
        )

    def origin(self) -> str:
        """Return a comment that says what the sizes were computed from."""
        if self.memory_bytes is None:
            return ""
        memory, tenants = f"{self.memory_bytes / GIB:.4g}", tenant_connections(self.memory_bytes)
        return f"# Connections and locks are for {memory} GiB of memory: {tenants} connections for customers.\n"

    def pg_hba_conf(self) -> str:
        """Return the text of pg_hba.conf.

        No line accepts a tenant's password, because tenants can set one for their own role. Over the network, the
        service needs a certificate from its CA. With it, it can log in as every tenant's role, because PostgreSQL 15
        would need a map entry for each of them, and as no other: the group of these roles is admitted, and the admin
        role needs a certificate with that name. Only the receiver of the WAL has a password.
        """
        if self.tls is None:
            return (
                HEADING
                + "# The socket's folder protects access: only the service's user can enter it.\nlocal all all trust\n"
            )
        return HEADING + "\n".join(self.local_lines() + self.receiver_lines() + self.service_lines()) + "\n"

    def local_lines(self) -> list[str]:
        """Return the lines of pg_hba.conf for local connections."""
        return [f"local all {quoted_role(self.admin_role)} peer map={LOCAL_MAP}", "local all all reject"]

    def receiver_lines(self) -> list[str]:
        """Return the lines of pg_hba.conf for the receiver of the WAL, which come before those of the service.

        It has a password and no certificate: every certificate of the service's authority opens tenants' databases.
        """
        if self.receiver is None:
            return []
        role = quoted_role(STREAM_ROLE)
        return [
            f"hostssl replication {role} {one_address(self.receiver)} scram-sha-256",
            # `all` doesn't stand for replication.
            f"host all,replication {role} all reject",
        ]

    def service_lines(self) -> list[str]:
        """Return the lines of pg_hba.conf for the service's network connections."""
        admin = quoted_role(self.admin_role)
        lines = []
        for network in self.networks:
            lines += [
                f"hostssl all {admin} {network} cert",
                # The name must not be quoted: then the plus sign would be a part of it.
                f"hostssl all +{TENANTS_ROLE} {network} trust clientcert=verify-ca",
            ]
        return lines

    def pg_ident_conf(self, system_user: str = "postgres") -> str:
        """Return the text of pg_ident.conf: which system user may log in locally as the admin role."""
        return f"{HEADING}{self.ident_line(system_user)}\n"

    def ident_line(self, system_user: str = "postgres") -> str:
        return f"{LOCAL_MAP} {system_user} {quoted_role(self.admin_role)}"

    def _sizes(self) -> dict[str, str]:
        connections = max_connections(self.memory_bytes)
        locks = locks_per_transaction(connections)
        return {
            "max_connections": str(connections),
            "max_locks_per_transaction": str(locks),
            "max_pred_locks_per_transaction": str(locks // 2),
        }

    def _reach(self) -> dict[str, str]:
        reach = {"unix_socket_directories": self.socket_directory, "unix_socket_permissions": "0700"}
        if self.tls is None:
            return {**reach, "listen_addresses": ""}
        return {
            **reach,
            "listen_addresses": self.listen_addresses,
            "ssl": "on",
            "ssl_cert_file": self.tls.cert_file,
            "ssl_key_file": self.tls.key_file,
            "ssl_ca_file": self.tls.client_ca_file,
            **({"ssl_crl_file": self.tls.client_crl_file} if self.tls.client_crl_file else {}),
            "ssl_min_protocol_version": "TLSv1.2",
        }


def with_bounded_memory(command: Sequence[str | PathLike[str]]) -> list[str]:
    """Wrap a command that starts PostgreSQL, to limit each of its processes to BACKEND_MEMORY_BYTES."""
    words = [str(word) for word in command]
    return ["/bin/sh", "-c", f'ulimit -d {BACKEND_MEMORY_BYTES // 1024} && exec "$@"', "sh", *words]


def _quoted(value: str) -> str:
    if "\n" in value:
        raise ValueError(f"A setting can't contain a line break: {value!r}")
    return "'" + value.replace("'", "''") + "'"


def one_address(host: str) -> str:
    """Format a host for pg_hba.conf: an address needs a mask; a network, a name and `all` don't."""
    if "/" in host:
        return host
    if ":" in host:
        return f"{host}/128"
    return f"{host}/32" if host.replace(".", "").isdigit() else host


def quoted_role(role: str) -> str:
    """Quote a role name for pg_hba.conf and pg_ident.conf."""
    if '"' in role or "\n" in role:
        raise ValueError(f"A role name can't contain a double quote or a line break here: {role!r}")
    return f'"{role}"'
