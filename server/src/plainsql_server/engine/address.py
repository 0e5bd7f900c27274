"""Where a pool's connections go, and how each one starts.

Owns the settings that every engine connection is started with. They are given at start-up, so that they
win over what a tenant may have stored with ALTER ROLE, and DISCARD ALL comes back to them.
"""

from typing import NamedTuple

from psycopg.conninfo import make_conninfo

# Text styles that `values.py` counts on, and the isolation that the service promises. SERIALIZABLE is set
# here and never as a server's default, which would break hot standbys and fail-over.
_STARTUP = {
    "default_transaction_isolation": "serializable",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "search_path": '"$user",public',
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "synchronous_commit": "on",
    # The service's secret for the record of requests is a parameter, and errors could tell parameters.
    "log_parameter_max_length_on_error": "0",
    # A tenant who stored the name of a library that is not there could not be connected any more.
    "local_preload_libraries": "",
    # A serializable transaction that scans a table depends on every writer of it, so that small tables, which the
    # planner likes to scan, make strangers abort. These costs make it prefer an index; see decision 0008.
    "random_page_cost": "1.1",
    "cpu_tuple_cost": "0.03",
}


class Address(NamedTuple):
    """A database on a cell, and the role to log in as: what one pool is for."""

    cell_conninfo: str
    database: str
    role: str
    read_only: bool = False
    # What operators call the cell, for metrics: a connection string is no name.
    cell_name: str = ""

    def conninfo(self, connect_timeout_ms: int) -> bytes:
        startup = {**_STARTUP, "default_transaction_read_only": "on" if self.read_only else "off"}
        return make_conninfo(
            self.cell_conninfo,
            user=self.role,
            dbname=self.database,
            client_encoding="UTF8",
            application_name="plainsql",
            connect_timeout=max(2, connect_timeout_ms // 1000),
            options=" ".join(f"-c {name}={_escaped(value)}" for name, value in startup.items()),
        ).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
