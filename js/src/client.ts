/** The client: queries, transactions and streams. `connect` makes one. */

import { type Outcome, PlainSQLError } from "./errors.js";
import { camel, snake } from "./names.js";
import { type Checked, check, type Settings } from "./settings.js";
import { looksLikeARead, type Row, type Statement, sql, type TransactionStatement } from "./statement.js";
import type { StreamEnd } from "./stream.js";
import {
  type Answer,
  type ByteStream,
  type Call,
  type Notice,
  outcomeCall,
  type Received,
  type Send,
  sender,
} from "./transport.js";
import { decoder, type Numbers, toJson } from "./values.js";

/** Options of one call. */
export interface Options extends Numbers {
  /** Name or id of the database. */
  database?: string | undefined;
  /** How long the call may take, with all retries. */
  timeoutMs?: number | undefined;
  /** Cancels the call. The service then cancels the statement. */
  signal?: AbortSignal | undefined;
  /** The most rows to return. */
  maxRows?: number | undefined;
  /** Whether to run in a read-only transaction. If you don't say, the client finds out. */
  readOnly?: boolean | undefined;
  /** Return rows as arrays: R is then the type of the array. */
  rowFormat?: "object" | "array" | undefined;
}

/** Options of a write, which takes effect only once per key. */
export interface WriteOptions extends Options {
  /** If you don't set it, each call has its own. */
  idempotencyKey?: string | undefined;
}

/** Options of a transaction. */
export interface TransactionOptions extends WriteOptions {
  /** How often the service retries after a conflict with other transactions. */
  maxRetries?: number | undefined;
}

/** The result of a statement. */
export interface Result<R = Row> {
  rows: R[];
  columns: string[];
  /** PostgreSQL's type names, parallel to `columns`. */
  types: string[];
  rowCount: number;
  affectedRows: number;
  /** PostgreSQL's name of the command, such as `INSERT`. */
  command: string;
  /** Whether `maxRows` left rows out. */
  truncated: boolean;
  notices?: Notice[];
  /** Whether this is the response to an earlier request with the same idempotency key. */
  isReplayed: boolean;
  requestId: string;
}

/** The results of a transaction, one per statement. */
export interface TransactionResult<T> {
  results: T;
  affectedRows: number;
  notices?: Notice[];
  /** How often it ran: 1 if there was no conflict. */
  attempts: number;
  id: string;
  isReplayed: boolean;
  requestId: string;
}

/** The results of statements, typed by them. */
export type ResultsOf<S extends readonly unknown[]> = {
  -readonly [I in keyof S]: S[I] extends Statement<infer R> ? Result<unknown extends R ? Row : R> : Result;
};

// How many statements to remember that look like reads but write.
const REMEMBERED_WRITES = 256;
// The maximum of any tier.
const STREAM_LIFE_MS = 3_600_000;

/** A client for one service. It holds no connection: `fetch` does. */
export class Client {
  /** The address of the data plane. */
  readonly url: string;
  /** @internal Sends any request. */
  readonly send: Send;
  readonly #settings: Checked;
  readonly #writes = new Set<string>();

  /** @internal */
  constructor(settings: Checked) {
    this.url = settings.url;
    this.#settings = settings;
    this.send = sender(settings);
  }

  /** Runs a statement and returns its rows: `` db.sql<Note>`select id, body from notes where id = ${id}` ``. */
  readonly sql = async <R = Row>(texts: TemplateStringsArray, ...values: readonly unknown[]): Promise<R[]> =>
    (await this.query(sql<R>(texts, ...values))).rows;

  /** Runs one statement, in a serializable transaction of its own. A write takes effect exactly once. */
  query<R = Row>(statement: Statement<R>, options?: WriteOptions): Promise<Result<R>>;
  query<R = Row>(text: string, params?: readonly unknown[], options?: WriteOptions): Promise<Result<R>>;
  async query<R>(first: string | Statement<R>, second?: unknown, third?: WriteOptions): Promise<Result<R>> {
    const [statement, options] = argumentsOf(first, second, third);
    const { answer, isReplayed, isRead } = await this.#statement(statement, options, false);
    const result = this.#result<R>(answer as Answer, isReplayed, options, isRead);
    if (result.truncated && options.maxRows === undefined) {
      throw unexpected("result_truncated", `There are more than ${result.rowCount} rows.`, isRead);
    }
    return result;
  }

  /**
   * Runs a statement and returns its rows one by one, however many there are. Leave the loop or abort the signal to
   * cancel the statement. A stream that fails throws, also after rows.
   */
  stream<R = Row>(statement: Statement<R>, options?: Options): AsyncGenerator<R, StreamEnd, void>;
  stream<R = Row>(text: string, params?: readonly unknown[], options?: Options): AsyncGenerator<R, StreamEnd, void>;
  async *stream<R>(
    first: string | Statement<R>,
    second?: unknown,
    third?: Options,
  ): AsyncGenerator<R, StreamEnd, void> {
    const [statement, options] = argumentsOf(first, second, third);
    // Loaded when first needed: most pages never stream.
    const { rows } = await import("./stream.js");
    const { stream, isRead } = await this.#statement(statement, options, true);
    return yield* rows<R>(
      stream as ByteStream,
      (columns) => this.#rowDecoder(columns, options, isRead),
      options.signal,
    );
  }

