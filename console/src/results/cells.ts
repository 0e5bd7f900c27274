/** How values are shown, and how wide their columns are. All of it is text: nothing of a value is ever HTML. */

import type { Row, Value } from "../api/data.ts";

const NUMBERS = new Set(["int2", "int4", "int8", "numeric", "float4", "float8", "oid", "money"]);

export const isNumeric = (type: string | undefined): boolean => NUMBERS.has(type ?? "");

/** In place of a value that a new row does not give: its column's default, which PostgreSQL decides. */
export const DEFAULT = Symbol("DEFAULT");

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));
// A cell shows one line of it.
const SHOWN_MAX = 300;

/** Bytes as PostgreSQL writes them. The npm client returns bytes, a stream base64. */
const bytesText = (value: unknown): string => {
  const bytes =
    value instanceof Uint8Array ? value : Uint8Array.from(atob(String(value)), (each) => each.charCodeAt(0));
  let text = "\\x";
  for (const byte of bytes) text += HEX[byte];
  return text;
};

/** An array of bytes, as deep as it is. */
export const bytesIn = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(bytesIn);
  return value === null ? null : bytesText(value);
};

/** A value as text, whole. */
export const textOfValue = (value: Value, type: string | undefined): string => {
  if (value === null || value === undefined) return "";
  if (value === DEFAULT) return "DEFAULT";
  if (type === "bytea") return bytesText(value);
  if (type === "bytea[]") return JSON.stringify(bytesIn(value));
  if (typeof value === "string") return value;
  if (value instanceof Uint8Array) return bytesText(value);
  return JSON.stringify(value);
};

/** What a cell shows: one line, not too long. */
export const cellText = (value: Value, type: string | undefined): string => {
  // Of a value that is large, only what is shown is made.
  const part = typeof value === "string" || value instanceof Uint8Array ? value.slice(0, SHOWN_MAX + 4) : value;
  const text = textOfValue(part, type);
  const short = text.length > SHOWN_MAX ? `${text.slice(0, SHOWN_MAX)}…` : text;
  return short.replaceAll(/\r\n|\r|\n/g, "↵").replaceAll("\t", "⇥");
};

const CHARACTER_PX = 7.4;
const PADDING_PX = 22;
const MIN_PX = 56;
const MAX_PX = 380;

/** Widths that fit the names and the first rows. */
export const widthsOf = (columns: readonly string[], types: readonly string[], rows: readonly Row[]): number[] =>
  columns.map((name, index) => {
    const type = types[index];
    // Its name and its type stand in the head, in letters that are a little narrower.
    let longest = name.length * 1.05 + (type ?? "").length * 0.9 + 1;
    for (const row of rows) longest = Math.max(longest, cellText(row[index], type).length);
    return Math.round(Math.min(MAX_PX, Math.max(MIN_PX, longest * CHARACTER_PX + PADDING_PX)));
  });
