"""Compares the schemas of two databases, such as a branch and its parent, with one query in each.

    for change in differences(db.query(SCHEMA, database="shop").rows, db.query(SCHEMA, database="shop-test").rows): ...

It compares tables, columns, indexes, constraints, views, sequences, functions, triggers, policies, types, schemas and
extensions. It compares no rows, privileges, comments, statistics objects, text search configurations or operators.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Roles differ between databases. Their first letters tell the owner (o) and the reader (r).
SCHEMA = r"""
with own as (
    select oid, nspname from pg_namespace
    where nspname !~ '^pg_' and nspname not in ('information_schema', 'plainsql')
), members as (
    select classid, objid from pg_depend where deptype = 'e'
), relations as (
    select c.*, format('%I.%I', n.nspname, c.relname) as shown from pg_class c join own n on n.oid = c.relnamespace
    where not exists (select from members where classid = 'pg_class'::regclass and objid = c.oid)
), functions as (
    select p.*, format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)) as shown
    from pg_proc p join own n on n.oid = p.pronamespace
    where not exists (select from members where classid = 'pg_proc'::regclass and objid = p.oid)
), types as (
    select t.*, format('%I.%I', n.nspname, t.typname) as shown from pg_type t join own n on n.oid = t.typnamespace
    where t.typtype in ('e', 'd', 'r')
      and not exists (select from members where classid = 'pg_type'::regclass and objid = t.oid)
)
select 'schema' as kind, format('%I', nspname) as name, '' as definition from own
union all
select 'extension', extname, extversion from pg_extension
union all
select case relkind when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence'
           when 'c' then 'type' when 'f' then 'foreign table' else 'table' end, shown,
       concat_ws(' ', case relpersistence when 'u' then 'unlogged' end,
           case when relkind = 'p' then 'partition by ' || pg_get_partkeydef(oid) end,
           pg_get_expr(relpartbound, oid), case when relrowsecurity then 'row security' end,
           case when relforcerowsecurity then 'forced' end, array_to_string(reloptions, ', '),
           case when relkind in ('v', 'm') then pg_get_viewdef(oid) end)
from relations where relkind in ('r', 'p', 'v', 'm', 'S', 'f', 'c')
union all
select 'column', r.shown || '.' || quote_ident(a.attname),
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), case when a.attnotnull then 'not null' end,
           case a.attidentity when 'a' then 'identity always' when 'd' then 'identity by default' end,
           case when a.attgenerated <> '' then 'generated' when d.adbin is not null then 'default' end,
           pg_get_expr(d.adbin, d.adrelid))
from relations r join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where r.relkind in ('r', 'p', 'f', 'c')
union all
select 'index', shown, pg_get_indexdef(oid) from relations where relkind in ('i', 'I')
union all
select 'constraint', coalesce(r.shown, t.shown) || '.' || quote_ident(k.conname), pg_get_constraintdef(k.oid)
from pg_constraint k left join relations r on r.oid = k.conrelid left join types t on t.oid = k.contypid
where coalesce(r.shown, t.shown) is not null and k.contype not in ('n', 't')
union all
select 'function', shown, pg_get_functiondef(oid) from functions where prokind in ('f', 'p', 'w')
union all
select 'aggregate', f.shown, concat_ws(' ', a.aggtransfn, a.aggfinalfn, a.agginitval)
from functions f join pg_aggregate a on a.aggfnoid = f.oid
union all
select 'trigger', r.shown || '.' || quote_ident(g.tgname), pg_get_triggerdef(g.oid) || ' ' || g.tgenabled::text
from pg_trigger g join relations r on r.oid = g.tgrelid where not g.tgisinternal
union all
select 'policy', r.shown || '.' || quote_ident(p.polname),
       concat_ws(' ', p.polcmd::text, p.polpermissive::text,
           (select string_agg(left(rolname, 1), ',' order by rolname) from pg_roles where oid = any(p.polroles)),
           pg_get_expr(p.polqual, p.polrelid), 'check', pg_get_expr(p.polwithcheck, p.polrelid))
from pg_policy p join relations r on r.oid = p.polrelid
union all
select 'type', shown,
       case typtype
           when 'd' then concat_ws(' ', format_type(typbasetype, typtypmod), case when typnotnull then 'not null' end,
               typdefault)
           when 'e' then (select string_agg(quote_literal(enumlabel), ', ' order by enumsortorder)
               from pg_enum where enumtypid = types.oid)
           else (select format_type(rngsubtype, null) from pg_range where rngtypid = types.oid) end
from types
order by 1, 2
"""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Something that differs. `change` is "added", "removed" or "changed"; a definition is None where it is missing."""

    change: str
    kind: str
    name: str
    before: str | None
    after: str | None


def differences(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> Iterator[SchemaChange]:
    """What changed from the rows of `SCHEMA` in one database to those in another, by kind and name."""
    old, new = _by_name(before), _by_name(after)
    for kind, name in sorted(old.keys() | new.keys()):
        was, now = old.get((kind, name)), new.get((kind, name))
        if was != now:
            change = "added" if was is None else "removed" if now is None else "changed"
            yield SchemaChange(change, kind, name, was, now)


def _by_name(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    return {(row["kind"], row["name"]): row["definition"] or "" for row in rows}
