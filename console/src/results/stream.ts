/** A stream of rows, received by a worker. */

import { type ErrorFields, PlainSQLError } from "plainsql";
import type { Row, Statement } from "../api/data.ts";
import { current, end } from "../api/session.ts";
import type { Format } from "./formats.ts";
import type { FromWorker, StreamEnd, StreamRequest, ToWorker } from "./protocol.ts";
import type { Rows } from "./rows.ts";

/** More than this, in all streams of the page, is for a file: a browser's tab has little memory. */
export const MAX_BYTES = 256_000_000;
/** Those whose workers keep rows. */
const kept = new Set<StreamedRows>();

const keptBytes = (): number => [...kept].reduce((all, { bytes }) => all + bytes, 0);
// What was looked at is parsed, which takes some times as much memory as its bytes.
const MAX_PARSED_BYTES = 24_000_000;
// What is visible stays, however large it is.
const MIN_CHUNKS = 3;

export type StreamState =
  | { kind: "waiting" }
  | { kind: "running" }
  | { kind: "done"; end: StreamEnd }
  | { kind: "stopped"; why: "cancelled" | "memory"; outcome?: ErrorFields["outcome"] }
  | { kind: "failed"; error: PlainSQLError };

const gone = (): Error => new Error("The rows of this result are no longer here.");

const newWorker = (): Worker => new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });

const requestOf = (
  { sql, params }: Statement,
  database: string,
  isRead: boolean,
  maxBytes = MAX_BYTES,
): StreamRequest => {
  const { dataUrl, token } = current();
  const body = { sql, params, ...(database && { database }), read_only: isRead };
  return { url: dataUrl, token, body, maxBytes };
};

interface Chunk {
  rows: Row[];
  bytes: number;
}

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
  // The first row of each chunk.
  readonly #starts: number[] = [];
  // In the order in which they were last used.
  readonly #chunks = new Map<number, Chunk>();
  #parsedBytes = 0;
  #lastUsed = -1;
  readonly #asked = new Map<number, Asked[]>();
  // Whether its worker has ended, so that nothing more comes.
  #isClosed = false;

  constructor(statement: Statement, database: string, isRead: boolean) {
    const request = requestOf(statement, database, isRead, Math.max(0, MAX_BYTES - keptBytes()));
    kept.add(this);
    this.#token = request.token;
    this.#worker = newWorker();
    this.#worker.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => this.#hear(data));
    this.#worker.addEventListener("error", () =>
      this.#fail({ code: "network_error", message: "The worker failed.", outcome: "unknown" }),
    );
    this.#say({ kind: "start", request });
  }

  at(index: number): Row | undefined {
    if (index >= this.count) return undefined;
    const chunk = this.#chunkOf(index);
    const row = this.#use(chunk)?.[index - this.#startOf(chunk)];
    if (row === undefined) this.#ask(chunk);
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
      const chunk = this.#chunkOf(at);
      const first = this.#startOf(chunk);
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
    this.#parsedBytes = 0;
    this.#listeners.clear();
  }

  get isRunning(): boolean {
    return this.state.kind === "waiting" || this.state.kind === "running";
  }

  /** The chunk that has a row. */
  #chunkOf(index: number): number {
    let low = 0;
    let high = this.#starts.length - 1;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.#startOf(middle) <= index) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  #startOf(chunk: number): number {
    return this.#starts[chunk] ?? 0;
  }

  /** The rows of a chunk, if they are here. The ones that were not used for longest are dropped first. */
  #use(chunk: number): Row[] | undefined {
    const found = this.#chunks.get(chunk);
    if (found && chunk !== this.#lastUsed) {
      this.#chunks.delete(chunk);
      this.#chunks.set(chunk, found);
      this.#lastUsed = chunk;
    }
    return found?.rows;
  }

  #chunk(chunk: number): Promise<Row[]> {
    const complete = Math.min(this.#starts[chunk + 1] ?? this.count, this.count) - this.#startOf(chunk);
    const here = this.#use(chunk);
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
      this.#starts.push(...message.starts);
      // Others of the page may have received rows meanwhile.
      if (this.isRunning && keptBytes() > MAX_BYTES) this.#say({ kind: "full" });
    } else if (message.kind === "rows") this.#keep(message.chunk, message);
    else if (message.kind === "done") this.state = { kind: "done", end: message.end };
    else if (message.kind === "stopped") this.state = message;
    else if (message.kind === "failed") this.#setFailed(message.error);
    this.#tell();
  }

  #keep(chunk: number, next: Chunk): void {
    this.#drop(chunk);
    this.#chunks.set(chunk, next);
    this.#parsedBytes += next.bytes;
    this.#lastUsed = chunk;
    for (const oldest of this.#chunks.keys()) {
      if (this.#parsedBytes <= MAX_PARSED_BYTES || this.#chunks.size <= MIN_CHUNKS) break;
      this.#drop(oldest);
    }
    for (const { resolve } of this.#asked.get(chunk) ?? []) resolve(next.rows);
    this.#asked.delete(chunk);
  }

  #drop(chunk: number): void {
    this.#parsedBytes -= this.#chunks.get(chunk)?.bytes ?? 0;
    this.#chunks.delete(chunk);
  }

  /** Ends the worker. What was asked for does not come. */
  #end(): void {
    this.#isClosed = true;
    kept.delete(this);
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

export interface Written {
  content: Blob;
  rows: number;
}

/** Streams all rows of a statement that only reads into a file, without keeping them. */
export const streamToFile = (
  statement: Statement,
  database: string,
  file: { format: Format; table: readonly string[] },
  { signal, follow }: { signal: AbortSignal; follow: (rows: number, bytes: number) => void },
): Promise<Written> => {
  const request = { ...requestOf(statement, database, true), file };
  const worker = newWorker();
  const written = new Promise<Written>((resolve, reject) => {
    const fail = (fields: ErrorFields) => {
      if (fields.status === 401) end("refused", request.token);
      reject(new PlainSQLError(fields));
    };
    worker.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => {
      if (data.kind === "progress") follow(data.rows, data.bytes);
      else if (data.kind === "file") resolve(data);
      else if (data.kind === "failed") fail(data.error);
    });
    worker.addEventListener("error", () => fail({ code: "network_error", message: "The worker failed." }));
    signal.addEventListener("abort", () => reject(signal.reason));
  });
  worker.postMessage({ kind: "start", request } satisfies ToWorker);
  return written.finally(() => worker.terminate());
};
