/** Where the rows of a result are: here, or in the worker that receives them. */

import type { Row } from "../api/data.ts";

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
