/** Runs what is wanted and keeps the results for the page to show. */

import { PlainSQLError } from "plainsql";
import { type Answer, type Notice, rehearse, run, runTransaction, type Statement } from "../api/data.ts";
import { textOf, wasAborted } from "../api/requests.ts";
import { store } from "../api/store.ts";
import { type Rows, rowsInMemory } from "../results/rows.ts";
import { StreamedRows } from "../results/stream.ts";
import { type Found, offsetOf } from "./statements.ts";

export const MAX_ROWS = 1_000;

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
  mode: Mode;
  startedAt: number;
  endedAt: number | null;
  results: Shown[];
  failed: Failed | null;
  wasCancelled: boolean;
  attempts: number;
  abort: () => void;
}

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
}

/** Called when a run has ended, for the history. */
export type Ended = (run: Run, wanted: Wanted) => void;

export const start = async (wanted: Wanted, ended: Ended): Promise<Run> => {
  const { draft, mode } = wanted;
  forgetRun(draft);
  runCount += 1;
  const id = runCount;
  const controller = new AbortController();
  const begun: Run = {
    id,
    mode,
    startedAt: performance.now(),
    endedAt: null,
    results: [],
    failed: null,
    wasCancelled: false,
    attempts: 1,
    abort: () => controller.abort(),
  };
  runs.update((all) => ({ ...all, [draft]: begun }));
  const finish = (next: Partial<Run>): Run => {
    const done = { ...begun, ...next, endedAt: performance.now() };
    change(draft, id, done);
    ended(done, wanted);
    return done;
  };
  try {
    if (mode === "stream") return await startStream(wanted, id, controller.signal, finish);
    return finish(await runAll(wanted, id, controller.signal));
  } catch (error) {
    if (wasAborted(error)) return finish({ wasCancelled: true });
    return finish({ failed: failureOf(error, wanted) });
  }
};

const runAll = async (
  { mode, database, statements }: Wanted,
  id: number,
  signal: AbortSignal,
): Promise<Partial<Run>> => {
  const options = { database, maxRows: MAX_ROWS, signal };
  const list = statements.map(({ found, params }) => ({ sql: found.sql, params }));
  const [only] = list;
  if (mode === "statement" && only) return { results: [shownOf(await run(only, options), only, `${id}.0`)] };
  const show = (answers: Answer[]) => answers.map((each, i) => shownOf(each, list[i] as Statement, `${id}.${i}`));
  if (mode === "explain") return { results: show(await rehearse(list.map(explaining), options)) };
  if (mode === "rehearsal") return { results: show(await rehearse(list, options)) };
  const { answers, attempts } = await runTransaction(list, options);
  return { results: show(answers), attempts };
};

const EXPLAIN = "explain (analyze, buffers, format json) ";

/** The statement, explained. It is executed, but in a rehearsal: nothing that it writes stays. */
const explaining = ({ sql, params }: Statement): Statement => ({ sql: EXPLAIN + sql, params });

const startStream = (
  { draft, database, statements }: Wanted,
  id: number,
  signal: AbortSignal,
  finish: (next: Partial<Run>) => Run,
): Promise<Run> =>
  new Promise((resolve, reject) => {
    const [{ found, params }] = statements as [Wanted["statements"][number]];
    const rows = new StreamedRows({ sql: found.sql, params }, database);
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
      if (state.kind === "running") change(draft, id, { results: [shown()] });
      else if (state.kind === "failed") {
        // What has arrived stays visible.
        if (rows.columns.length === 0) reject(state.error);
        else
          resolve(
            finish({
              results: [shown()],
              failed: failureOf(state.error, { draft, mode: "stream", database, statements }),
            }),
          );
      } else if (rows.columns.length === 0 && state.kind === "stopped") resolve(finish({ wasCancelled: true }));
      else resolve(finish({ results: [shown()], wasCancelled: state.kind === "stopped" && state.why === "cancelled" }));
    });
  });

const failureOf = (error: unknown, { mode, statements }: Wanted): Failed => {
  if (!(error instanceof PlainSQLError)) return { message: textOf(error), sql: "" };
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
