/** Reads Server-Sent Events row by row. The next bytes are read only when the caller wants the next row. */

import { type ErrorFields, PlainSQLError } from "./errors.js";
import { camel } from "./names.js";
import type { Answer, ByteStream, Notice } from "./transport.js";

/** What a stream returns at its end, after its rows. */
export interface StreamEnd {
  rowCount: number;
  affectedRows: number;
  /** Whether there were more rows than `maxRows`. */
  truncated: boolean;
  notices?: Notice[];
}

// The service sends a comment every 15 s while it has no rows.
const SILENCE_MS = 60_000;

/** The rows of a stream, decoded by what `prepare` makes of the names and types of its columns. */
export async function* rows<R>(
  stream: ByteStream,
  prepare: (columns: Answer) => (row: unknown) => unknown,
  signal?: AbortSignal,
): AsyncGenerator<R, StreamEnd, void> {
  let decode: ((row: unknown) => unknown) | undefined;
  let cause: unknown;
  let end: StreamEnd | undefined;
  try {
    for await (const events of eventsOf(stream)) {
      for (const event of events) {
        if (event[0] === ":") continue; // A comment.
        const [kind, content] = parse(event);
        if (kind === "row") yield decode?.(content) as R;
        else if (kind === "columns") decode = prepare(content as Answer);
        // The rest of the response is read as well: then the connection can be used again.
        else if (kind === "done") end = camel(content) as unknown as StreamEnd;
        else throw new PlainSQLError(camel(content) as unknown as ErrorFields);
      }
    }
  } catch (error) {
    cause = error;
  }
  if (end) return end;
  throw failureOf(cause, signal);
}

// U+2028 and U+2029 are not escaped in JSON. A dot stands for them only with the flag `s`.
const parse = (event: string): [kind: string, content: object] => {
  const [, kind, data] = /^event: (\w+)\ndata: (.+)$/s.exec(event) ?? [];
  if (!kind || !data) throw new Error(`Not an event: ${event}`);
  return [kind, JSON.parse(data) as object];
};

const failureOf = (cause: unknown, signal?: AbortSignal): PlainSQLError => {
  if (cause instanceof PlainSQLError) return cause;
  signal?.throwIfAborted();
  const message = "The stream ended early: its rows so far are not the whole result.";
  return new PlainSQLError({ code: "stream_broken", message, retryable: true, cause });
};

/**
 * The events of a stream, as they arrive. Closes the connection at the end, and when it is left, so that the service
 * cancels the statement.
 */
async function* eventsOf({ body, close }: ByteStream): AsyncGenerator<string[], void, void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let last = "";
  try {
    for (;;) {
      const timer = setTimeout(close, SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      const more = decoder.decode(value, { stream: true });
      const hasEnd = (last + more).includes("\n\n");
      last = more.slice(-1) || last;
      text += more;
      // A long row comes in many chunks. Its text is looked at once.
      if (!hasEnd) continue;
      const events = text.split("\n\n");
      text = events.pop() as string;
      yield events;
    }
  } finally {
    close();
  }
}
