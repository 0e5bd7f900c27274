"""Finds powerful roles that a cell's pg_hba.conf admits on trust, and how it admits the receiver of the WAL.

    for admission in await admissions(connection): ...
    rules = await receiver_rules(connection)

On trust means: without a password, and without a certificate that has the role's name. The holder of any certificate of
the service's authority can then log in as such a role. PostgreSQL itself compares the names with the rules, because
they may be groups or regular expressions in PostgreSQL's own syntax. The view `pg_hba_file_rules` does not show quotes,
so a role that is named like a keyword counts as the keyword.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from psycopg import AsyncConnection

from plainsql_server.engine.admin.activity import rows
from plainsql_server.engine.admin.cell import STREAM_ROLE

# The order in which PostgreSQL looks at the rules. Their file and number exist from version 16 on, and so do regular
# expressions in names. A line number is that in its file, which others may include.
_IN_ORDER = "ORDER BY (to_jsonb(rule) ->> 'rule_number')::int, rule.line_number"
_RULES = f"""
    WITH RECURSIVE powerful AS (
        SELECT oid, rolname, rolsuper, rolreplication FROM pg_roles
        WHERE rolcanlogin AND (rolsuper OR rolcreaterole OR rolreplication OR rolbypassrls)
    ), groups (member, role) AS (
        SELECT oid, oid FROM powerful
        UNION SELECT g.member, m.roleid FROM groups g JOIN pg_auth_members m ON m.member = g.role
    ), named_groups AS (
        SELECT g.member, r.rolname FROM groups g JOIN pg_roles r ON r.oid = g.role
    )
    SELECT rule.line_number, rule.type, rule.database, rule.user_name, rule.address, rule.netmask, rule.auth_method,
           ARRAY(
               SELECT p.rolname::text FROM powerful p
               WHERE EXISTS (
                   SELECT FROM unnest(rule.user_name) AS name WHERE CASE
                       WHEN name = 'all' THEN true
                       WHEN name LIKE '+%' THEN (p.oid, substr(name, 2)) IN (SELECT member, rolname FROM named_groups)
                       WHEN name LIKE '/%' AND current_setting('server_version_num')::int >= 160000
                           THEN p.rolname ~ substr(name, 2)
                       ELSE name = p.rolname END)
                 AND EXISTS (
                   SELECT FROM unnest(rule.database) AS name WHERE CASE
                       WHEN name = 'replication' THEN p.rolsuper OR p.rolreplication
                       WHEN name = 'sameuser' THEN p.rolname IN (SELECT datname FROM pg_database)
                       WHEN name IN ('samerole', 'samegroup') THEN EXISTS (
                           SELECT FROM named_groups n JOIN pg_database d ON d.datname = n.rolname
                           WHERE n.member = p.oid)
                       ELSE true END)
               ORDER BY p.rolname
           ) AS powerful
    FROM pg_hba_file_rules AS rule WHERE rule.error IS NULL {_IN_ORDER}
"""
# PostgreSQL takes the first rule that fits. Those for the socket are for the machine's own users.
_RECEIVER = f"""
    SELECT user_name AS roles, database AS databases, address, auth_method AS method FROM pg_hba_file_rules AS rule
    WHERE error IS NULL AND type LIKE 'host%%' AND EXISTS (SELECT FROM pg_roles WHERE rolname = %s)
    {_IN_ORDER}
"""
# What asks for nothing that shows who the role is. (`cert` compares the certificate's name.)
_ON_TRUST = "trust"
# Only the server's own system user can open the socket then, and it can read and write all of the server's files.
_OWN_SOCKET = "SELECT setting = '0700' AS it FROM pg_settings WHERE name = 'unix_socket_permissions'"


@dataclass(frozen=True, slots=True)
class Admission:
    """A rule of pg_hba.conf that admits powerful roles on trust."""

    line: int
    rule: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReceiverRules:
    """How pg_hba.conf admits the receiver of the WAL."""

    has_certificate: bool
    """Whether it logs in with a certificate. Any certificate of the service's authority opens tenants' databases."""
    is_kept_out: bool
    """Whether the role is rejected for all databases before any other role is admitted."""


async def receiver_rules(connection: AsyncConnection) -> ReceiverRules | None:
    """Those of the cell; None if it has no role for a receiver, or admits it nowhere. Raises psycopg's errors."""
    return find_receiver(await rows(connection, _RECEIVER, STREAM_ROLE))


