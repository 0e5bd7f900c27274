"""The queries behind the shell's `\\d` and `\\dt`."""

TABLES = """
select n.nspname as schema, c.relname as name,
  case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'f' then 'foreign table' else 'table' end
  as kind, case when c.reltuples >= 0 then c.reltuples::int8 end as row_estimate,
  pg_size_pretty(pg_total_relation_size(c.oid)) as size
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind::text = any($1) and n.nspname not in ('pg_catalog', 'information_schema', 'plainsql')
and ($2 = '' or c.relname like replace($2, '*', '%') or n.nspname || '.' || c.relname like replace($2, '*', '%'))
order by 1, 2
"""
RELATION_KINDS = ["r", "p", "v", "m", "f"]
TABLE_KINDS = ["r", "p"]
COLUMNS = """
select a.attname as column, format_type(a.atttypid, a.atttypmod) as type, not a.attnotnull as nullable,
  pg_get_expr(d.adbin, d.adrelid) as default
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
INDEXES = """
select pg_get_indexdef(indexrelid) as "indexes and keys" from pg_index where indrelid = $1::regclass
union all select conname || ' ' || pg_get_constraintdef(oid) from pg_constraint
where conrelid = $1::regclass and contype in ('f', 'c')
"""
