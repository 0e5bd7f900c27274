/** What the history keeps of a run, and how it says what became of it. */

import type { Outcome } from "../api/data.ts";
import { count, number } from "../app/figures.ts";
import type { Mode, Run } from "./run.ts";

/** How it ended. What is only "sent" had no response when it was kept, and perhaps never gets one. */
export type End = "sent" | "done" | "rehearsed" | "explained" | "failed" | "cancelled";

export interface Ran {
  /** What is kept when it is sent is replaced by what is kept when it ends. Older entries have none. */
  id?: string | undefined;
  at: number;
  sql: string;
  /** How long the SQL was that ran, if it was long: then perhaps only its beginning is kept. */
  length?: number | undefined;
  database: string;
  statements: number;
  end: End;
  /** The error's code, if it failed. */
  code?: string | undefined;
  /** What it did to the data, if it failed or was cancelled, and could change something. */
  effect?: Outcome | undefined;
  /** The key to ask by, if that is unknown. */
  key?: string | undefined;
  rows: number;
  /** How many rows were inserted, changed or deleted. */
  affected: number;
  /** Whether there are more rows than were counted. */
  hasMore: boolean;
  ms: number;
}

/** SQL that is shorter is kept whole in any case. */
export const SHORT_MAX = 20_000;

/** Whether only the beginning of its SQL is kept, which must not be taken for all of it. */
export const isCut = ({ sql, length }: Ran): boolean =>
  // Version 0.61 kept so much of a longer one, and not how long it was.
  length === undefined ? sql.length === SHORT_MAX : sql.length < length;

/** What is said of SQL that is cut. */
export const cutText = ({ sql, length }: Ran): string => {
  const of = length === undefined ? "" : ` of ${number(length)}`;
  return `Only the first ${number(sql.length)}${of} characters were kept, so it can't be opened.`;
};

const ENDS: Record<Mode, End> = {
  statement: "done",
  transaction: "done",
  stream: "done",
  rehearsal: "rehearsed",
  explain: "explained",
};

const total = (numbers: number[]): number => numbers.reduce((sum, each) => sum + each, 0);

/** The entry of a run that has ended. */
export const ranOf = (run: Run, statements: readonly string[]): Ran => {
  const { failed, wasCancelled, results } = run;
  const effect = failed ? failed.error?.outcome : (run.outcome ?? undefined);
  // A plan is no result of the statement.
  const shown = run.mode === "explain" ? [] : results.filter(({ columns }) => columns.length);
  return {
    ...beginningOf(run, statements),
    end: wasCancelled ? "cancelled" : failed ? "failed" : ENDS[run.mode],
    code: failed?.error?.code,
    effect,
    key: effect === "unknown" ? (failed?.error?.idempotencyKey ?? run.idempotencyKey) : undefined,
    rows: total(shown.map(({ rows }) => rows.count)),
    affected: total(results.map(({ affectedRows }) => affectedRows)),
    hasMore: shown.some(({ truncated, stream }) => truncated || stream?.state.kind === "stopped"),
    ms: (run.endedAt ?? run.startedAt) - run.startedAt,
  };
};

const beginningOf = ({ entry, database }: Run, statements: readonly string[]) => ({
  id: entry,
  at: Date.now(),
  sql: statements.join(";\n"),
  database,
  statements: statements.length,
});

/** What is kept of a write before it is sent: all that is left of it if the page goes away before the response. */
export const sentOf = (run: Run, statements: readonly string[]): Ran => ({
  ...beginningOf(run, statements),
  end: "sent",
  effect: "unknown",
  key: run.idempotencyKey,
  rows: 0,
  affected: 0,
  hasMore: false,
  ms: 0,
});

// Those with which a response is lost on its way.
const LOST = new Set(["network_error", "connection_lost", "stream_broken"]);

const EFFECTS: Record<Outcome, string> = {
  committed: "but committed",
  rolled_back: "rolled back",
  not_executed: "not executed",
  unknown: "",
};

const figuresOf = ({ statements, rows, affected, hasMore }: Ran): string[] => [
  ...(statements > 1 ? [count(statements, "statement")] : []),
  // What has no rows to show may have changed some.
  ...(rows || !affected ? [count(rows, "row") + (hasMore ? " and more" : "")] : []),
  ...(affected ? [`${count(affected, "row")} affected`] : []),
];

/** What became of it, such as "Done, 3 rows". */
export const wordsOf = (ran: Ran): string => {
  const { end, code, effect, rows } = ran;
  if (end === "done") return ["Done", ...figuresOf(ran)].join(", ");
  if (end === "rehearsed") return ["Rehearsed and rolled back", ...figuresOf(ran)].join(", ");
  if (end === "explained") return "Explained and rolled back";
  if (effect === "unknown") return `Outcome unknown: ${reasonOf(ran)}`;
  const began = { sent: "No response", cancelled: "Cancelled", failed: `Failed${code ? `: ${code}` : ""}` }[end];
  return [began, ...(effect ? [EFFECTS[effect]] : []), ...(rows ? [`after ${count(rows, "row")}`] : [])].join(", ");
};

const reasonOf = ({ end, code = "" }: Ran): string => {
  if (end === "cancelled") return "cancelled";
  if (end === "sent") return "no response";
  return LOST.has(code) ? "connection lost" : code;
};

export const isGood = ({ end, effect }: Ran): boolean =>
  end === "done" || (end === "sent" && effect === "committed") || end === "rehearsed" || end === "explained";
