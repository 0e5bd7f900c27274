/** The statement that creates a table, and to which field of the form an error belongs. */

import { PlainSQLError } from "plainsql";
import { quoteName } from "../results/formats.ts";

export interface NewColumn {
  name: string;
  type: string;
  isNotNull: boolean;
  /** An SQL expression, or `generated …` as PostgreSQL has it. */
  default: string;
  isKey: boolean;
}

export interface NewTable {
  schema: string;
  name: string;
  columns: readonly NewColumn[];
}

export const DEFAULTS = [
  "generated always as identity",
  "now()",
  "current_date",
  "gen_random_uuid()",
  "0",
  "''",
  "true",
  "false",
  "'{}'",
] as const;

/** A field of the form: the table's name, its schema, or a part of a column. */
export type FieldName = "schema" | "name" | `${number}.${"name" | "type" | "default"}`;

/** Where a field is in the statement, in UTF-16 units. */
interface Place {
  field: FieldName;
  from: number;
  to: number;
}

export interface Created {
  sql: string;
  places: readonly Place[];
}

export const createStatement = ({ schema, name, columns }: NewTable): Created => {
  const places: Place[] = [];
  let sql = "";
  const add = (text: string, field?: FieldName) => {
    if (field) places.push({ field, from: sql.length, to: sql.length + text.length });
    sql += text;
  };
  add("create table ");
  add(quoteName(schema), "schema");
  add(".");
  add(quoteName(name), "name");
  add(" (");
  columns.forEach((column, i) => {
    add(i ? ",\n  " : "\n  ");
    add(quoteName(column.name), `${i}.name`);
    add(" ");
    add(column.type.trim(), `${i}.type`);
    if (column.isNotNull && !column.isKey) add(" not null");
    const value = column.default.trim();
    if (!value) return;
    add(/^generated\b/i.test(value) ? " " : " default ");
    add(value, `${i}.default`);
  });
  const key = columns.filter(({ isKey }) => isKey).map((column) => quoteName(column.name));
  if (key.length) add(`,\n  primary key (${key.join(", ")})`);
  add("\n)");
  return { sql, places };
};

export type Faults = Partial<Record<FieldName, string>>;

/** What can be seen without asking the service. */
export const faultsOf = ({ schema, name, columns }: NewTable): Faults => {
  const faults: Faults = {};
  if (!schema) faults.schema = "The schema needs a name.";
  if (!name) faults.name = "The table needs a name.";
  columns.forEach((column, i) => {
    if (!column.name) faults[`${i}.name`] = "The column needs a name.";
    else if (columns.findIndex((other) => other.name === column.name) < i) {
      faults[`${i}.name`] = `There are two columns ${column.name}.`;
    }
    if (!column.type.trim()) faults[`${i}.type`] = "The column needs a type.";
  });
  return faults;
};

const SCHEMA = new Set(["3F000"]);
const TABLE = new Set(["42P07", "42710"]);

/** The field that an error of the service is about; undefined if it is about none. */
export const fieldOf = (error: unknown, created: Created, { columns }: NewTable): FieldName | undefined => {
  if (!(error instanceof PlainSQLError)) return undefined;
  if (SCHEMA.has(error.sqlstate ?? "")) return "schema";
  if (TABLE.has(error.sqlstate ?? "")) return "name";
  if (error.position !== undefined) {
    const at = [...created.sql].slice(0, error.position - 1).join("").length;
    // What can't be read often begins after the field that is wrong.
    return created.places.findLast(({ from }) => from <= at)?.field;
  }
  // A default that doesn't fit its type has no position, but names the column.
  const column = error.column ?? /column "(.+?)" /.exec(error.message)?.[1];
  const index = columns.findIndex(({ name }) => name === column);
  if (index < 0) return undefined;
  return columns[index]?.default ? `${index}.default` : `${index}.type`;
};
