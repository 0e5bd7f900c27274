/** Where the rows of a result are: here, or in the worker that receives them. */

import type { Row, Value } from "../api/data.ts";

/** Rows by number. A row that has not been loaded is undefined; followers are called when it is. */
export interface Rows {
  readonly count: number;
  at: (index: number) => Row | undefined;
  follow: (listener: () => void) => () => void;
  /** Rows from `start` up to `end`, wherever they are. */
  read: (start: number, end: number) => Promise<Row[]>;
  /** Forgets them. */
  close: () => void;
}

export const rowsInMemory = (rows: Row[]): Rows => ({
  count: rows.length,
  at: (index) => rows[index],
  follow: () => () => undefined,
  read: async (start, end) => rows.slice(start, end),
  close: () => undefined,
});

/** What is copied or drawn is in the page's memory as a whole. A file has no such limit. */
export const TAKEN_BYTES_MAX = 16_000_000;

// So few that those of a part fit into memory, however large they are.
const PART_ROWS = 50;

/** About how many bytes a value has as text. */
const bytesOf = (value: Value): number => {
  if (value === null || value === undefined) return 1;
  if (typeof value === "string" || value instanceof Uint8Array) return value.length;
  return Array.isArray(value) ? value.reduce((sum: number, each) => sum + bytesOf(each), 2) : 8;
};

/** The first rows that are not more than so many, and whose values have not more bytes. At least one, if there is one. */
export const firstRows = async (rows: Rows, rowsMax: number, bytesMax: number): Promise<Row[]> => {
  const taken: Row[] = [];
  const wanted = Math.min(rows.count, rowsMax);
  let bytes = 0;
  while (taken.length < wanted) {
    const part = await rows.read(taken.length, Math.min(wanted, taken.length + PART_ROWS));
    if (part.length === 0) break;
    for (const row of part) {
      bytes += row.reduce((sum: number, value) => sum + bytesOf(value), 0);
      if (bytes > bytesMax && taken.length > 0) return taken;
      taken.push(row);
    }
  }
  return taken;
};
