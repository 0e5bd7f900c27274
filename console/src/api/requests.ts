/** Requests to both planes, as JSON. Every failure is a PlainSQLError. A refused token ends the session. */

import { type Outcome, PlainSQLError } from "plainsql";
import { current, end } from "./session.ts";

export interface Wanted {
  method?: "GET" | "POST" | "PATCH" | "DELETE";
  body?: unknown;
  /** Sent instead of the session's token. */
  token?: string;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Used instead of the browser's own. */
  fetch?: typeof fetch;
}

interface ErrorBody {
  error?: {
    code: string;
    message: string;
    hint?: string;
    detail?: string;
    sqlstate?: string;
    position?: number;
    statement_index?: number;
    retry_after_ms?: number;
    outcome?: Outcome;
    retryable?: boolean;
  };
  request_id?: string;
}

export const request = async <T>(url: string, wanted: Wanted = {}): Promise<T> => {
  const token = wanted.token ?? current().token;
  const headers: Record<string, string> = {
    Accept: "application/json",
    Authorization: `Bearer ${token}`,
    ...wanted.headers,
  };
  if (wanted.body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await (wanted.fetch ?? fetch)(url, {
      method: wanted.method ?? "GET",
      headers,
      body: wanted.body === undefined ? null : JSON.stringify(wanted.body),
      signal: wanted.signal ?? null,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (cause) {
    wanted.signal?.throwIfAborted();
    const message = `No response from ${new URL(url).host}.`;
    throw new PlainSQLError({ code: "network_error", message, outcome: "unknown", retryable: true, cause });
  }
  if (response.status === 204) return undefined as T;
  const answer = (await response.json().catch(() => ({}))) as ErrorBody;
  if (response.ok && !answer.error) return answer as T;
  if (response.status === 401 && wanted.token === undefined) end("refused", token);
  throw failure(response.status, answer);
};

export const failure = (status: number, { error, request_id: requestId }: ErrorBody): PlainSQLError =>
  new PlainSQLError({
    code: error?.code ?? "no_json",
    message: error?.message ?? `The response has status ${status} and no JSON.`,
    hint: error?.hint,
    detail: error?.detail,
    sqlstate: error?.sqlstate,
    position: error?.position,
    statementIndex: error?.statement_index,
    retryAfterMs: error?.retry_after_ms,
    retryable: error?.retryable ?? false,
    // Only the service knows.
    outcome: error ? error.outcome : "unknown",
    status,
    requestId,
  });

/** What to show of any failure. */
export const textOf = (error: unknown): string => {
  if (!(error instanceof PlainSQLError)) return String((error as Error | undefined)?.message ?? error);
  return [error.message, error.detail, error.hint].filter(Boolean).join(" ");
};

export const wasAborted = (error: unknown): boolean => (error as Error | undefined)?.name === "AbortError";
