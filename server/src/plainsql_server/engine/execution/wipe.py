"""Statements that drop everything a tenant created in a database, in batches, as the tenant's own role.

What counts is what the database's two roles own, according to pg_shdepend. Objects of the cell's admin, such as the
schema `plainsql`, stay.

Dropping happens in batches because every dropped object takes entries in the lock table, which all tenants of the cell
share. Each batch is a separate transaction at READ COMMITTED: SERIALIZABLE would be no safer here, and would make other
transactions fail.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from plainsql_server.engine.connection.batch import SAFE_PATH, Own

BEGIN = b"begin isolation level read committed read write"

# An object is dropped with its dependents: indexes, constraints, row types, TOAST tables. That is about ten lock table
# entries for an ordinary table, so a batch takes a tenth of the lock table of a cell with default settings.
BATCH_OBJECTS = 100
# How many objects one query finds: each query scans all objects that are left.
FOUND_AT_ONCE = 2_000

# The order in which kinds are dropped: dependents first. Within a kind, later objects depend on earlier ones, and
# partitions on their parents. So CASCADE rarely drops much more than the object itself, which could be too much for one
# transaction. Extensions come late, because columns of many tables may have a type of an extension.
_ORDER = (
    "publication", "materialized view", "view", "foreign table", "server", "table", "sequence", "statistics object",
    "text search configuration", "text search dictionary", "operator", "aggregate", "procedure", "function", "type",
    "collation", "conversion", "extension", "large object", "schema",
)  # fmt: skip
# The counters in the response, by PostgreSQL's name of the kind. Other kinds are counted together.
COUNTED = {
    "table": "tables", "foreign table": "tables", "view": "views", "materialized view": "materialized_views",
    "sequence": "sequences", "function": "functions", "procedure": "functions", "aggregate": "functions",
    "type": "types", "schema": "schemas", "large object": "large_objects",
}  # fmt: skip
OTHERS = "others"

# What the roles own in this database, from pg_shdepend. What another session drops meanwhile has no identity any more.
# An internal dependent (the sequence of an identity column, an extension's function) is dropped with its parent and
# cannot be dropped alone. Temporary tables belong to sessions.
_OWNED = """
    select d.classid, d.objid, i.type, i.schema, i.identity, h.is_part
    from pg_shdepend d
    join pg_database b on b.oid = d.dbid and b.datname = current_database()
    cross join lateral pg_identify_object(d.classid, d.objid, 0) i
    cross join lateral (
        select bool_or(p.deptype in ('i', 'e')) as is_part, bool_or(p.deptype = 'e') as member
        from pg_depend p where p.classid = d.classid and p.objid = d.objid and p.objsubid = 0
    ) h
    where d.refclassid = 'pg_authid'::regclass and d.deptype = 'o' and d.objsubid = 0
        and d.refobjid in (select oid from pg_roles where rolname = any ($1::name[]))
        and i.identity is not null and i.type <> 'default acl' and coalesce(i.schema, '') !~ '^pg_temp'
        and not coalesce(h.member, false) and not (i.type = 'schema' and i.identity = 'public')
"""
_FIND = f"""
    select o.type, o.identity from ({_OWNED}) o where not coalesce(o.is_part, false)
    order by coalesce(array_position($2::text[], o.type), 0),
        o.classid = 'pg_class'::regclass and exists (select from pg_inherits h where h.inhparent = o.objid),
        o.objid desc
    limit {FOUND_AT_ONCE}
""".encode()
_COUNT = f"""
    select o.type, count(*) from ({_OWNED}) o where not coalesce(o.is_part, false) or o.type = 'sequence' group by 1
""".encode()


@dataclass(frozen=True, slots=True)
class Droppable:
    """An object, by kind and identity as pg_identify_object returns them."""

    kind: str
    identity: str

    def drop(self) -> bytes:
        if self.kind == "large object":
            return b"select lo_unlink(oid) from pg_largeobject_metadata where oid = %b" % self.identity.encode()
        kind = "statistics" if self.kind == "statistics object" else self.kind
        return f"drop {kind} if exists {self.identity} cascade".encode()


def count(roles: Sequence[str]) -> list[bytes | Own]:
    """Statements that count the objects by kind. Pass the rows of the query to `read_counts`."""
    return [BEGIN, SAFE_PATH, (_COUNT, [_array(roles)]), b"commit"]


def find(roles: Sequence[str]) -> list[bytes | Own]:
    """Statements that list objects in the order to drop them. Pass the rows of the query to `read_found`."""
    return [BEGIN, SAFE_PATH, (_FIND, [_array(roles), _array(_ORDER)]), b"commit"]


def read_counts(rows: Sequence[Sequence[bytes | None]]) -> dict[str, int]:
    """The number of objects by counter."""
    counts = dict.fromkeys([*COUNTED.values(), OTHERS], 0)
    for kind, number in rows:
        counts[COUNTED.get((kind or b"").decode(), OTHERS)] += int(number or 0)
    return counts


def read_found(rows: Sequence[Sequence[bytes | None]]) -> list[Droppable]:
    return [Droppable((kind or b"").decode(), (identity or b"").decode()) for kind, identity in rows]


def drop(batch: Sequence[Droppable]) -> list[bytes | Own]:
    """Statements that drop a batch in one transaction."""
    return [BEGIN, SAFE_PATH, *(each.drop() for each in batch), b"commit"]


def make_public_anew(reader_role: str) -> list[bytes | Own]:
    """Statements that create the schema `public` again and make it readable, as in a new database."""
    # The service chose the role's name: letters, digits and underscores.
    grant = f'grant usage on schema public to "{reader_role}"'.encode()
    return [BEGIN, b"create schema if not exists public", grant, b"commit"]


def _array(values: Sequence[str]) -> bytes:
    # None of the values contains a character that is special inside quotation marks in an array literal.
    return ("{" + ",".join(json.dumps(value) for value in values) + "}").encode()
