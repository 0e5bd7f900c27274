/** The statements with which a table is read and changed. Values are parameters; names are quoted. */

import type { Row, Statement, TransactionStatement, Value } from "../api/data.ts";
import { isJson } from "../api/exact.ts";
import { tokens } from "../editor/statements.ts";
import { elementsOf, literal, qualified, quoteName } from "../results/formats.ts";

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
  /** A table or a view, of which kind. */
  kind?: Kind;
}

export type Kind = "table" | "partitioned_table" | "view" | "materialized_view" | "foreign_table";

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

// What tells rows without a key apart. A view has nothing of the kind.
const PLACES: Partial<Record<Kind, string[]>> = {
  table: ["ctid"],
  materialized_view: ["ctid"],
  partitioned_table: ["tableoid", "ctid"],
};

/** What makes an order complete: otherwise a page that begins after a number of rows could repeat some and miss others. */
const tieBreakersOf = (source: Source, sort: Sort | null): string[] => {
  const key = keyOf(source).filter(({ name }) => name !== sort?.column);
  return keyOf(source).length ? key.map(({ name }) => quoteName(name)) : (PLACES[source.kind ?? "view"] ?? []);
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
    ? order.map(({ name }) => quoteName(name) + direction)
    : [...(sort ? [quoteName(sort.column) + direction] : []), ...tieBreakersOf(source, sort)];
  const parts = [
    `select ${source.columns.map(({ name }) => quoteName(name)).join(", ") || "*"}`,
    `from ${qualified(source)}`,
    ...(conditions.length ? [`where ${conditions.join(" and ")}`] : []),
    ...(by.length ? [`order by ${by.join(", ")}`] : []),
    `limit ${PAGE_ROWS + 1}`,
    ...(from.kind === "offset" ? [`offset ${from.rows}`] : []),
  ];
  return { sql: parts.join("\n"), params };
};

/** New values by the names of columns, which may be any names: `constructor`, too. */
export type Changed = ReadonlyMap<string, Value>;

export interface Edits {
  updates: { row: Row; changed: Changed }[];
  deletes: Row[];
  inserts: Changed[];
}

// Types whose `=` holds for a value and what was read of it, by their names in results.
const EQUAL = new Set(
  (
    "bool int2 int4 int8 oid numeric float4 float8 text varchar bpchar char name date timestamp timestamptz time timetz" +
    " uuid bytea inet cidr macaddr macaddr8 bit varbit"
  ).split(" "),
);

/**
 * The condition that a cell is still what was read. Values are compared where `=` can't fail for them, and what was read
 * is compared elsewhere: it is PostgreSQL's own text, as `format` makes it, but for arrays. In an array, nothing says
 * whether a null is JSON's, so those of JSON are not compared, nor those of types that may have no `=`.
 */
const sameOf = (column: Column, type: string, value: Value, params: unknown[]): string | undefined => {
  const name = quoteName(column.name);
  // In a response, null is JSON's, too.
  if (value === null) return /^jsonb?$/.test(type) ? `coalesce(${name}::text, 'null') = 'null'` : `${name} is null`;
  const isArray = type.endsWith("[]");
  if (EQUAL.has(isArray ? type.slice(0, -2) : type)) return `${name} = $${params.push(value)}`;
  if (isArray) return undefined;
  // The service makes spaces of line breaks, and drops those around it.
  if (type === "json") return `btrim(translate(${name}::text, E'\\n\\r', '  '), E' \\t') = $${params.push(value)}`;
  return `${type === "jsonb" ? `${name}::text` : `format('%s', ${name})`} = $${params.push(value)}`;
};

/** What makes it the row that was read, with its cells of these columns. */
const whereOf = (
  { columns, types }: Described,
  row: Row,
  params: unknown[],
  isCompared: (name: string) => boolean,
): string => {
  const key = columns.flatMap(({ name, type, primary_key }, at) =>
    primary_key ? [`${quoteName(name)} = ${placeOf(params.push(row[at]), type)}`] : [],
  );
  const same = columns.flatMap((column, at) => {
    if (column.primary_key || !isCompared(column.name)) return [];
    return sameOf(column, types[at] ?? "", row[at] ?? null, params) ?? [];
  });
  return [...key, ...same].join(" and ");
};

/** A table, and the types of its columns as a result names them: a domain is its base type there. */
export type Described = Source & { types: readonly string[] };

/** One statement for each edit, each of which must change one row: otherwise none of them takes effect. */
export const statementsFor = (source: Described, { updates, deletes, inserts }: Edits): TransactionStatement[] => {
  const table = qualified(source);
  const expect = { affectedRows: 1 };
  const typeOf = (name: string) => source.columns.find((column) => column.name === name)?.type ?? "";
  return [
    ...deletes.map((row) => {
      const params: unknown[] = [];
      return { sql: `delete from ${table} where ${whereOf(source, row, params, () => true)}`, params, expect };
    }),
    ...updates.map(({ row, changed }) => {
      const params: unknown[] = [];
      const set = [...changed]
        .map(([name, value]) => `${quoteName(name)} = ${placeOf(params.push(value), typeOf(name))}`)
        .join(", ");
      const where = whereOf(source, row, params, (name) => changed.has(name));
      return { sql: `update ${table} set ${set} where ${where}`, params, expect };
    }),
    ...inserts.map((changed) => {
      const names = [...changed.keys()];
      if (names.length === 0) return { sql: `insert into ${table} default values`, params: [], expect };
      const values = names.map((name, i) => placeOf(i + 1, typeOf(name))).join(", ");
      const sql = `insert into ${table} (${names.map(quoteName).join(", ")}) values (${values})`;
      return { sql, params: [...changed.values()], expect };
    }),
  ];
};

/** A statement for people to read: with its values in their places. It is not sent like this. */
export const readable = ({ sql, params }: Statement): string =>
  tokens(sql)
    .map(({ kind, from, to }) => {
      const text = sql.slice(from, to);
      // In a name or a string, it is no parameter.
      if (kind !== "param") return text;
      const value = params[Number(text.slice(1)) - 1];
      return literal(value, Array.isArray(value) ? "text[]" : "text");
    })
    .join("");

/** What to send for a text that was typed into a column. Throws if it must be JSON and isn't. */
export const typedValue = (text: string, type: string): Value => {
  if (!isJson(type) && !(type.endsWith("[]") && text.startsWith("["))) return text;
  const value = JSON.parse(text) as Value;
  if (!isJson(type)) return value;
  return type.endsWith("[]") ? elementsOf(text) : text;
};