def find_receiver(rules: Sequence[dict[str, Any]]) -> ReceiverRules | None:
    """From the rules for the network in their order."""
    own = [rule for rule in rules if rule["roles"] == [STREAM_ROLE]]
    admitting = [rule for rule in own if "replication" in rule["databases"] and rule["method"] != "reject"]
    if not admitting:
        return None
    # The first rules, as long as they are for this role alone.
    first = list(takewhile(lambda rule: rule["roles"] == [STREAM_ROLE], rules))
    is_kept_out = any(
        rule["method"] == "reject" and "all" in rule["databases"] and rule["address"] == "all" for rule in first
    )
    return ReceiverRules(any(rule["method"] != "scram-sha-256" for rule in admitting), is_kept_out)


async def admissions(connection: AsyncConnection) -> list[Admission]:
    """The rules of the cell that admit powerful roles on trust. Raises psycopg's errors."""
    is_own_socket = (await rows(connection, _OWN_SOCKET))[0]["it"]
    return list(find(await rows(connection, _RULES), is_own_socket=is_own_socket))


def find(rules: Sequence[dict[str, Any]], *, is_own_socket: bool) -> Iterator[Admission]:
    """Of rules in their order, those that admit a powerful role that no earlier rule has decided about."""
    for index, rule in enumerate(rules):
        if rule["auth_method"] != _ON_TRUST or (rule["type"] == "local" and is_own_socket):
            continue
        decided = {role for earlier in rules[:index] if _covers(earlier, rule) for role in earlier["powerful"]}
        admitted = tuple(role for role in rule["powerful"] if role not in decided)
        if admitted:
            yield Admission(rule["line_number"], _text(rule), admitted)


def _covers(earlier: dict[str, Any], later: dict[str, Any]) -> bool:
    """Whether every connection that the later rule is for would be decided by the earlier one, if the role fits."""
    same_type = earlier["type"] in (later["type"], "host" if later["type"].startswith("host") else "")
    # `all` is every database, but not replication.
    databases = set(later["database"])
    same_database = databases <= set(earlier["database"]) or (
        "all" in earlier["database"] and databases - {"replication"} == databases
    )
    return same_type and same_database and _covers_address(earlier, later)


def _covers_address(earlier: dict[str, Any], later: dict[str, Any]) -> bool:
    if earlier["address"] == "all" or (earlier["address"], earlier["netmask"]) == (later["address"], later["netmask"]):
        return True
    wide, narrow = _network(earlier), _network(later)
    if isinstance(wide, ipaddress.IPv4Network) and isinstance(narrow, ipaddress.IPv4Network):
        return narrow.subnet_of(wide)
    if isinstance(wide, ipaddress.IPv6Network) and isinstance(narrow, ipaddress.IPv6Network):
        return narrow.subnet_of(wide)
    return False


def _network(rule: dict[str, Any]) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The rule's addresses; None if they are given by a name or a keyword."""
    try:
        address, mask = ipaddress.ip_address(rule["address"] or ""), ipaddress.ip_address(rule["netmask"] or "")
    except ValueError:
        return None
    return ipaddress.ip_network(f"{address}/{int(mask).bit_count()}", strict=False)


def _text(rule: dict[str, Any]) -> str:
    parts = (rule["type"], ",".join(rule["database"]), ",".join(rule["user_name"]), rule["address"], rule["netmask"])
    return " ".join([*(part for part in parts if part), rule["auth_method"]])
