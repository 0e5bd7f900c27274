/** A stream of rows, received by a worker. */

import { type ErrorFields, PlainSQLError } from "plainsql";
import type { Row, Statement } from "../api/data.ts";
import { current, end } from "../api/session.ts";
import { CHUNK_ROWS, type FromWorker, type StreamEnd, type ToWorker } from "./protocol.ts";
import type { Rows } from "./rows.ts";

/** More than this is for a file: a browser's tab has little memory. */
const MAX_BYTES = 512 * 1024 * 1024;
// 100,000 rows of what was looked at.
const MAX_CHUNKS = 200;

export type StreamState =
  | { kind: "waiting" }
  | { kind: "running" }
  | { kind: "done"; end: StreamEnd }
  | { kind: "stopped"; why: "cancelled" | "memory"; outcome?: ErrorFields["outcome"] }
  | { kind: "failed"; error: PlainSQLError };

const gone = (): Error => new Error("The rows of this result are no longer here.");

interface Asked {
  resolve: (rows: Row[]) => void;
  reject: (error: Error) => void;
}

export class StreamedRows implements Rows {
  columns: string[] = [];
  types: string[] = [];
  requestId = "";
  count = 0;
  bytes = 0;
  state: StreamState = { kind: "waiting" };
  readonly #worker: Worker;
  readonly #token: string;
  readonly #listeners = new Set<() => void>();
  // In the order in which they were last used.
  readonly #chunks = new Map<number, Row[]>();
  readonly #asked = new Map<number, Asked[]>();
  // Whether its worker has ended, so that nothing more comes.
  #isClosed = false;

  constructor({ sql, params }: Statement, database: string, isRead: boolean) {
    const { dataUrl, token } = current();
    this.#token = token;
    this.#worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    this.#worker.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => this.#hear(data));
    this.#worker.addEventListener("error", () =>
      this.#fail({ code: "network_error", message: "The worker failed.", outcome: "unknown" }),
    );
    const body = { sql, params, ...(database && { database }), read_only: isRead };
    this.#say({ kind: "start", request: { url: dataUrl, token, body, maxBytes: MAX_BYTES } });
  }

  at(index: number): Row | undefined {
    const chunk = Math.floor(index / CHUNK_ROWS);
    const row = this.#chunks.get(chunk)?.[index % CHUNK_ROWS];
    if (row === undefined && index < this.count) this.#ask(chunk);
    return row;
  }

  follow(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async read(start: number, end: number): Promise<Row[]> {
    const found: Row[] = [];
    const last = Math.min(end, this.count);
    for (let at = start; at < last; ) {
      const chunk = Math.floor(at / CHUNK_ROWS);
      const first = chunk * CHUNK_ROWS;
      const rows = await this.#chunk(chunk);
      const part = rows.slice(at - first, last - first);
      if (part.length === 0) break;
      for (const row of part) found.push(row);
      at += part.length;
    }
    return found;
  }

  cancel(): void {
    this.#say({ kind: "cancel" });
  }

  close(): void {
    this.#end();
    this.#chunks.clear();
    this.#listeners.clear();
  }

  get isRunning(): boolean {
    return this.state.kind === "waiting" || this.state.kind === "running";
  }

  #chunk(chunk: number): Promise<Row[]> {
    const complete = Math.min(CHUNK_ROWS, this.count - chunk * CHUNK_ROWS);
    const here = this.#chunks.get(chunk);
    if (here && here.length >= complete) return Promise.resolve(here);
    if (this.#isClosed) return Promise.reject(gone());
    return new Promise((resolve, reject) => this.#ask(chunk, { resolve, reject }));
  }

  #ask(chunk: number, then?: Asked): void {
    const asked = this.#asked.get(chunk);
    if (asked) {
      if (then) asked.push(then);
      return;
    }
    this.#asked.set(chunk, then ? [then] : []);
    this.#say({ kind: "chunk", chunk });
  }

  #hear(message: FromWorker): void {
    if (message.kind === "columns") {
      this.columns = message.columns;
      this.types = message.types;
      this.requestId = message.requestId;
      this.state = { kind: "running" };
    } else if (message.kind === "progress") {
      this.count = message.rows;
      this.bytes = message.bytes;
    } else if (message.kind === "rows") this.#keep(message.chunk, message.rows);
    else if (message.kind === "done") this.state = { kind: "done", end: message.end };
    else if (message.kind === "stopped") this.state = message;
    else this.#setFailed(message.error);
    this.#tell();
  }

  #keep(chunk: number, rows: Row[]): void {
    this.#chunks.delete(chunk);
    this.#chunks.set(chunk, rows);
    for (const [oldest] of this.#chunks) {
      if (this.#chunks.size <= MAX_CHUNKS) break;
      this.#chunks.delete(oldest);
    }
    for (const { resolve } of this.#asked.get(chunk) ?? []) resolve(rows);
    this.#asked.delete(chunk);
  }

  /** Ends the worker. What was asked for does not come. */
  #end(): void {
    this.#isClosed = true;
    this.#worker.terminate();
    for (const asked of this.#asked.values()) for (const { reject } of asked) reject(gone());
    this.#asked.clear();
  }

  /** The worker itself has failed. */
  #fail(fields: ErrorFields): void {
    this.#end();
    this.#setFailed(fields);
    this.#tell();
  }

  #setFailed(fields: ErrorFields): void {
    if (fields.status === 401) end("refused", this.#token);
    this.state = { kind: "failed", error: new PlainSQLError(fields) };
  }

  #tell(): void {
    for (const listener of this.#listeners) listener();
  }

  #say(message: ToWorker): void {
    this.#worker.postMessage(message);
  }
}
