/** Runs what is wanted and keeps the results for the page to show. */

import { PlainSQLError } from "plainsql";
import {
  type Answer,
  newKey,
  type Outcome,
  type RunOptions,
  rehearse,
  run,
  runTransaction,
  type Statement,
} from "../api/data.ts";
import { finalOutcomeOf } from "../api/outcome.ts";
import { textOf, wasAborted } from "../api/requests.ts";
import { session } from "../api/session.ts";
import { store } from "../api/store.ts";
import { rowsInMemory } from "../results/rows.ts";
import { StreamedRows } from "../results/stream.ts";
import { historyOf } from "./history.ts";
import { sentOf } from "./ran.ts";
import type { Failed, Mode, Run, Shown } from "./run.ts";
import { type Found, offsetOf } from "./statements.ts";

export const MAX_ROWS = 1_000;

/** The runs of each tab: the last one. */
export const runs = store<Record<string, Run>>({});

let runCount = 0;

const change = (draft: string, id: number, next: Partial<Run>) =>
  runs.update((all) => {
    const run = all[draft];
    return run?.id === id ? { ...all, [draft]: { ...run, ...next } } : all;
  });

export const forgetRun = (draft: string): void => {
  const run = runs.get()[draft];
  if (!run) return;
  run.abort();
  for (const result of run.results) result.rows.close();
  runs.update(({ [draft]: _, ...others }) => others);
};

export const forgetAllRuns = (): void => {
  for (const draft of Object.keys(runs.get())) forgetRun(draft);
};

const shownOf = (answer: Answer, { sql, params }: Statement, key: string): Shown => ({
  ...answer,
  key,
  sql,
  params,
  rows: rowsInMemory(answer.rows),
});

export interface Wanted {
  draft: string;
  mode: Mode;
  database: string;
  statements: { found: Found; params: unknown[] }[];
  /** The whole text of the tab. */
  text: string;
  /** Whether the service must refuse to change anything. */
  isRead?: boolean;
}

export const isRunning = (draft: string): boolean => runs.get()[draft]?.endedAt === null;

/** Called when a run has ended, for the history. */
export type Ended = (run: Run, wanted: Wanted) => void;

/** Runs it, unless the tab's last run has not ended: the same write must not be sent twice by a key that is held. */
export const start = async (wanted: Wanted, ended: Ended): Promise<Run | undefined> => {
  const { draft, mode } = wanted;
  if (isRunning(draft)) return undefined;
  forgetRun(draft);
  runCount += 1;
  const id = runCount;
  const controller = new AbortController();
  const begun: Run = {
    id,
    entry: newKey(),
    text: wanted.text,
    mode,
    database: wanted.database,
    startedAt: performance.now(),
    endedAt: null,
    results: [],
    failed: null,
    wasCancelled: false,
    isEnding: false,
    outcome: null,
    idempotencyKey: undefined,
    attempts: 1,
    notices: [],
    abort: () => controller.abort(),
  };
  const sent: Sent = { keep: () => keepSent({ ...begun, idempotencyKey: sent.key }, wanted) };
  const sentAt = Date.now();
  runs.update((all) => ({ ...all, [draft]: begun }));
  const finish = (next: Partial<Run>): Run => {
    const done = { ...begun, idempotencyKey: sent.key, ...next, endedAt: performance.now() };
    change(draft, id, done);
    ended(done, wanted);
    return done;
  };
  try {
    if (mode === "stream") {
      if (!wanted.isRead) sent.keep();
      return await startStream(wanted, id, controller.signal, finish);
    }
    return finish(await runAll(wanted, id, controller.signal, sent));
  } catch (error) {
    if (wasAborted(error)) {
      change(draft, id, { isEnding: true });
      return finish({ wasCancelled: true, outcome: await becameOf(sent, wanted.database, sentAt) });
    }
    return finish({ failed: failureOf(error, wanted) });
  }
};

/** What was sent that may change something: the key of a write, or that it had none. */
interface Sent {
  key?: string;
  isUnknown?: boolean;
  /** Called before it is sent. */
  keep: () => void;
}

/** So that a page that goes away before the response leaves an entry with the key to ask by. */
const keepSent = (run: Run, { statements }: Wanted): void => {
  const here = session.get();
  if (!here) return;
  const texts = statements.map(({ found }) => found.sql);
  historyOf(here.organization.id).add(sentOf(run, texts));
};

/** What became of a run that was cancelled before its response. */
const becameOf = async ({ key, isUnknown }: Sent, database: string, sentAt: number): Promise<Outcome | null> => {
  if (!key) return isUnknown ? "unknown" : null;
  return finalOutcomeOf(key, database, sentAt);
};

const hasCode = (error: unknown, code: string): boolean => error instanceof PlainSQLError && error.code === code;

/** The error of what could only read: whatever was lost, there is no doubt about the data. */
const withoutEffect = (error: unknown): unknown => {
  if (error instanceof PlainSQLError && error.outcome === "unknown") error.outcome = undefined;
  return error;
};

