/** A run of statements in a tab, and its results. `running.ts` makes them, and the page shows them. */

import type { PlainSQLError } from "plainsql";
import type { Notice, Outcome } from "../api/data.ts";
import type { Rows } from "../results/rows.ts";
import type { StreamedRows } from "../results/stream.ts";

export type Mode = "statement" | "transaction" | "stream" | "rehearsal" | "explain";

/** The result of one statement. */
export interface Shown {
  key: string;
  sql: string;
  params: unknown[];
  columns: string[];
  types: string[];
  rows: Rows;
  command: string;
  affectedRows: number;
  /** Whether there are more rows than are shown. */
  truncated: boolean;
  notices: Notice[];
  execUs: number;
  requestId: string;
  isReplayed: boolean;
  stream?: StreamedRows;
}

export interface Failed {
  message: string;
  error?: PlainSQLError;
  /** Where the error is in the tab's text. */
  offset?: number;
  sql: string;
}

export interface Run {
  id: number;
  /** What the history knows it by. */
  entry: string;
  /** The tab's text when it began. */
  text: string;
  mode: Mode;
  database: string;
  startedAt: number;
  endedAt: number | null;
  results: Shown[];
  failed: Failed | null;
  wasCancelled: boolean;
  /** Whether it was cancelled, and the service is asked what became of it. */
  isEnding: boolean;
  /** What became of a run that was cancelled; null if it could not change anything. */
  outcome: Outcome | null;
  /** The key of the write, by which the service knows it. */
  idempotencyKey: string | undefined;
  attempts: number;
  /** Those of a transaction that belong to none of its statements, such as those of deferred triggers. */
  notices: Notice[];
  abort: () => void;
}
