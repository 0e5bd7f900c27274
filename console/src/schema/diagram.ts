/** The tables and foreign keys of a database, as its diagram shows them: the query, its result, and a filter. */

import type { Row, Statement } from "../api/data.ts";
import { labelOf } from "../app/relations.ts";

/** Of more tables than this, those with foreign keys come first. A picture of more can't be read. */
export const TABLES_MAX = 200;
export const KEYS_MAX = 1000;
/** Of more columns than this, those of keys come first. */
const COLUMNS_MAX = 40;

export interface DiagramColumn {
  name: string;
  type: string;
  isPrimary: boolean;
}

/** A foreign key. What it references may be a table that is not shown. */
export interface ForeignKey {
  name: string;
  columns: string[];
  references: { id: string; schema: string; name: string; columns: string[] };
  onDelete: string;
  onUpdate: string;
}

export interface DiagramTable {
  id: string;
  schema: string;
  name: string;
  columns: DiagramColumn[];
  /** How many columns it has that are not listed. */
  others: number;
  keys: ForeignKey[];
}

export interface Schema {
  tables: DiagramTable[];
  /** How many there are, shown or not. */
  tableCount: number;
  keyCount: number;
}

// A partition has its table's keys and is left out, unless a key of its own leads to it or from it.
const SQL = `with candidates as materialized (
  select c.oid, n.nspname, c.relname, c.relispartition
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where c.relkind in ('r', 'p', 'f') and n.nspname !~ '^(pg_|plainsql_(scratch|temporary)_)'
    and n.nspname not in ('information_schema', 'plainsql')
), keys as materialized (
  select f.conname, f.conrelid, f.confrelid, f.conkey, f.confkey, f.confdeltype, f.confupdtype
  from pg_catalog.pg_constraint f
  where f.contype = 'f' and f.conparentid = 0
    and f.conrelid in (select oid from candidates) and f.confrelid in (select oid from candidates)
), linked as materialized (
  select oid, array_agg(number) as numbers
  from (
    select conrelid as oid, unnest(conkey) as number from keys union select confrelid, unnest(confkey) from keys
  ) ends
  group by oid
), matching as materialized (
  select oid from candidates where position(lower($1::text) in lower(nspname || '.' || relname)) > 0
), near as materialized (
  select oid from matching
  union select confrelid from keys where conrelid in (select oid from matching)
  union select conrelid from keys where confrelid in (select oid from matching)
), shown as materialized (
  select t.oid, t.nspname, t.relname, l.numbers, count(*) over () as tables
  from candidates t join near using (oid) left join linked l using (oid) left join matching m using (oid)
  where l.oid is not null or not t.relispartition
  order by m.oid is null, l.oid is null, t.nspname, t.relname
  limit ${TABLES_MAX}
), shown_keys as materialized (
  select k.*, r.nspname, r.relname, count(*) over () as keys
  from keys k join shown s on s.oid = k.conrelid join candidates r on r.oid = k.confrelid
  order by s.nspname, s.relname, k.conname
  limit ${KEYS_MAX}
)
select s.oid::text as id, s.nspname::text as schema, s.relname::text as name, s.tables::int as tables,
  coalesce((select max(keys) from shown_keys), 0)::int as keys,
  (select count(*) from pg_catalog.pg_attribute a where a.attrelid = s.oid and a.attnum > 0 and not a.attisdropped)::int
    as columns,
  (
    select json_agg(json_build_array(c.attname, c.type, c.is_primary) order by c.attnum)
    from (
      select a.attname, a.attnum, pg_catalog.format_type(a.atttypid, a.atttypmod) as type,
        coalesce(a.attnum = any (p.conkey), false) as is_primary
      from pg_catalog.pg_attribute a
      left join pg_catalog.pg_constraint p on p.conrelid = a.attrelid and p.contype = 'p'
      where a.attrelid = s.oid and a.attnum > 0 and not a.attisdropped
      order by coalesce(a.attnum = any (p.conkey), false) or coalesce(a.attnum = any (s.numbers), false) desc, a.attnum
      limit ${COLUMNS_MAX}
    ) c
  ) as listed,
  (
    select json_agg(json_build_array(k.conname, k.confrelid::text, k.nspname, k.relname, k.confdeltype, k.confupdtype,
      (select json_agg(a.attname order by u.place) from unnest(k.conkey) with ordinality u (number, place)
        join pg_catalog.pg_attribute a on a.attrelid = k.conrelid and a.attnum = u.number),
      (select json_agg(a.attname order by u.place) from unnest(k.confkey) with ordinality u (number, place)
        join pg_catalog.pg_attribute a on a.attrelid = k.confrelid and a.attnum = u.number)
    ) order by k.conname)
    from shown_keys k
    where k.conrelid = s.oid
  ) as foreign_keys
from shown s
order by s.nspname, s.relname`;

