"""The address of a pool (cell, database, role) and the connection strings for it.

Every connection starts with the settings below. They are sent in the startup packet, so they override what a tenant may
have stored with ALTER ROLE … SET, and DISCARD ALL resets to them. A cell may have several hosts, one of which is the
primary.
"""

from typing import NamedTuple

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# The text formats that `values.py` relies on, and the isolation level that the service promises. SERIALIZABLE is set
# here and never as a server default, which would break hot standbys and failover.
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
    # Otherwise a tenant could have each of its connections end at once, and others opened all the time.
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "synchronous_commit": "on",
    # The secret for idempotency records is sent as a parameter, and error context could reveal parameters.
    "log_parameter_max_length_on_error": "0",
    # So could a plan, which is sent as a message.
    "client_min_messages": "notice",
    "debug_print_plan": "off",
    # With a missing library stored here by ALTER ROLE, a tenant could no longer connect.
    "local_preload_libraries": "",
    # Under SSI, a sequential scan takes a predicate lock on the whole table and conflicts with every writer of it. The
    # planner likes to scan small tables, so unrelated transactions would abort. These costs favor an index scan; see
    # decision 0008.
    "random_page_cost": "1.1",
    "cpu_tuple_cost": "0.03",
}


# Detects within seconds that a server vanished, whether data was sent to it or is awaited from it.
_KEEPALIVE = {
    "keepalives_idle": "3", "keepalives_interval": "1", "keepalives_count": "3", "tcp_user_timeout": "5000",
}  # fmt: skip


class Address(NamedTuple):
    """What a pool connects to: a database on a cell, and the role to log in as."""

    cell_conninfo: str
    database: str
    role: str
    read_only: bool = False
    # The cell's name, as a label for metrics.
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

    def conninfos(self, connect_timeout_ms: int) -> tuple[bytes, ...]:
        """A connection string for each host of the cell. If there are several, each accepts only a primary."""
        whole = self.conninfo(connect_timeout_ms)
        hosts = hosts_of(self.cell_conninfo)
        if len(hosts) == 1:
            return (whole,)
        # Not `read-write`: that rejects connections whose default_transaction_read_only is on.
        others = {**_KEEPALIVE, "target_session_attrs": "primary"}
        return tuple(make_conninfo(whole.decode(), **host, **others).encode() for host in hosts)


def hosts_of(conninfo: str) -> list[dict[str, str]]:
    """Splits a connection string into hosts: `host`, `hostaddr` and `port` of each.

    Raises ValueError if the numbers of hosts, addresses and ports differ.
    """
    keywords = conninfo_to_dict(conninfo)
    lists = {name: str(keywords[name]).split(",") for name in ("host", "hostaddr", "port") if keywords.get(name)}
    count = len(lists.get("host") or lists.get("hostaddr") or "1")
    if len(lists.get("port", "1")) == 1:
        # A single port applies to every host.
        lists["port"] = lists.get("port", [""]) * count
    if any(len(values) != count for values in lists.values()):
        raise ValueError(f"{count} hosts, but a different number of addresses or ports")
    return [{name: values[place] for name, values in lists.items() if values[place]} for place in range(count)]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