  /** Runs all statements in one serializable transaction: either all take effect, exactly once, or none does. */
  async transaction<const S extends readonly (string | TransactionStatement<unknown>)[]>(
    statements: S,
    options: TransactionOptions = {},
  ): Promise<TransactionResult<ResultsOf<S>>> {
    const { readOnly: isRead = false, idempotencyKey } = options;
    const content = statements.map((each) => {
      if (typeof each === "string") return each;
      return { ...each, expect: each.expect && snake(each.expect) };
    });
    const call = this.#post("/v1/transaction", { statements: content }, options);
    const { answer, isReplayed } = await this.send({
      ...call,
      isSafe: true,
      key: isRead ? undefined : (idempotencyKey ?? newKey()),
    });
    const { results, transaction, ...others } = answer as Answer;
    return {
      ...camel(others),
      ...transaction,
      results: results.map((each) => this.#result(each, isReplayed, options, isRead)),
      isReplayed,
    } as TransactionResult<never>;
  }

  /** Whether the write with this idempotency key took effect. */
  async outcome(idempotencyKey: string, options: Options = {}): Promise<Outcome | "in_progress"> {
    const { answer } = await this.send(outcomeCall(this.#post("", {}, options), idempotencyKey));
    return (answer as Answer).request.outcome;
  }

  /** Sends a statement, read-only first if it looks like a read. */
  async #statement(
    { sql, params }: Statement<unknown>,
    options: WriteOptions,
    isStream: boolean,
  ): Promise<Received & { isRead: boolean }> {
    const { readOnly, idempotencyKey } = options;
    const run = async (isRead: boolean, key?: string) => {
      // Only a read may be sent again until the head of its stream arrives.
      const call = this.#post("/v1/query", { sql, params, read_only: isRead }, options, isStream);
      const received = await this.send({ ...call, key, isSafe: isRead || key !== undefined });
      if (!received.stream === isStream) {
        received.stream?.close();
        throw unexpected("unexpected_response", "The statement has the hint STREAM.", isRead);
      }
      return { ...received, isRead };
    };
    if (readOnly === undefined && !idempotencyKey && looksLikeARead(sql) && !this.#writes.has(sql)) {
      try {
        return await run(true);
      } catch (error) {
        if (!hasCode(error, "read_only_sql_transaction")) throw error;
        if (this.#writes.size >= REMEMBERED_WRITES) this.#writes.clear();
        this.#writes.add(sql);
      }
    }
    // A stream cannot have a key, so a write in one is sent once.
    const key = readOnly || isStream ? undefined : (idempotencyKey ?? newKey());
    try {
      return await run(readOnly === true, key);
    } catch (error) {
      // VACUUM and the like cannot run in a transaction, and a key needs one. Nothing was executed.
      if (!hasCode(error, "active_sql_transaction") || idempotencyKey || !key) throw error;
    }
    return run(false);
  }

  #post(path: string, content: object, options: WriteOptions, isStream = false): Call {
    const settings = this.#settings;
    const { signal, idempotencyKey: _, int8: __, numeric: ___, ...others } = options;
    const { timeoutMs = settings.timeoutMs, database = settings.database } = options;
    const limitMs = isStream ? (options.timeoutMs ?? STREAM_LIFE_MS) : timeoutMs;
    return {
      path,
      body: toJson({ ...snake({ ...others, database, timeoutMs: limitMs, bigNumbers: "string" }), ...content }),
      accept: isStream ? "text/event-stream" : "application/json",
      database,
      timeoutMs,
      signal,
      isSafe: false,
    };
  }

  #result<R>(answer: Answer, isReplayed: boolean, options: Options, isRead: boolean): Result<R> {
    const decode = this.#rowDecoder(answer, options, isRead);
    return { ...camel(answer), rows: answer.rows.map(decode), isReplayed } as Result<R>;
  }

  /** A function that decodes the values of a row, in place. */
  #rowDecoder({ columns, types }: Answer, options: Options, isRead: boolean): (row: unknown) => unknown {
    const found: [string | number, (value: unknown) => unknown][] = [];
    const numbers = { ...this.#settings, ...options };
    columns.forEach((column, index) => {
      const decode = decoder(types[index] as string, numbers, isRead ? undefined : "committed");
      if (decode) found.push([options.rowFormat === "array" ? index : column, decode]);
    });
    return (row) => {
      const values = row as Record<string | number, unknown>;
      for (const [name, decode] of found) values[name] = decode(values[name]);
      return row;
    };
  }
}

const argumentsOf = <R>(
  first: string | Statement<R>,
  second: unknown,
  third: WriteOptions = {},
): [statement: Statement<R>, options: WriteOptions] =>
  typeof first === "string"
    ? [{ sql: first, params: second as readonly unknown[] | undefined }, third]
    : [first, (second ?? {}) as WriteOptions];

const unexpected = (code: string, message: string, isRead: boolean): PlainSQLError =>
  new PlainSQLError({ code, message: `${message} Use stream().`, outcome: isRead ? undefined : "committed" });

const hasCode = (error: unknown, code: string): boolean => (error as Partial<PlainSQLError> | undefined)?.code === code;

/** A new idempotency key. Node 18 has no `crypto` here, and a key need only be unique, not secret. */
const newKey = (): string =>
  (globalThis.crypto?.getRandomValues(new Uint32Array(4)) ?? [Date.now(), Math.random(), Math.random()]).join("-");

/**
 * Makes a client. Nothing is sent until the first call.
 *
 *     const db = connect({ url: "https://localhost:8400", key });
 *     const notes = await db.sql<Note>`select id, body from notes where id < ${10}`;
 */
export const connect = (settings: Settings | string): Client => new Client(check(settings));
