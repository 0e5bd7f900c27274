/** What the editor completes: the tables, columns and functions of a database. */

import { listTables, run, type Table } from "../api/data.ts";
import { quoteName } from "../results/formats.ts";
import type { Completions } from "./codemirror.ts";

const FUNCTIONS =
  "select distinct p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace" +
  " where p.prokind in ('f', 'a', 'w', 'p') and n.nspname not like 'pg\\_toast%' and n.nspname <> 'plainsql'" +
  " and p.proname ~ '^[a-z][a-z0-9_]*$' and p.proname !~ '(in|out|send|recv|sel|eq|ne|lt|le|gt|ge|cmp)$' order by 1 limit 3000";

const namesOf = (tables: readonly Table[]): Completions["schema"] => {
  const schema: Record<string, Record<string, { label: string; type: string; detail: string }[]>> = {};
  for (const table of tables) {
    schema[table.schema] ??= {};
    const columns = (table.columns ?? []).map(({ name, type }) => ({
      label: name,
      type: "property",
      detail: type,
      apply: quoteName(name),
    }));
    (schema[table.schema] as Record<string, unknown>)[table.name] = columns;
  }
  return schema;
};

const loadFunctions = async (database: string): Promise<string[]> => {
  const answer = await run({ sql: FUNCTIONS, params: [] }, { database, maxRows: 3000, readOnly: true });
  return answer.rows.map(([name]) => String(name));
};

export const loadCompletions = async (database: string): Promise<Completions> => {
  const [tables, functions] = await Promise.all([
    listTables(database, "columns"),
    loadFunctions(database).catch(() => []),
  ]);
  return { schema: namesOf(tables), functions };
};
