/** The tables and functions that the command palette finds, and what opens them. */

import { listTables, missingTables, run, type Table } from "../api/data.ts";
import { textOf } from "../api/requests.ts";
import { current } from "../api/session.ts";
import { go } from "../app/place.ts";
import { idOf, labelOf } from "../app/relations.ts";
import { toast } from "../app/toast.tsx";
import { draftsOf } from "../editor/drafts.ts";
import { quoteName } from "../results/formats.ts";
import type { Command } from "./matching.ts";

// More would make the search slow.
const FUNCTIONS_MAX = 2_000;

// Aggregates have no text. What an extension has made is not anyone's own.
const FUNCTIONS =
  "select p.oid::text, n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)" +
  " from pg_proc p join pg_namespace n on n.oid = p.pronamespace" +
  " where p.prokind in ('f', 'p', 'w') and n.nspname not in ('pg_catalog', 'information_schema', 'plainsql')" +
  " and n.nspname not like 'pg\\_%' and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass" +
  ` and d.objid = p.oid and d.deptype = 'e') order by 2, 3, 4 limit ${FUNCTIONS_MAX}`;

const tableCommand = (table: Table): Command => ({
  name: labelOf(table),
  hint: table.kind.replaceAll("_", " "),
  act: () => go("tables", idOf(table)),
});

/** Opens the text of a function in a new tab of the editor. */
const openFunction = async (database: string, oid: string, title: string): Promise<void> => {
  try {
    const statement = { sql: "select pg_get_functiondef($1::oid)", params: [oid] };
    const { rows } = await run(statement, { database, maxRows: 1, readOnly: true });
    draftsOf(current().organization.id).add(String(rows[0]?.[0] ?? ""), title);
    go("query");
  } catch (error) {
    toast(textOf(error), "danger");
  }
};

export interface Found {
  commands: Command[];
  /** What is missing from them. */
  missing: string | undefined;
}

/** Asks for them each time: someone else may have made others. */
export const find = async (database: string): Promise<Found> => {
  const options = { database, maxRows: FUNCTIONS_MAX, readOnly: true };
  const [tables, functions] = await Promise.all([
    listTables(database, "names"),
    run({ sql: FUNCTIONS, params: [] }, options),
  ]);
  const functionCommands = functions.rows.map(([oid, schema, name, parameters]) => ({
    name: `${labelOf({ schema: String(schema), name: String(name) })}(${parameters})`,
    hint: "function",
    act: () => void openFunction(database, String(oid), quoteName(String(name))),
  }));
  return { commands: [...tables.map(tableCommand), ...functionCommands], missing: missingTables(tables) };
};
