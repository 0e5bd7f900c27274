/**
 * Sends requests by `fetch`, and repeats those that are safe to repeat: reads, and writes with an idempotency key. After
 * a lost response, a later attempt that is rejected does not prove that nothing was executed; the error then says so.
 */

import { type ErrorFields, type Outcome, PlainSQLError } from "./errors.js";
import { camel } from "./names.js";
import type { Checked } from "./settings.js";

/** A request, and how to send it. A retry sends the same `body`. */
export interface Call {
  /** POST if there is a body, and GET if not. */
  method?: string;
  /** A path of the data plane, or a whole URL. */
  path: string;
  body?: string | undefined;
  /** The response that is wanted: JSON, or a stream. */
  accept: string;
  /** The idempotency key of a write. */
  key?: string | undefined;
  /** Sent as a header if there is no body. */
  database?: string | undefined;
  timeoutMs: number;
  signal?: AbortSignal | undefined;
  /** Whether the request can be repeated after a lost response. */
  isSafe: boolean;
}

/** The JSON of a response. */
export interface Answer {
  columns: string[];
  types: string[];
  rows: unknown[];
  results: Answer[];
  transaction: { id: string; attempts: number };
  request: { outcome: Outcome | "in_progress" };
  [field: string]: unknown;
}

/** What PostgreSQL reported besides a result. `code` is its SQLSTATE. */
export interface Notice {
  severity: string;
  code: string;
  message: string;
  detail?: string;
  hint?: string;
}

/** A response: its JSON, or a stream that is still being received. `answer` is absent if there is no body. */
export interface Received {
  answer?: Answer;
  isReplayed: boolean;
  stream?: ByteStream;
}

/** The body of a response. `close` closes the connection, and then the service cancels the statement. */
export interface ByteStream {
  body: ReadableStream<Uint8Array>;
  close: () => void;
}

/** What became of one attempt. Its status is 0 if no complete response arrived. */
interface Attempt {
  status: number;
  received?: Received;
  error?: ErrorFields;
  retryAfterS?: number;
}

// The service keeps the deadline in the request. Its response needs some time to arrive.
const GRACE_MS = 5_000;
const FIRST_DELAY_MS = 20;
const DELAY_MS_MAX = 2_000;
// What Node's fetch names as the cause if nothing can have been sent.
const NOT_SENT = /REFUSED|NOTFOUND|EAI_AGAIN|CONNECT_TIMEOUT/;
const UNTRUSTED = /CERT|SIGN/;

/** Sends a request until it is answered, or until the timeout. Throws PlainSQLError, or the reason of the signal. */
export type Send = (call: Call) => Promise<Received>;

/** What sends requests with the credential of these settings. */
export const sender = ({ credential, fetch = globalThis.fetch, url }: Checked): Send => {
  let token: Promise<string> | undefined;

  const forget = (used: Promise<string>) => {
    if (token === used) token = undefined;
  };

  const authenticate = (): Promise<string> => {
    token ??= Promise.resolve(typeof credential === "function" ? credential() : credential);
    const used = token;
    used.catch(() => forget(used));
    return used;
  };

  const attempt = async (call: Call, limit: Limit): Promise<Attempt> => {
    const { path, body, accept: Accept, key, database, signal } = call;
    const used = authenticate();
    const bearer = await Promise.race([used, limit.ended]);
    if (limit.signal.aborted) {
      signal?.throwIfAborted();
      // The next call asks again: this promise may never settle.
      forget(used);
      return lost("session()", {}, true, true);
    }
    // Throws here if a value cannot be in a header.
    const headers = new Headers({
      Authorization: `Bearer ${bearer}`,
      "Content-Type": "application/json",
      Accept,
    });
    if (key) headers.set("Idempotency-Key", key);
    if (!body && database) headers.set("X-Database", database);
    try {
      const response = await fetch(new URL(path, url), {
        method: call.method ?? (body ? "POST" : "GET"),
        headers,
        body: body ?? null,
        signal: limit.signal,
      });
      const isReplayed = response.headers.has("idempotency-replayed");
      if (/event-stream/.test(`${response.headers.get("content-type")}`)) {
        clearTimeout(limit.timer);
        const { body } = response;
        return { status: 200, received: { isReplayed, stream: { ...limit, body } as ByteStream } };
      }
      return read(response, await response.text(), isReplayed);
    } catch (error) {
      signal?.throwIfAborted();
      return lost(url, error, limit.signal.aborted);
    }
  };

  /** The error after the last attempt. */
  const final = async (call: Call, { error }: Attempt, wasLost: boolean): Promise<PlainSQLError> => {
    const { key } = call;
    const fields = error as ErrorFields;
    // If this attempt ran and was rolled back, there is no doubt: it would have found an earlier attempt's record.
    const isLate = key && wasLost && fields.outcome === "not_executed";
    if (!isLate && fields.outcome !== "unknown") return new PlainSQLError(fields);
    // If even this fails, the outcome stays unknown.
    const limit = limited(GRACE_MS);
    const lookup = key && (await attempt(outcomeCall(call, key), limit).catch(() => undefined));
    limit.end();
    // An attempt may still be in transit: "not executed yet" does not mean "never executed".
    const isCommitted = lookup && lookup.received?.answer?.request.outcome === "committed";
    const outcome = isCommitted ? "committed" : "unknown";
    const late = isLate && { code: "network_error", message: `A response was lost. ${fields.message}` };
    return new PlainSQLError({ ...fields, ...late, outcome, idempotencyKey: key });
  };

  const sendWithin = async (call: Call, limit: Limit): Promise<Received> => {
    const end = Date.now() + call.timeoutMs;
    let delay = FIRST_DELAY_MS;
    let wasLost = false;
    let isRenewed = typeof credential !== "function";
    for (;;) {
      const used = authenticate();
      const result = await attempt(call, limit);
      const { status, received, error } = result;
      if (received) return received;
      // With 409, it is another attempt that runs.
      wasLost ||= error?.outcome === "unknown" && status !== 409;
      if (status === 401 && !isRenewed) {
        // The session has ended. Of calls at the same time, the first one replaces it.
        forget(used);
        isRenewed = true;
        continue;
      }
      const rest = end - Date.now();
      // The last attempt is at the end, unless the service asks for a longer wait.
      const jitter = (1 + Math.random()) / 2;
      const pause = Math.max(waitBeforeRetry(result, call.isSafe, wasLost), Math.min(rest, delay * jitter));
      if (rest <= 0 || pause > rest) throw await final(call, result, wasLost);
      await limit.pause(pause);
      delay = Math.min(delay * 2, DELAY_MS_MAX);
    }
  };

  return async (call) => {
    call.signal?.throwIfAborted();
    const limit = limited(call.timeoutMs + GRACE_MS, call.signal);
    let received: Received | undefined;
    try {
      received = await sendWithin(call, limit);
      return received;
    } finally {
      if (!received?.stream) limit.end();
    }
  };
};

