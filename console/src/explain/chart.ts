/** Finds out what of a result can be drawn, and computes what is drawn. */

import type { Row } from "../api/data.ts";
import { cellText, isNumeric } from "../results/cells.ts";

export type Kind = "line" | "bar" | "scatter" | "histogram";

export const KINDS: readonly Kind[] = ["line", "bar", "scatter", "histogram"];

const TIMES = new Set(["date", "timestamp", "timestamptz"]);

export const isTime = (type: string | undefined): boolean => TIMES.has(type ?? "");

/** Numbers to draw: of a time, seconds; of a text, its place. */
export const valuesOf = (rows: readonly Row[], column: number, type: string | undefined): (number | null)[] =>
  rows.map((row, place) => {
    const value = row[column];
    if (value === null || value === undefined) return null;
    if (isNumeric(type)) return Number.isFinite(Number(value)) ? Number(value) : null;
    if (!isTime(type)) return place;
    const ms = Date.parse(/[Zz]|[+-]\d\d:?\d\d$/.test(String(value)) || type === "date" ? String(value) : `${value}Z`);
    return Number.isNaN(ms) ? null : ms / 1000;
  });

export interface Guess {
  kind: Kind;
  x: number;
  ys: number[];
}

const SERIES_MAX = 6;

/** The first time or text is x, and numbers are y. Undefined if there is no number. */
export const guess = (types: readonly string[]): Guess | undefined => {
  const numbers = types.flatMap((type, i) => (isNumeric(type) ? [i] : []));
  if (numbers.length === 0) return undefined;
  const time = types.findIndex(isTime);
  if (time >= 0) return { kind: "line", x: time, ys: numbers.slice(0, SERIES_MAX) };
  const text = types.findIndex((type) => !isNumeric(type));
  if (text >= 0) return { kind: "bar", x: text, ys: numbers.slice(0, SERIES_MAX) };
  if (numbers.length === 1) return { kind: "histogram", x: numbers[0] as number, ys: numbers };
  return { kind: "line", x: numbers[0] as number, ys: numbers.slice(1, SERIES_MAX + 1) };
};

/** How many values there are in each of equally wide parts: the middle of each part, and the number. */
export const histogram = (values: readonly (number | null)[], parts = 30): { xs: number[]; counts: number[] } => {
  const all = values.filter((value) => value !== null);
  if (all.length === 0) return { xs: [], counts: [] };
  const low = all.reduce((a, b) => Math.min(a, b));
  const high = all.reduce((a, b) => Math.max(a, b));
  const width = (high - low) / parts || 1;
  const counts = Array.from({ length: high === low ? 1 : parts }, () => 0);
  for (const value of all) {
    const part = Math.min(counts.length - 1, Math.floor((value - low) / width));
    counts[part] = (counts[part] ?? 0) + 1;
  }
  return { xs: counts.map((_, i) => low + (i + 0.5) * width), counts };
};

const figure = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

const rangeOf = (values: readonly number[]): string => {
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  return low === high ? `all ${figure.format(low)}` : `from ${figure.format(low)} to ${figure.format(high)}`;
};

/** What a chart shows, in words, for those who don't see it. */
export const summaryOf = (
  rows: readonly Row[],
  columns: readonly string[],
  types: readonly string[],
  { kind, x, ys }: Guess,
): string => {
  const series = ys.map((column) => {
    const values = valuesOf(rows, column, types[column]).filter((value) => value !== null);
    const range = values.length ? `, ${rangeOf(values)}` : "";
    return `${columns[column]}: ${values.length} ${values.length === 1 ? "value" : "values"}${range}.`;
  });
  const ends = [rows[0], rows.at(-1)].map((row) => cellText(row?.[x] ?? null, types[x]));
  const by =
    kind === "histogram" || rows.length === 0
      ? []
      : [`By ${columns[x]}, ${ends[0]} in the first row and ${ends[1]} in the last.`];
  return [...series, ...by].join(" ");
};
