"""What tables there are in a customer's database: a cheap question whether they changed, and a dear one what they are.

Owns both questions. The answer to the dear one is written as JSON by the engine, in the backend of who asks, a row for
each table: thousands of them would otherwise keep the process from everybody else's requests for as long. Both are to
be asked with the engine's own search path (`SAFE_PATH`). Every role sees the whole catalog.
"""

from enum import StrEnum

from plainsql_server.engine.connection.batch import Own
from plainsql_server.engine.execution.temporary_schemas import SCRATCH_SCHEMA


class Detail(StrEnum):
    """How much is told of a table."""

    NAMES = "names"
    COLUMNS = "columns"
    FULL = "full"


# Catalog and hints of both questions are read from one snapshot. Catalogs take no predicate locks, so that serializable
# would be dearer and mean no more.
BEGIN = b"begin isolation level repeatable read, read only"

# The first OID that is not the engine's own.
_FIRST_OURS = 16384


def _digest(catalog: str, identity: str, condition: str, state: str = "") -> str:
    # Every change of a row of the catalog gives it another xmin, except for what VACUUM and ANALYZE count in place.
    return (
        f"select '{catalog} ' || count(*) || ':' || coalesce(sum(hashtextextended(xmin::text{state}, {identity})), 0)"
        f" from {catalog} where {condition}"
    )


def _of_ours(catalog: str, oid: str = "oid") -> str:
    return _digest(catalog, f"{oid}::int8", f"{oid} >= {_FIRST_OURS}")


_SCHEMAS = _digest("pg_namespace", "oid::int8", f"nspname = 'public' or oid >= {_FIRST_OURS}")
_LISTED = f"relkind in ('r', 'p', 'v', 'm', 'f') and oid >= {_FIRST_OURS}"
# Row estimates are told, too, and pages tell that a table has grown since they were last counted.
_STRUCTURE = [
    _digest("pg_class", "oid::int8", _LISTED, " || ' ' || reltuples::text || ' ' || relpages::text"),
    _digest("pg_attribute", "attrelid::int8 * 2048 + attnum", f"attrelid >= {_FIRST_OURS} and attnum > 0"),
    _of_ours("pg_attrdef"), _of_ours("pg_constraint"), _of_ours("pg_index", "indexrelid"),
    _digest("pg_class", "oid::int8", f"relkind in ('i', 'I') and oid >= {_FIRST_OURS}"),
    # What types and expressions are called.
    _of_ours("pg_type"), _of_ours("pg_proc"), _SCHEMAS,
]  # fmt: skip
_DIGESTS = {
    Detail.NAMES: [_digest("pg_class", "oid::int8", _LISTED), _SCHEMAS],
    Detail.COLUMNS: _STRUCTURE,
    Detail.FULL: _STRUCTURE,
}
# The cheap question: scans the catalogs that the answer is made of, and formats nothing. Its rows come in any order.
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

# Each for one table at a time, by index: whatever the engine believes of the catalogs' sizes, it cannot go astray.
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
    """The dear question: one JSON object for each table, in the order of their names."""
    # On the wire a name would end with a NUL; none can have one, and none is empty.
    wanted = None if schema is None else b"" if "\0" in schema else schema.encode()
    return _QUESTIONS[detail], [wanted, SCRATCH_SCHEMA.encode(), b"%d" % at_most]
