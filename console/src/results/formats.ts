/** Results as CSV, JSON, Markdown and INSERT statements. */

import type { Row, Value } from "../api/data.ts";
import { isJson, partsOf } from "../api/exact.ts";
import { bytesIn, isNumeric, textOfValue } from "./cells.ts";

export type Format = "CSV" | "CSV for spreadsheets" | "JSON" | "Markdown" | "INSERT";

export const FORMATS: readonly Format[] = ["CSV", "CSV for spreadsheets", "JSON", "Markdown", "INSERT"];

export const EXTENSIONS: Record<Format, string> = {
  CSV: "csv",
  "CSV for spreadsheets": "csv",
  JSON: "json",
  Markdown: "md",
  INSERT: "sql",
};

export interface Shape {
  columns: readonly string[];
  types: readonly string[];
  /** Whose rows they are, for INSERT: its name, after its schema's if that is known. */
  table: readonly string[];
}

/** What writes a result, part by part. */
export interface Writer {
  head: string;
  rows: (rows: readonly Row[], isFirst: boolean) => string;
  tail: string;
}

// What a spreadsheet takes for a formula, unless there is an apostrophe before it.
const FORMULA = /^[=+\-@\t\r\n]/;

const withoutFormula = (text: string, type: string | undefined): string =>
  FORMULA.test(text) && !isNumeric(type) ? `'${text}` : text;

const csvField = (value: Value, type: string | undefined, isSafe: boolean): string => {
  if (value === null || value === undefined) return "";
  const whole = textOfValue(value, type);
  const text = isSafe ? withoutFormula(whole, type) : whole;
  // An empty text is quoted, and NULL is not, as in PostgreSQL's own CSV.
  return text === "" || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

const csv = ({ columns, types }: Shape, isSafe = false): Writer => {
  const line = (values: readonly Value[], typesOf: readonly string[]) =>
    `${values.map((value, i) => csvField(value, typesOf[i], isSafe)).join(",")}\r\n`;
  return { head: line(columns, []), rows: (rows) => rows.map((row) => line(row, types)).join(""), tail: "" };
};

/** Names that occur twice get a number, as in the service's own objects. */
export const distinct = (columns: readonly string[]): string[] => {
  const seen = new Map<string, number>();
  return columns.map((name) => {
    const before = seen.get(name) ?? 0;
    seen.set(name, before + 1);
    return before ? `${name}_${before}` : name;
  });
};

const plain = (value: Value, type: string | undefined): string => {
  if (value === null || value === undefined) return "null";
  if (type === "bytea") return JSON.stringify(textOfValue(value, type));
  if (type === "bytea[]") return textOfValue(value, type);
  if (isJson(type) && typeof value === "string") return value;
  // They come as text, with every digit, and JSON's numbers have as many digits as they like.
  if (isNumeric(type) && typeof value === "string" && /^-?\d+(\.\d+)?$/.test(value)) return value;
  return JSON.stringify(value);
};

const json = ({ columns, types }: Shape): Writer => {
  const names = distinct(columns).map((name) => JSON.stringify(name));
  const object = (row: Row) => `  {${row.map((value, i) => `${names[i]}: ${plain(value, types[i])}`).join(", ")}}`;
  return {
    head: "[\n",
    rows: (rows, isFirst) => rows.map((row, i) => (isFirst && i === 0 ? "" : ",\n") + object(row)).join(""),
    tail: "\n]\n",
  };
};

const markdownCell = (value: Value, type: string | undefined): string =>
  textOfValue(value, type)
    .replaceAll(/[\\`*_{}[\]<>|#]/g, "\\$&")
    .replaceAll(/\r\n|\r|\n/g, "<br>");

const markdown = ({ columns, types }: Shape): Writer => ({
  head: [
    `| ${columns.map((name) => markdownCell(name, "text")).join(" | ")} |`,
    `|${types.map((type) => (isNumeric(type) ? "---:" : "---")).join("|")}|`,
    "",
  ].join("\n"),
  rows: (rows) =>
    rows.map((row) => `| ${row.map((value, i) => markdownCell(value, types[i])).join(" | ")} |\n`).join(""),
  tail: "",
});

export const quoteName = (name: string): string =>
  /^[a-z_][a-z0-9_]*$/.test(name) && !RESERVED.has(name) ? name : `"${name.replaceAll('"', '""')}"`;

export const qualified = ({ schema, name }: { schema: string; name: string }): string =>
  `${quoteName(schema)}.${quoteName(name)}`;

// Those that occur as names of columns.
const RESERVED = new Set(
  (
    "all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation" +
    " column concurrently constraint create cross current_catalog current_date current_role current_schema current_time" +
    " current_timestamp current_user freeze full ilike inner is isnull join lateral left like localtime localtimestamp" +
    " natural notnull outer overlaps right similar tablesample verbose" +
    " default desc distinct do else end except false fetch for foreign from grant group having in initially intersect" +
    " into leading limit not null offset on only or order placing primary references returning select session_user some" +
    " symmetric table then to trailing true union unique user using variadic when where window with"
  ).split(" "),
);

const quoteText = (text: string): string =>
  text.includes("\\") ? `E'${text.replaceAll("\\", "\\\\").replaceAll("'", "''")}'` : `'${text.replaceAll("'", "''")}'`;

const arrayText = (value: unknown[]): string => {
  const part = (each: unknown): string => {
    if (each === null) return "NULL";
    if (Array.isArray(each)) return arrayText(each);
    const text = typeof each === "object" ? JSON.stringify(each) : String(each);
    return `"${text.replaceAll(/["\\]/g, "\\$&")}"`;
  };
  return `{${value.map(part).join(",")}}`;
};

const jsonText = (value: Value, type: string | undefined): string => {
  if (typeof value !== "string") return JSON.stringify(value);
  return type?.endsWith("[]") ? arrayText(elementsOf(value)) : value;
};

/** The elements of an array of JSON values. */
export const elementsOf = (json: string): (string | null)[] =>
  partsOf(json).map((each) => (each === "null" ? null : each));

/** A value as an SQL literal. */
export const literal = (value: Value, type: string | undefined): string => {
  if (value === null || value === undefined) return "NULL";
  if (isJson(type)) return quoteText(jsonText(value, type));
  if (typeof value === "boolean") return String(value);
  if (isNumeric(type) && /^-?\d+(\.\d+)?$/.test(String(value))) return String(value);
  if (Array.isArray(value) && type?.endsWith("[]")) {
    return quoteText(arrayText(type === "bytea[]" ? (bytesIn(value) as unknown[]) : value));
  }
  return quoteText(textOfValue(value, type));
};

const insert = ({ columns, types, table }: Shape): Writer => {
  const start = `INSERT INTO ${table.map(quoteName).join(".")} (${columns.map(quoteName).join(", ")}) VALUES`;
  const values = (row: Row) => `  (${row.map((value, i) => literal(value, types[i])).join(", ")})`;
  return {
    head: "",
    rows: (rows) => (rows.length ? `${start}\n${rows.map(values).join(",\n")};\n` : ""),
    tail: "",
  };
};

const WRITERS: Record<Format, (shape: Shape) => Writer> = {
  CSV: csv,
  "CSV for spreadsheets": (shape) => csv(shape, true),
  JSON: json,
  Markdown: markdown,
  INSERT: insert,
};

export const writerOf = (format: Format, shape: Shape): Writer => WRITERS[format](shape);

/** Rows in a format, at once. */
export const written = (format: Format, shape: Shape, rows: readonly Row[]): string => {
  const writer = writerOf(format, shape);
  return writer.head + writer.rows(rows, true) + writer.tail;
};
