/** Calls of the data plane: statements, transactions and tables, by the npm client, whose writes happen exactly once. */

import { type Client, connect, type Notice, type Outcome, PlainSQLError, type Result } from "plainsql";
import { exactFetch, type Row, type Value } from "./exact.ts";
import type { components } from "./generated/data.ts";
import { request } from "./requests.ts";
import { current, end } from "./session.ts";

type Models = components["schemas"];
export type Table = Models["TableEntry"];
export type Capabilities = Models["CapabilitiesAnswer"];
export type Probe = Models["ProbeAnswer"];
export type Bench = Models["BenchAnswer"];
export type { Notice, Outcome, Row, Value };

/** What is to be run. */
export interface Statement {
  sql: string;
  params: unknown[];
}

/** A result with all its rows. */
export interface Answer {
  columns: string[];
  types: string[];
  rows: Row[];
  rowCount: number;
  affectedRows: number;
  truncated: boolean;
  command: string;
  notices: Notice[];
  execUs: number;
  requestId: string;
  isReplayed: boolean;
}

export interface RunOptions {
  database: string;
  maxRows: number;
  signal?: AbortSignal;
  readOnly?: boolean;
  idempotencyKey?: string;
  timeoutMs?: number;
}

export interface TransactionStatement extends Statement {
  expect?: { rowCount?: number; affectedRows?: number };
}

let kept: { token: string; client: Client } | undefined;

/** The client has the token. */
export const forgetClient = (): void => {
  kept = undefined;
};

const client = (): Client => {
  const { token, dataUrl } = current();
  if (kept?.token !== token) {
    const insecure = location.protocol === "http:";
    const asText = { int8: "string", numeric: "string", fetch: exactFetch } as const;
    kept = { token, client: connect({ url: dataUrl, session: token, ...asText, insecure }) };
  }
  return kept.client;
};

/** By it, the service knows a write, and is asked what became of it. */
export const newKey = (): string => crypto.getRandomValues(new Uint32Array(4)).join("-");

/** What became of the write with a key. */
export const outcomeOf = (key: string, database: string, timeoutMs: number): Promise<Outcome | "in_progress"> =>
  watched((db) => db.outcome(key, { database: database || undefined, timeoutMs }));

/** Ends the session if the service refuses it. */
const watched = async <T>(work: (db: Client) => Promise<T>): Promise<T> => {
  const db = client();
  const token = kept?.token;
  try {
    return await work(db);
  } catch (error) {
    if (error instanceof PlainSQLError && error.status === 401) end("refused", token);
    throw error;
  }
};

/** Without a name, the service takes the organization's default database. */
const wantedOf = (options: RunOptions) =>
  ({ ...options, database: options.database || undefined, rowFormat: "array" }) as const;

export const run = async ({ sql, params }: Statement, options: RunOptions): Promise<Answer> =>
  answerOf(await watched((db) => db.query<Row>(sql, params, wantedOf(options))));

export interface TransactionAnswer {
  answers: Answer[];
  attempts: number;
  notices: Notice[];
}

export const runTransaction = async (
  statements: readonly TransactionStatement[],
  options: RunOptions,
): Promise<TransactionAnswer> => {
  const done = await watched((db) => db.transaction(statements, wantedOf(options)));
  const results = done.results as unknown as Result<Row>[];
  return { answers: results.map(answerOf), attempts: done.attempts, notices: done.notices ?? [] };
};

/** Runs statements and rolls them back: what they would do, without doing it. */
export const rehearse = async (statements: readonly Statement[], options: RunOptions): Promise<Answer[]> => {
  const { token, dataUrl } = current();
  const body = {
    statements,
    database: options.database || null,
    max_rows: options.maxRows,
    row_format: "array",
    big_numbers: "string",
    dry_run: true,
  };
  const url = `${dataUrl}/v1/transaction`;
  const done = await request<{ results: Models["StatementResult"][]; request_id: string }>(url, {
    method: "POST",
    body,
    signal: options.signal,
    fetch: exactFetch,
  });
  if (token !== current().token) throw new Error("The session has changed.");
  return done.results.map((each) => ({
    columns: each.columns,
    types: each.types,
    rows: each.rows as Row[],
    rowCount: each.row_count,
    affectedRows: each.affected_rows,
    truncated: each.truncated,
    command: each.command,
    notices: (each.notices ?? []) as Notice[],
    execUs: each.timings.exec_us,
    requestId: done.request_id,
    isReplayed: false,
  }));
};

const answerOf = (result: Result<Row>): Answer => ({
  columns: result.columns,
  types: result.types,
  rows: result.rows,
  rowCount: result.rowCount,
  affectedRows: result.affectedRows,
  truncated: result.truncated,
  command: result.command,
  notices: result.notices ?? [],
  // The client passes on what it doesn't know.
  execUs: (result as { timings?: { exec_us?: number } }).timings?.exec_us ?? 0,
  requestId: result.requestId,
  isReplayed: result.isReplayed,
});

const get = <T>(path: string, database: string, signal?: AbortSignal): Promise<T> =>
  request<T>(current().dataUrl + path, { headers: database ? { "X-Database": database } : {}, signal });

/** Lists of tables from which some are missing. */
const cut = new WeakSet<readonly Table[]>();

export const listTables = async (database: string, detail: "names" | "columns" | "full"): Promise<Table[]> => {
  const { tables, truncated } = await get<Models["TablesAnswer"]>(`/tables?detail=${detail}`, database);
  if (truncated) cut.add(tables);
  return tables;
};

/** What to say if tables are missing from a list, because the tier limits the rows of an answer; else nothing. */
export const missingTables = (tables: readonly Table[] | undefined): string | undefined =>
  tables && cut.has(tables)
    ? `Only the first ${tables.length.toLocaleString("en")} tables are listed: your tier limits how many an answer has. A query finds the others.`
    : undefined;

export const capabilities = (): Promise<Capabilities> => get("/capabilities", "");

export const probe = (name: string, database: string): Promise<Probe> =>
  get(`/capabilities/${encodeURIComponent(name)}`, database);

export const bench = (database: string): Promise<Bench> => get("/bench", database);

export const dataHealth = (): Promise<Models["HealthAnswer"]> => get("/health", "");
