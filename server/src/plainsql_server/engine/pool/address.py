"""Where a pool's connections go, and how each one starts.

Owns the hosts of a cell, of which one leads, and the settings that every engine connection is started with. They are
given at start-up, so that they win over what a tenant may have stored with ALTER ROLE, and DISCARD ALL comes back to
them.
"""

from typing import NamedTuple

from psycopg.conninfo import conninfo_to_dict, make_conninfo

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


# A server that vanished without a word is noticed within seconds, whether something was sent to it or is awaited.
_KEEPALIVE = {
    "keepalives_idle": "3", "keepalives_interval": "1", "keepalives_count": "3", "tcp_user_timeout": "5000",
}  # fmt: skip


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

    def ways(self, connect_timeout_ms: int) -> tuple[bytes, ...]:
        """A connection string for each host of the cell. Where there are several, only the one that leads takes it."""
        whole = self.conninfo(connect_timeout_ms)
        hosts = hosts_of(self.cell_conninfo)
        if len(hosts) == 1:
            return (whole,)
        # Not `read-write`, which refuses a role that only reads.
        others = {**_KEEPALIVE, "target_session_attrs": "primary"}
        return tuple(make_conninfo(whole.decode(), **host, **others).encode() for host in hosts)


def hosts_of(conninfo: str) -> list[dict[str, str]]:
    """The keywords that tell each host of a connection string from the others, one entry for each.

    Raises ValueError if there are more of one than of another.
    """
    keywords = conninfo_to_dict(conninfo)
    lists = {name: str(keywords[name]).split(",") for name in ("host", "hostaddr", "port") if keywords.get(name)}
    count = len(lists.get("host") or lists.get("hostaddr") or "1")
    if len(lists.get("port", "1")) == 1:
        # One port is every host's.
        lists["port"] = lists.get("port", [""]) * count
    if any(len(values) != count for values in lists.values()):
        raise ValueError(f"{count} hosts, but not as many addresses or ports")
    return [{name: values[place] for name, values in lists.items() if values[place]} for place in range(count)]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
