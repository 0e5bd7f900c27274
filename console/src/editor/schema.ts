/** What the editor completes: the tables, columns and functions of a database. */

import type { Completion } from "@codemirror/autocomplete";
import type { SQLNamespace } from "@codemirror/lang-sql";
import { listTables, run, type Table } from "../api/data.ts";
import { quoteName } from "../results/formats.ts";

/** What is known of a database. */
export interface Completions {
  schema: SQLNamespace;
  functions: readonly string[];
  /** Whether something could not be read, and is missing. */
  isPartial: boolean;
}

// What a statement can't call, or would not, is left out of PostgreSQL's own functions: what takes or returns what only
// the server has, and what does the work of an operator, a type or an index. Nobody's own function is left out.
const FUNCTIONS =
  "select distinct p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace" +
  " where p.prokind in ('f', 'a', 'w', 'p') and n.nspname not like 'pg\\_toast%' and n.nspname <> 'plainsql'" +
  " and p.proname ~ '^[a-z_][a-z0-9_]*$' and (n.nspname <> 'pg_catalog' or not" +
  " (array['internal', 'cstring', 'trigger', 'event_trigger', 'index_am_handler', 'table_am_handler', 'tsm_handler'," +
  " 'language_handler', 'fdw_handler']::regtype[]::oid[] && (p.proargtypes::oid[] || p.prorettype)" +
  " or coalesce(obj_description(p.oid, 'pg_proc'), '') like 'implementation of % operator%' and p.proname <> 'starts_with'" +
  " or p.oid in (select unnest(array[typsend, typmodin]::oid[]) from pg_type) or p.oid in (select a.amproc from" +
  " pg_amproc a join pg_opfamily f on f.oid = a.amprocfamily join pg_am m on m.oid = f.opfmethod where m.amname = 'btree')" +
  ")) order by 1 limit 3000";

/** A completion of a name. It is a value of the catalog: it gets into SQL as a name, whatever it is. */
interface Name extends Completion {
  name: string;
}

const nameOf = (name: string, type: string, detail?: string): Name => ({
  label: name,
  type,
  name,
  apply: quoteName(name),
  ...(detail !== undefined && { detail }),
});

/** An object without a prototype: `__proto__` is a name like any other. */
type Children = Record<string, SQLNamespace>;
const newChildren = (): Children => Object.create(null) as Children;

// A dot in a key would begin another level.
const keyOf = (name: string): string => name.replaceAll(".", "\\.");

export const namesOf = (tables: readonly Table[]): SQLNamespace => {
  const schemas = newChildren();
  const tablesOf = new Map<string, Children>();
  for (const table of tables) {
    const children = tablesOf.get(table.schema) ?? newChildren();
    tablesOf.set(table.schema, children);
    schemas[keyOf(table.schema)] = { self: nameOf(table.schema, "type"), children };
    const columns = (table.columns ?? []).map(({ name, type }) => nameOf(name, "property", type));
    children[keyOf(table.name)] = { self: nameOf(table.name, "type"), children: columns };
  }
  return schemas;
};

/** Completions after a quote that someone has typed. CodeMirror only puts the names between quotes. */
export const inQuotes = (options: readonly Completion[]): Completion[] =>
  options.map((option) => {
    const { name } = option as Partial<Name>;
    return name === undefined ? option : { ...option, apply: `"${name.replaceAll('"', '""')}"` };
  });

const loadFunctions = async (database: string): Promise<string[]> => {
  const answer = await run({ sql: FUNCTIONS, params: [] }, { database, maxRows: 3000, readOnly: true });
  return answer.rows.map(([name]) => String(name));
};

export const loadCompletions = async (database: string): Promise<Completions> => {
  const [tables, functions] = await Promise.allSettled([listTables(database, "columns"), loadFunctions(database)]);
  return {
    schema: tables.status === "fulfilled" ? namesOf(tables.value) : {},
    functions: functions.status === "fulfilled" ? functions.value : [],
    isPartial: tables.status === "rejected" || functions.status === "rejected",
  };
};
