"""Queries that list the tables of a tenant's database: a cheap one for changes (`HAS_CHANGED`) and the full list.

`list_tables` has PostgreSQL build the JSON, one row for each table, in the tenant's own backend. Building it here for
thousands of tables would block the event loop and with it other tenants' requests. Run both queries after `SAFE_PATH`.
Every role can read the whole catalog.
"""

from enum import StrEnum

from plainsql_server.engine.connection.batch import Own
from plainsql_server.engine.execution.temporary_schemas import TEMPORARY_SCHEMA


class Detail(StrEnum):
    """How much to return about each table."""

    NAMES = "names"
    COLUMNS = "columns"
    FULL = "full"


# Both queries read the catalogs from one snapshot. Catalog reads take no predicate locks, so SERIALIZABLE would cost
# more and guarantee no more.
BEGIN = b"begin isolation level repeatable read, read only"

# The first OID that PostgreSQL does not reserve for its own objects.
_FIRST_OURS = 16384


def _digest(catalog: str, identity: str, condition: str, state: str = "") -> str:
    # Every update of a catalog row changes its xmin, except for the counters that VACUUM and ANALYZE update in place.
    return (
        f"select '{catalog} ' || count(*) || ':' || coalesce(sum(hashtextextended(xmin::text{state}, {identity})), 0)"
        f" from {catalog} where {condition}"
    )


def _of_ours(catalog: str, oid: str = "oid") -> str:
    return _digest(catalog, f"{oid}::int8", f"{oid} >= {_FIRST_OURS}")


_SCHEMAS = _digest("pg_namespace", "oid::int8", f"nspname = 'public' or oid >= {_FIRST_OURS}")
_LISTED = f"relkind in ('r', 'p', 'v', 'm', 'f') and oid >= {_FIRST_OURS}"
# The list includes row estimates, so the digest does, too; relpages shows that a table has grown since it was counted.
_STRUCTURE = [
    _digest("pg_class", "oid::int8", _LISTED, " || ' ' || reltuples::text || ' ' || relpages::text"),
    _digest("pg_attribute", "attrelid::int8 * 2048 + attnum", f"attrelid >= {_FIRST_OURS} and attnum > 0"),
    _of_ours("pg_attrdef"), _of_ours("pg_constraint"), _of_ours("pg_index", "indexrelid"),
    _digest("pg_class", "oid::int8", f"relkind in ('i', 'I') and oid >= {_FIRST_OURS}"),
    # The names of types and functions, which appear in columns and expressions.
    _of_ours("pg_type"), _of_ours("pg_proc"), _SCHEMAS,
]  # fmt: skip
_DIGESTS = {
    Detail.NAMES: [_digest("pg_class", "oid::int8", _LISTED), _SCHEMAS],
    Detail.COLUMNS: _STRUCTURE,
    Detail.FULL: _STRUCTURE,
}
# The cheap query: scans the catalogs that the list is made from and formats nothing. Its rows are in no defined order.
HAS_CHANGED = {detail: " union all ".join(digests).encode() for detail, digests in _DIGESTS.items()}

_KINDS = {
    "r": "table", "p": "partitioned_table", "v": "view", "m": "materialized_view", "f": "foreign_table",
}  # fmt: skip
_KIND = "case c.relkind " + " ".join(f"when '{letter}' then '{kind}'" for letter, kind in _KINDS.items()) + " end"
_ESTIMATE = "case when c.reltuples >= 0 and c.relkind in ('r', 'm', 'p') then c.reltuples::int8 end as row_estimate"
_ACTION = (
    "case {} when 'a' then 'no action' when 'r' then 'restrict' when 'c' then 'cascade' when 'n' then 'set null'"
    " when 'd' then 'set default' end"
)

# Each subquery reads one table's entries by index. So wrong estimates of the catalogs' sizes cannot lead to a bad plan.
_COLUMNS = """coalesce((
    select json_agg(row_to_json((select t from (select
        a.attname as name, format_type(a.atttypid, a.atttypmod) as type, not a.attnotnull as nullable,
        case when a.attgenerated = '' then pg_get_expr(d.adbin, d.adrelid) end as "default",
        coalesce(a.attnum = any (c.primary_key), false) as primary_key,
        case a.attidentity when 'a' then 'always' when 'd' then 'by default' end as identity,
        case a.attgenerated when 's' then pg_get_expr(d.adbin, d.adrelid) end as generated
    ) t)) order by a.attnum)
    from pg_attribute a left join pg_attrdef d on a.atthasdef and d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
), '[]'::json) as columns"""
_INDEXES = """coalesce((
    select json_agg(row_to_json((select t from (select
        x.relname as name, i.indisunique as "unique", i.indisprimary as "primary",
        (select m.amname from pg_am m where m.oid = x.relam) as method, pg_get_indexdef(i.indexrelid) as definition
    ) t)) order by x.relname)
    from pg_index i join pg_class x on x.oid = i.indexrelid
    where i.indrelid = c.oid
), '[]'::json) as indexes"""
_NAMES_OF = """(select json_agg(a.attname order by k.at) from unnest({}) with ordinality k(number, at)
    join pg_attribute a on a.attrelid = {} and a.attnum = k.number)"""
_FOREIGN_KEYS = f"""coalesce((
    select json_agg(row_to_json((select t from (select
        f.conname as name, {_NAMES_OF.format("f.conkey", "f.conrelid")} as columns,
        json_build_object(
            'schema', (select rn.nspname from pg_namespace rn where rn.oid = r.relnamespace), 'table', r.relname,
            'columns', {_NAMES_OF.format("f.confkey", "f.confrelid")}
        ) as "references",
        {_ACTION.format("f.confupdtype")} as on_update, {_ACTION.format("f.confdeltype")} as on_delete
    ) t)) order by f.conname)
    from pg_constraint f join pg_class r on r.oid = f.confrelid
    where c.relhastriggers and f.conrelid = c.oid and f.contype = 'f'
), '[]'::json) as foreign_keys"""
_SIZE = "case when c.relkind in ('r', 'm', 'p') then pg_total_relation_size(c.oid) end as size_bytes"

_NAMES = f"c.nspname as schema, c.relname as name, {_KIND} as kind"
_FIELDS = {
    Detail.NAMES: _NAMES,
    Detail.COLUMNS: f"{_NAMES}, {_ESTIMATE}, {_COLUMNS}",
    Detail.FULL: f"{_NAMES}, {_ESTIMATE}, {_SIZE}, {_COLUMNS}, {_INDEXES}, {_FOREIGN_KEYS}",
}
_TABLES = """
    select row_to_json((select t from (select {fields}) t))
    from (
        select c.oid, c.relname, c.relkind, c.reltuples, c.relhastriggers, n.nspname,
            (select k.conkey from pg_constraint k where k.conrelid = c.oid and k.contype = 'p') as primary_key
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'p', 'v', 'm', 'f') and ($1::text is null or n.nspname = $1)
            and n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'plainsql') and n.nspname !~ $2::text
        order by n.nspname, c.relname limit $3::int8
    ) c
    order by c.nspname, c.relname
"""
_QUESTIONS = {detail: _TABLES.format(fields=_FIELDS[detail]).encode() for detail in Detail}


def list_tables(schema: str | None, detail: Detail, at_most: int) -> Own:
    """The full list: one JSON object for each table, ordered by schema and name."""
    # A NUL would truncate the name on the wire. No schema name contains one, so search for '', which no schema has.
    wanted = None if schema is None else b"" if "\0" in schema else schema.encode()
    return _QUESTIONS[detail], [wanted, TEMPORARY_SCHEMA.encode(), b"%d" % at_most]