/** What ends a call: its time, or its caller's signal. */
interface Limit {
  signal: AbortSignal;
  timer: ReturnType<typeof setTimeout>;
  /** Settles when the call is aborted. */
  ended: Promise<unknown>;
  pause: (ms: number) => Promise<void>;
  end: () => void;
  /** Ends the call and aborts its request. */
  close: () => void;
}

const limited = (ms: number, caller?: AbortSignal): Limit => {
  const controller = new AbortController();
  const { signal } = controller;
  const end = () => {
    clearTimeout(timer);
    // It may live longer than this call.
    caller?.removeEventListener("abort", close);
  };
  const close = () => {
    end();
    controller.abort();
  };
  const timer = setTimeout(close, ms);
  caller?.addEventListener("abort", close);
  const ended = new Promise((resolve) => signal.addEventListener("abort", resolve));
  return {
    signal,
    timer,
    ended,
    pause: (pauseMs) =>
      new Promise((resolve) => {
        const waiting = setTimeout(resolve, pauseMs);
        ended.then(() => resolve(clearTimeout(waiting)));
      }),
    end,
    close,
  };
};

/** The request that asks whether a write took effect. */
export const outcomeCall = (call: Call, key: string): Call => ({
  ...call,
  path: `/v1/requests/${encodeURIComponent(key)}`,
  body: undefined,
  key: undefined,
  isSafe: true,
});

const lost = (from: string, cause: unknown, isTimeout: boolean, isUnsent = false): Attempt => {
  // Node has the reason of a failed fetch here, browsers don't.
  const reason = (cause as Error).cause as { message?: string; code?: string } | undefined;
  const code = String(reason?.code);
  const isUntrusted = UNTRUSTED.test(code);
  // A refused connection to several addresses has no message.
  const why = isTimeout ? "timeout" : reason?.message || reason?.code || cause;
  const advice = isUntrusted ? "; set NODE_EXTRA_CA_CERTS" : "";
  return {
    status: 0,
    error: {
      code: "network_error",
      message: `No response from ${from}: ${why}${advice}.`,
      outcome: isUnsent || isUntrusted || NOT_SENT.test(code) ? "not_executed" : "unknown",
      retryable: !isUntrusted,
      cause,
    },
  };
};

const read = ({ status, headers }: Response, text: string, isReplayed: boolean): Attempt => {
  let answer: { error?: object; request_id?: string; success?: boolean } | null = null;
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    // It is a proxy's.
  }
  if (answer && !answer.error && status < 300) return { status, received: { answer: answer as Answer, isReplayed } };
  const foreign = { code: "no_json", message: `Status ${status} without JSON.`, outcome: "unknown" };
  const fields = camel({ status, request_id: answer?.request_id, ...(answer?.error ?? foreign) });
  return {
    status,
    error: fields as unknown as ErrorFields,
    // It may be a date.
    retryAfterS: Number(headers.get("retry-after")) || 1,
  };
};

/** How many milliseconds to wait before the request is repeated; Infinity if it must not be. */
const waitBeforeRetry = ({ status, error, retryAfterS }: Attempt, isSafe: boolean, wasLost: boolean): number => {
  const { code, outcome, retryable, retryAfterMs } = error as ErrorFields;
  const isRepeatable = isSafe || outcome === "not_executed";
  if (!status) return isRepeatable && retryable ? 0 : Infinity;
  // Our own earlier attempt is still running. Its response can be fetched when it is done.
  if (status === 409) return wasLost && code === "request_in_progress" ? 50 : Infinity;
  // The service never sends 502 or 504. They mean that a proxy got no response from it.
  if (!/429|50[234]/.test(`${status}`) || !isRepeatable) return Infinity;
  if (status === 503 && !isSafe && !retryable) return Infinity;
  return retryAfterMs ?? (retryAfterS as number) * 1000;
};