const READS = new Set(["select", "values", "table", "with", "show", "explain", "("]);

/** Read-only first if it looks like a read, else with a key, by which it takes effect once. */
const runOne = async (statement: Statement, command: string, options: RunOptions, sent: Sent): Promise<Answer> => {
  if (READS.has(command)) {
    try {
      return await run(statement, { ...options, readOnly: true });
    } catch (error) {
      if (!hasCode(error, "read_only_sql_transaction")) throw withoutEffect(error);
    }
  }
  sent.key = newKey();
  sent.keep();
  try {
    return await run(statement, { ...options, idempotencyKey: sent.key });
  } catch (error) {
    if (!hasCode(error, "active_sql_transaction")) throw error;
  }
  // VACUUM and the like can't run in a transaction, and a key needs one. Nothing was executed.
  delete sent.key;
  sent.isUnknown = true;
  sent.keep();
  return run(statement, options);
};

const runAll = async (
  { mode, database, statements }: Wanted,
  id: number,
  signal: AbortSignal,
  sent: Sent,
): Promise<Partial<Run>> => {
  const options = { database, maxRows: MAX_ROWS, signal };
  const list = statements.map(({ found, params }) => ({ sql: found.sql, params }));
  const [only] = list;
  if (mode === "statement" && only) {
    const answer = await runOne(only, statements[0]?.found.command ?? "", options, sent);
    return { results: [shownOf(answer, only, `${id}.0`)] };
  }
  const show = (answers: Answer[]) => answers.map((each, i) => shownOf(each, list[i] as Statement, `${id}.${i}`));
  if (mode === "explain") return { results: show(await rehearse(list.map(explaining), options)) };
  if (mode === "rehearsal") return { results: show(await rehearse(list, options)) };
  sent.key = newKey();
  sent.keep();
  const { answers, attempts, notices } = await runTransaction(list, { ...options, idempotencyKey: sent.key });
  return { results: show(answers), attempts, notices };
};

const EXPLAIN = "explain (analyze, buffers, format json) ";

/** The statement, explained. It is executed, but in a rehearsal: nothing that it writes stays. */
const explaining = ({ sql, params }: Statement): Statement => ({ sql: EXPLAIN + sql, params });

const startStream = (
  { draft, database, statements, isRead = false }: Wanted,
  id: number,
  signal: AbortSignal,
  finish: (next: Partial<Run>) => Run,
): Promise<Run> =>
  new Promise((resolve, reject) => {
    const [{ found, params }] = statements as [Wanted["statements"][number]];
    const rows = new StreamedRows({ sql: found.sql, params }, database, isRead);
    signal.addEventListener("abort", () => rows.cancel());
    const shown = (): Shown => ({
      key: `${id}.0`,
      sql: found.sql,
      params,
      columns: rows.columns,
      types: rows.types,
      rows,
      command: rows.state.kind === "done" ? rows.state.end.command : "",
      affectedRows: rows.state.kind === "done" ? rows.state.end.affectedRows : 0,
      truncated: false,
      notices: rows.state.kind === "done" ? rows.state.end.notices : [],
      execUs: rows.state.kind === "done" ? rows.state.end.execUs : 0,
      requestId: rows.requestId,
      isReplayed: false,
      stream: rows,
    });
    let before = "waiting";
    rows.follow(() => {
      const { state } = rows;
      if (state.kind === before) return;
      before = state.kind;
      if (state.kind === "running") return change(draft, id, { results: [shown()] });
      const hasColumns = rows.columns.length > 0;
      // Without columns there is nothing to show, and its worker would stay for nothing.
      if (!hasColumns) rows.close();
      const results = hasColumns ? [shown()] : [];
      if (state.kind === "failed") {
        if (!hasColumns) return reject(state.error);
        // What has arrived stays visible.
        const failed = failureOf(state.error, { draft, mode: "stream", database, statements, text: "" });
        return resolve(finish({ results, failed }));
      }
      if (state.kind !== "stopped") return resolve(finish({ results }));
      resolve(finish({ results, wasCancelled: state.why === "cancelled", outcome: state.outcome ?? null }));
    });
  });

const failureOf = (error: unknown, { mode, statements }: Wanted): Failed => {
  if (!(error instanceof PlainSQLError)) return { message: textOf(error), sql: "" };
  // What is rehearsed is never committed.
  if ((mode === "rehearsal" || mode === "explain") && error.outcome === "unknown") error.outcome = "rolled_back";
  const at = error.statementIndex ?? 0;
  const statement = statements[at]?.found;
  return {
    message: error.message,
    error,
    sql: statement?.sql ?? "",
    ...(statement &&
      error.position !== undefined && {
        offset: statement.from + offsetOf(statement.sql, error.position - (mode === "explain" ? EXPLAIN.length : 0)),
      }),
  };
};
