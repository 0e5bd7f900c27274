"""The configuration of a cell's PostgreSQL: the files, and why each setting has its value.

Owns `postgresql.conf` and `pg_hba.conf` of a cell. `plainsql-server cell files` prints them, `dev` writes them at each
start, and tests run on them, so that what is promised of a cell is tried. Refuses to know where they are put.
Needs no library: `dev` loads it before anything else is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

from plainsql_server.engine.admin.cell import TEMP_FILE_LIMIT

HEADING = "# Written by PlainSQL. Do not edit it: write it again, and set what differs with ALTER SYSTEM.\n"

# Which system users may be which roles on the machine itself, by its name in pg_ident.conf.
LOCAL_MAP = "plainsql"

# What one backend may take of the machine's memory besides the shared buffers. A tenant may set its own work_mem as
# high as it likes, and the engine has no ceiling for that; the operating system has, and the statement that meets it
# fails alone, with SQLSTATE 53200. A single value takes up to 1 GB while it is made.
BACKEND_MEMORY_BYTES = 2 * 1024**3

_LIMITS = {
    "max_connections": "200",
    # Administration, the reaper among it, gets in when tenants have taken every other connection.
    "superuser_reserved_connections": "10",
    # Transactions that span databases are prepared by the service.
    "max_prepared_transactions": "64",
    # The table of locks is shared by all tenants, with this many places for each connection. A transaction over
    # a few thousand tables of one tenant's must not fill it.
    "max_locks_per_transaction": "512",
    "max_pred_locks_per_transaction": "256",
    "shared_buffers": "128MB",
    "work_mem": "4MB",
    "maintenance_work_mem": "64MB",
    "temp_buffers": "8MB",
    "temp_file_limit": TEMP_FILE_LIMIT,
    # Workers of one statement's are taken from its neighbours. A tenant may set how many it wants, but not this.
    "max_worker_processes": "0",
    "max_logical_replication_workers": "0",
    "max_parallel_workers_per_gather": "0",
    # Compiled code serves few statements and costs memory that is not counted. No such provider: it cannot be set on.
    "jit": "off",
    "jit_provider": "none",
}

# A customer's statement, its parameters and its values have no place in a log; nor has the secret that the service
# sends as a parameter. Messages of errors quote values, so a cell writes down none: the service gets them and counts.
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
    # A backend whose client is gone notices between two rows at the latest; the service cancels it before that.
    "client_connection_check_interval": "10s",
    "tcp_keepalives_idle": "60",
    "authentication_timeout": "10s",
}


@dataclass(frozen=True, slots=True)
class Tls:
    """Where a cell reached over the network has its certificate, and the authority that signs the service's."""

    cert_file: str
    key_file: str
    client_ca_file: str


@dataclass(frozen=True, slots=True)
class CellConfig:
    """How one cell is reached. Without `tls` it is reached by its socket alone, whose folder is the guard."""

    admin_role: str
    socket_directory: str
    tls: Tls | None = None
    listen_addresses: str = "*"
    networks: tuple[str, ...] = ("0.0.0.0/0", "::0/0")
    """From where the service connects."""
    others: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> dict[str, str]:
        """Every setting that differs from PostgreSQL's own, or must not."""
        return {**_LIMITS, **_LOG, **_SAFETY, **self._reach(), **self.others}

    def postgresql_conf(self) -> str:
        """The text of postgresql.conf."""
        return HEADING + "".join(f"{name} = {_quoted(value)}\n" for name, value in self.settings().items())

    def pg_hba_conf(self) -> str:
        """The text of pg_hba.conf.

        No line asks for a password, since a tenant can give its own role one. Over the network a certificate of
        the service's authority is asked for. It opens every tenant's role, because PostgreSQL 15 would need a line in
        a map for each of them; but not the admin role, which has a certificate in its own name.
        """
        if self.tls is None:
            return (
                HEADING
                + "# The socket's folder is the guard: only the service's user can enter it.\nlocal all all trust\n"
            )
        return HEADING + "\n".join(self.local_lines() + self.service_lines()) + "\n"

    def local_lines(self) -> list[str]:
        """The lines of pg_hba.conf for the machine itself."""
        return [f"local all {quoted_role(self.admin_role)} peer map={LOCAL_MAP}", "local all all reject"]

    def service_lines(self) -> list[str]:
        """The lines of pg_hba.conf for the service, over the network."""
        admin = quoted_role(self.admin_role)
        lines = []
        for network in self.networks:
            lines += [
                f"hostssl all {admin} {network} cert",
                f"hostssl all postgres {network} reject",
                f"hostssl replication all {network} reject",
                f"hostssl all all {network} trust clientcert=verify-ca",
            ]
        return lines

    def pg_ident_conf(self, system_user: str = "postgres") -> str:
        """The text of pg_ident.conf: which system user may be the admin role on the machine itself."""
        return f"{HEADING}{self.ident_line(system_user)}\n"

    def ident_line(self, system_user: str = "postgres") -> str:
        return f"{LOCAL_MAP} {system_user} {quoted_role(self.admin_role)}"

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
            "ssl_min_protocol_version": "TLSv1.2",
        }


def with_bounded_memory(command: Sequence[str | PathLike[str]]) -> list[str]:
    """The command that starts PostgreSQL, so that each of its processes keeps to BACKEND_MEMORY_BYTES."""
    words = [str(word) for word in command]
    return ["/bin/sh", "-c", f'ulimit -d {BACKEND_MEMORY_BYTES // 1024} && exec "$@"', "sh", *words]


def _quoted(value: str) -> str:
    if "\n" in value:
        raise ValueError(f"no line break can be in a setting: {value!r}")
    return "'" + value.replace("'", "''") + "'"


def quoted_role(role: str) -> str:
    """A role's name as pg_hba.conf and pg_ident.conf take it."""
    if '"' in role or "\n" in role:
        raise ValueError(f"no such role can be named here: {role!r}")
    return f'"{role}"'
