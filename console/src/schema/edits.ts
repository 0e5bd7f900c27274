/**
 * Changes of rows that are not saved yet. They are held by the row as it was read, never by its place in the list: what
 * is shown may change while they wait.
 */

import type { Row, Value } from "../api/data.ts";
import { DEFAULT } from "../results/cells.ts";
import type { Changed, Edits } from "./statements.ts";

export interface Pending {
  updates: ReadonlyMap<Row, Changed>;
  deletes: ReadonlySet<Row>;
  inserts: readonly Changed[];
}

export const NONE: Pending = { updates: new Map(), deletes: new Set(), inserts: [] };

export const withUpdate = (pending: Pending, row: Row, column: string, value: Value): Pending => ({
  ...pending,
  updates: new Map(pending.updates).set(row, new Map(pending.updates.get(row)).set(column, value)),
});

export const withInsert = (pending: Pending, row: Changed): Pending => ({
  ...pending,
  inserts: [...pending.inserts, row],
});

export const withoutInsert = (pending: Pending, index: number): Pending => ({
  ...pending,
  inserts: pending.inserts.filter((_, i) => i !== index),
});

/** Deletes the row, or keeps it if it was to be deleted. */
export const toggledDelete = (pending: Pending, row: Row): Pending => {
  const deletes = new Set(pending.deletes);
  if (!deletes.delete(row)) deletes.add(row);
  return { ...pending, deletes };
};

/** What is to be saved. Of a row that is deleted, no cell is changed: two statements for one row would fail. */
export const editsOf = ({ updates, deletes, inserts }: Pending): Edits => ({
  updates: [...updates].filter(([row]) => !deletes.has(row)).map(([row, changed]) => ({ row, changed })),
  deletes: [...deletes],
  inserts: [...inserts],
});

export const countOf = (edits: Edits): number => edits.updates.length + edits.deletes.length + edits.inserts.length;

/** The value of a cell, as it was changed or read. */
export const shownValue = ({ updates }: Pending, row: Row, name: string, at: number): Value => {
  const change = updates.get(row);
  return (change?.has(name) ? change.get(name) : row[at]) ?? null;
};

/** The rows as they would be, and after them the new ones, of which PostgreSQL decides what was not given. */
export const shownOf = (rows: readonly Row[], pending: Pending, names: readonly string[]): Row[] => [
  ...rows.map((row) => names.map((name, at) => shownValue(pending, row, name, at))),
  ...pending.inserts.map((each) => names.map((name) => (each.has(name) ? each.get(name) : DEFAULT))),
];