const ACTIONS: Record<string, string> = {
  a: "no action",
  r: "restrict",
  c: "cascade",
  n: "set null",
  d: "set default",
};

/** What reads the schema: of the tables whose names have a text, which may be empty, and those one key away from them. */
export const schemaQuery = (text: string): Statement => ({ sql: SQL, params: [text] });

type KeyRow = [string, string, string, string, string, string, string[], string[]];

const keyOf = ([name, id, schema, table, onDelete, onUpdate, columns, referenced]: KeyRow): ForeignKey => ({
  name,
  columns,
  references: { id, schema, name: table, columns: referenced },
  onDelete: ACTIONS[onDelete] ?? onDelete,
  onUpdate: ACTIONS[onUpdate] ?? onUpdate,
});

/** The query's result. JSON comes as its text. */
export const readSchema = (rows: readonly Row[]): Schema => {
  const parsed = <T>(text: unknown): T[] => (text == null ? [] : (JSON.parse(String(text)) as T[]));
  const tables = rows.map(([id, schema, name, , , columnCount, listed, keys]) => {
    const columns = parsed<[string, string, boolean]>(listed).map(([column, type, isPrimary]) => ({
      name: column,
      type,
      isPrimary,
    }));
    return {
      id: String(id),
      schema: String(schema),
      name: String(name),
      columns,
      others: Number(columnCount) - columns.length,
      keys: parsed<KeyRow>(keys).map(keyOf),
    };
  });
  return { tables, tableCount: Number(rows[0]?.[3] ?? 0), keyCount: Number(rows[0]?.[4] ?? 0) };
};

// PostgreSQL takes both names.
const SHORT: [string, string][] = [
  ["timestamp with time zone", "timestamptz"],
  ["timestamp without time zone", "timestamp"],
  ["time with time zone", "timetz"],
  ["time without time zone", "time"],
  ["character varying", "varchar"],
  ["double precision", "float8"],
];

/** A type by its short name. A precision may stand within the long one. */
export const shortType = (type: string): string => {
  const precise = type.replace(/^(time|timestamp)(\(\d\)) (with(?:out)? time zone)/, "$1 $3$2");
  const [long, short] = SHORT.find(([name]) => precise.startsWith(name)) ?? ["", ""];
  return short + precise.slice(long.length);
};

/** The names of the columns that reference others. */
export const foreignColumns = ({ keys }: DiagramTable): ReadonlySet<string> =>
  new Set(keys.flatMap(({ columns }) => columns));

/** A foreign key in words. */
export const keyText = (table: DiagramTable, { columns, references }: ForeignKey): string =>
  `${labelOf(table)} (${columns.join(", ")}) references ${labelOf(references)} (${references.columns.join(", ")})`;

/** The tables whose names have a text, and those that are one key away from them. */
export const matchingTables = (
  tables: readonly DiagramTable[],
  text: string,
): { tables: DiagramTable[]; matched: ReadonlySet<string> } => {
  const wanted = text.trim().toLowerCase();
  const matched = new Set(
    tables.filter((table) => `${table.schema}.${table.name}`.toLowerCase().includes(wanted)).map(({ id }) => id),
  );
  const near = new Set(matched);
  for (const { id, keys } of tables) {
    for (const { references } of keys) {
      if (matched.has(id)) near.add(references.id);
      if (matched.has(references.id)) near.add(id);
    }
  }
  return { tables: tables.filter(({ id }) => near.has(id)), matched };
};
