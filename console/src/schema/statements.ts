/** The statements with which a table is read and changed. Values are parameters; names are quoted. */

import type { Row, Statement, TransactionStatement, Value } from "../api/data.ts";
import { isJson } from "../api/exact.ts";
import { elementsOf, literal, quoteName } from "../results/formats.ts";

export interface Column {
  name: string;
  type: string;
  nullable: boolean;
  default: string | null;
  primary_key: boolean;
  generated?: string | null;
  identity?: string | null;
}

export interface Source {
  schema: string;
  name: string;
  columns: Column[];
}

export const OPERATORS = [
  "=",
  "<>",
  "<",
  "<=",
  ">",
  ">=",
  "contains",
  "begins with",
  "is null",
  "is not null",
] as const;
export type Operator = (typeof OPERATORS)[number];

export interface Filter {
  column: string;
  operator: Operator;
  value: string;
}

export interface Sort {
  column: string;
  isDescending: boolean;
}

export interface View {
  filters: readonly Filter[];
  sort: Sort | null;
}

/** Where a page begins: after a row, or after a number of rows where no key leads on. */
export type From = { kind: "start" } | { kind: "after"; row: Row } | { kind: "offset"; rows: number };

export const PAGE_ROWS = 200;

export const qualified = ({ schema, name }: Pick<Source, "schema" | "name">): string =>
  `${quoteName(schema)}.${quoteName(name)}`;

export const keyOf = (source: Source): Column[] => source.columns.filter((column) => column.primary_key);

/** What a page is ordered by so that the next one can begin after its last row; undefined if nothing is fit for it. */
export const orderOf = (source: Source, sort: Sort | null): Column[] | undefined => {
  const key = keyOf(source);
  if (key.length === 0) return undefined;
  if (!sort) return key;
  const column = source.columns.find(({ name }) => name === sort.column);
  if (!column || column.nullable) return undefined;
  return [column, ...key.filter(({ name }) => name !== column.name)];
};

const conditionOf = ({ column, operator, value }: Filter, params: unknown[]): string => {
  const name = quoteName(column);
  if (operator === "is null" || operator === "is not null") return `${name} ${operator}`;
  const isText = operator === "contains" || operator === "begins with";
  const escaped = value.replaceAll(/[\\%_]/g, "\\$&");
  params.push(isText ? (operator === "contains" ? `%${escaped}%` : `${escaped}%`) : value);
  return isText ? `${name}::text ilike $${params.length}` : `${name} ${operator} $${params.length}`;
};

/** The place of a value. JSON is sent as text, so that its numbers keep their digits. */
const placeOf = (number: number, type: string): string => {
  const isArray = type.endsWith("[]");
  return isJson(type) ? `$${number}::text${isArray ? "[]" : ""}::${type}` : `$${number}`;
};

/** A page of the table, with one row more than is shown, to know whether there is another page. */
export const pageOf = (source: Source, { filters, sort }: View, from: From): Statement => {
  const params: unknown[] = [];
  const conditions = filters.map((filter) => conditionOf(filter, params));
  const order = orderOf(source, sort);
  const direction = sort?.isDescending ? " desc" : "";
  if (from.kind === "after" && order) {
    const values = order.map(({ name, type }) =>
      placeOf(params.push(from.row[source.columns.findIndex((column) => column.name === name)]), type),
    );
    const names = order.map(({ name }) => quoteName(name)).join(", ");
    conditions.push(`(${names}) ${sort?.isDescending ? "<" : ">"} (${values.join(", ")})`);
  }
  const by = order
    ? order.map(({ name }) => quoteName(name) + direction).join(", ")
    : sort && `${quoteName(sort.column)}${direction}`;
  const parts = [
    `select ${source.columns.map(({ name }) => quoteName(name)).join(", ") || "*"}`,
    `from ${qualified(source)}`,
    ...(conditions.length ? [`where ${conditions.join(" and ")}`] : []),
    ...(by ? [`order by ${by}`] : []),
    `limit ${PAGE_ROWS + 1}`,
    ...(from.kind === "offset" ? [`offset ${from.rows}`] : []),
  ];
  return { sql: parts.join("\n"), params };
};

/** New values by the names of columns. */
export type Changed = Record<string, Value>;

export interface Edits {
  updates: { row: Row; changed: Changed }[];
  deletes: Row[];
  inserts: Changed[];
}

// Types whose values compare equal to what was shown. For these, a row that someone else has changed is not overwritten.
const COMPARED = /^(text|character|int|smallint|bigint|numeric|boolean|date|timestamp|uuid|name)/;

const whereOf = (source: Source, row: Row, params: unknown[], compared: readonly string[]): string => {
  const at = (name: string) => row[source.columns.findIndex((column) => column.name === name)];
  const bound = ({ name, type }: Column) => `${quoteName(name)} = ${placeOf(params.push(at(name)), type)}`;
  const key = keyOf(source).map(bound);
  const same = source.columns
    .filter(({ name, type, primary_key }) => compared.includes(name) && !primary_key && COMPARED.test(type))
    .map((column) => (at(column.name) === null ? `${quoteName(column.name)} is null` : bound(column)));
  return [...key, ...same].join(" and ");
};

/** One statement for each edit, each of which must change one row: otherwise none of them takes effect. */
export const statementsFor = (source: Source, { updates, deletes, inserts }: Edits): TransactionStatement[] => {
  const table = qualified(source);
  const expect = { affectedRows: 1 };
  const typeOf = (name: string) => source.columns.find((column) => column.name === name)?.type ?? "";
  return [
    ...deletes.map((row) => {
      const params: unknown[] = [];
      return { sql: `delete from ${table} where ${whereOf(source, row, params, [])}`, params, expect };
    }),
    ...updates.map(({ row, changed }) => {
      const params: unknown[] = [];
      const names = Object.keys(changed);
      const set = names
        .map((name) => `${quoteName(name)} = ${placeOf(params.push(changed[name]), typeOf(name))}`)
        .join(", ");
      const where = whereOf(source, row, params, names);
      return { sql: `update ${table} set ${set} where ${where}`, params, expect };
    }),
    ...inserts.map((changed) => {
      const names = Object.keys(changed);
      if (names.length === 0) return { sql: `insert into ${table} default values`, params: [], expect };
      const values = names.map((name, i) => placeOf(i + 1, typeOf(name))).join(", ");
      const sql = `insert into ${table} (${names.map(quoteName).join(", ")}) values (${values})`;
      return { sql, params: names.map((name) => changed[name]), expect };
    }),
  ];
};

/** A statement for people to read: with its values in their places. It is not sent like this. */
export const readable = ({ sql, params }: Statement): string =>
  sql.replaceAll(/\$(\d+)/g, (_, number: string) => {
    const value = params[Number(number) - 1];
    return literal(value, Array.isArray(value) ? "text[]" : "text");
  });

/** What to send for a text that was typed into a column. Throws if it must be JSON and isn't. */
export const typedValue = (text: string, type: string): Value => {
  if (!isJson(type) && !(type.endsWith("[]") && text.startsWith("["))) return text;
  const value = JSON.parse(text) as Value;
  if (!isJson(type)) return value;
  return type.endsWith("[]") ? elementsOf(text) : text;
};
