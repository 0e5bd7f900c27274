"""Finds powerful roles that a cell's pg_hba.conf admits on trust.

    for admission in await admissions(connection): ...

On trust means: without a password, and without a certificate that has the role's name. The holder of any certificate of
the service's authority can then log in as such a role. PostgreSQL itself compares the names with the rules, because
they may be groups or regular expressions in PostgreSQL's own syntax. The view `pg_hba_file_rules` does not show quotes,
so a role that is named like a keyword counts as the keyword.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

from plainsql_server.engine.admin.activity import rows

# The rule's file and number exist from PostgreSQL 16 on, and so do regular expressions in names.
_RULES = """
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
    FROM pg_hba_file_rules AS rule WHERE rule.error IS NULL
    ORDER BY (to_jsonb(rule) ->> 'rule_number')::int, rule.line_number
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
