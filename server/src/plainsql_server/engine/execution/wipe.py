"""Dropping everything that a customer made in a database, as the customer, a little at a time.

Owns what counts as the customer's (what its two roles own, which the engine keeps a list of) and the order of dropping.
Little at a time, because every object that a transaction drops takes places in the lock table, which all customers of
the cell share. Each batch is a transaction of its own, at READ COMMITTED: a serializable one would be no safer here,
and would make others' fail. Refuses what the cell's admin owns, as the schema `plainsql`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from plainsql_server.engine.connection.batch import SAFE_PATH, Own

BEGIN = b"begin isolation level read committed read write"

# Each drops with what hangs on it: indexes, constraints, types of rows, TOAST tables. That is some ten places in the
# lock table for an ordinary table, so that a batch takes a tenth of what a cell of the default settings has.
BATCH_OBJECTS = 100
# As many as are looked up at once: looking is a scan of all that is left.
FOUND_AT_ONCE = 2_000

# Later kinds hang less often on earlier ones, and of one kind what was made later hangs on what was made before, and
# partitions on what they are partitions of: so hardly anything is dropped together with something else, which could be
# too much for one transaction. Columns of many tables may be of a type that an extension brought.
_ORDER = (
    "publication", "materialized view", "view", "foreign table", "server", "table", "sequence", "statistics object",
    "text search configuration", "text search dictionary", "operator", "aggregate", "procedure", "function", "type",
    "collation", "conversion", "extension", "large object", "schema",
)  # fmt: skip
# What the answer counts, by what the engine calls it. Other kinds are counted together.
COUNTED = {
    "table": "tables", "foreign table": "tables", "view": "views", "materialized view": "materialized_views",
    "sequence": "sequences", "function": "functions", "procedure": "functions", "aggregate": "functions",
    "type": "types", "schema": "schemas", "large object": "large_objects",
}  # fmt: skip
OTHERS = "others"

# The engine's list of what the roles own here. What hangs on something else from the inside (a sequence of an identity
# column, an extension's function) goes with it and cannot be dropped by itself; temporary tables are their sessions'.
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
        and i.type is not null and i.type <> 'default acl' and coalesce(i.schema, '') !~ '^pg_temp'
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
    """An object, by what the engine calls it."""

    kind: str
    identity: str

    def drop(self) -> bytes:
        if self.kind == "large object":
            return b"select lo_unlink(oid) from pg_largeobject_metadata where oid = %b" % self.identity.encode()
        kind = "statistics" if self.kind == "statistics object" else self.kind
        return f"drop {kind} if exists {self.identity} cascade".encode()


def count(roles: Sequence[str]) -> list[bytes | Own]:
    """The questions that end with what `read_counts` reads."""
    return [BEGIN, SAFE_PATH, (_COUNT, [_array(roles)]), b"commit"]


def find(roles: Sequence[str]) -> list[bytes | Own]:
    """The questions that end with what `read_found` reads."""
    return [BEGIN, SAFE_PATH, (_FIND, [_array(roles), _array(_ORDER)]), b"commit"]


def read_counts(rows: Sequence[Sequence[bytes | None]]) -> dict[str, int]:
    """How many objects of each kind there are."""
    counts = dict.fromkeys([*COUNTED.values(), OTHERS], 0)
    for kind, number in rows:
        counts[COUNTED.get((kind or b"").decode(), OTHERS)] += int(number or 0)
    return counts


def read_found(rows: Sequence[Sequence[bytes | None]]) -> list[Droppable]:
    return [Droppable((kind or b"").decode(), (identity or b"").decode()) for kind, identity in rows]


def drop(batch: Sequence[Droppable]) -> list[bytes | Own]:
    """The statements that drop a batch, or nothing of it."""
    return [BEGIN, SAFE_PATH, *(each.drop() for each in batch), b"commit"]


def make_public_anew(reader_role: str) -> list[bytes | Own]:
    """The statements after which the schema `public` is there and can be read, as in a new database."""
    # A role's name is ours: letters, digits and underscores.
    grant = f'grant usage on schema public to "{reader_role}"'.encode()
    return [BEGIN, b"create schema if not exists public", grant, b"commit"]


def _array(values: Sequence[str]) -> bytes:
    # None of them has a character that an array's text gives a meaning to within quotation marks.
    return ("{" + ",".join(json.dumps(value) for value in values) + "}").encode()
