/**
 * Receives one stream and keeps its rows. The page asks for the rows that it shows, so that it has work for these only,
 * however many there are.
 */

import type { ErrorFields } from "plainsql";
import type { Row } from "../api/data.ts";
import { rowOf } from "../api/exact.ts";
import { type Writer, writerOf } from "./formats.ts";
import { Lines } from "./lines.ts";
import { CHUNK_BYTES, CHUNK_ROWS, type FromWorker, type StreamRequest, type ToWorker } from "./protocol.ts";

const PROGRESS_MS = 50;
const NEWLINE = 10;

interface ErrorLine {
  code: string;
  message: string;
  [field: string]: unknown;
}

const lines = new Lines(CHUNK_ROWS, CHUNK_BYTES);
const controller = new AbortController();
// A chunk whose last rows are still to come is sent again when it is complete.
const waiting = new Set<number>();

const say = (message: FromWorker) => postMessage(message);

addEventListener("message", ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === "start") receive(data.request).catch(sayFailure);
  else if (data.kind === "cancel" || data.kind === "full") stop(data.kind);
  else sendChunk(data.chunk);
});

let why: "cancelled" | "memory" = "cancelled";

const stop = (kind: "cancel" | "full") => {
  if (controller.signal.aborted) return;
  if (kind === "full") why = "memory";
  controller.abort();
};

const sendChunk = (chunk: number) => {
  if (!isComplete(chunk)) waiting.add(chunk);
  say({ kind: "rows", chunk, rows: rowsOf(lines.chunk(chunk)), bytes: lines.bytesOf(chunk) });
};

const isComplete = (chunk: number): boolean => chunk < lines.starts.length - 1;

// The end of the stream may be among them, until it is found out that it is the end.
const rowsOf = (texts: readonly string[]): Row[] =>
  texts.flatMap((line) => (line.startsWith("{") ? [] : [rowOf(line, columnTypes)]));

/** A file that is written while the rows arrive. The browser keeps its parts on the disk if they are large. */
let file: { writer: Writer; parts: Blob[]; rows: number } | undefined;

const write = (texts: readonly string[]) => {
  if (!file) return;
  const rows = rowsOf(texts);
  file.parts.push(new Blob([file.writer.rows(rows, file.rows === 0)]));
  file.rows += rows.length;
};

const finishFile = () => {
  if (!file) return;
  for (const texts of lines.rest()) write(texts);
  const { writer, parts, rows } = file;
  say({ kind: "file", content: new Blob([writer.head, ...parts, writer.tail]), rows });
};

let columnTypes: string[] = [];

/** What has become of the statement if the rest of the stream does not come. */
let outcome: ErrorFields["outcome"] = "unknown";

const receive = async ({ url, token, body, maxBytes, file: wanted }: StreamRequest): Promise<void> => {
  if (body.read_only) outcome = undefined;
  const response = await fetch(`${url}/v1/query`, {
    method: "POST",
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json", Accept: "application/x-ndjson" },
    body: JSON.stringify({ ...body, row_format: "array", big_numbers: "string" }),
    signal: controller.signal,
    cache: "no-store",
    credentials: "omit",
  });
  const isStream = response.headers.get("content-type")?.includes("ndjson");
  if (!isStream || !response.body) {
    const answer = (await response.json().catch(() => ({}))) as { error?: ErrorLine; request_id?: string };
    return sayError(answer.error, response.status, answer.request_id);
  }
  const reader = response.body.getReader();
  const columns = await takeColumns(reader);
  if (wanted) {
    const shape = { columns, types: columnTypes, table: wanted.table };
    file = { writer: writerOf(wanted.format, shape), parts: [], rows: 0 };
  }
  let shownMs = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return finish();
    lines.add(value);
    if (file) for (let texts = lines.shift(); texts; texts = lines.shift()) write(texts);
    else if (lines.bytes > maxBytes) {
      controller.abort();
      progress();
      return say({ kind: "stopped", why: "memory", outcome });
    }
    // The first rows at once.
    if (performance.now() - shownMs > PROGRESS_MS) {
      progress();
      shownMs = performance.now();
    }
  }
};

/** Reads until the first line is here: the columns. */
const takeColumns = async (reader: ReadableStreamDefaultReader<Uint8Array>): Promise<string[]> => {
  let head = new Uint8Array();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The stream ended before its columns.");
    const both = new Uint8Array(head.length + value.length);
    both.set(head);
    both.set(value, head.length);
    head = both;
    const end = head.indexOf(NEWLINE);
    if (end < 0) continue;
    const first = JSON.parse(new TextDecoder().decode(head.subarray(0, end)));
    const { columns, types, request_id: requestId, buffered = false } = first;
    // A write is committed before its rows are sent; what is not buffered is only read.
    outcome = buffered ? "committed" : undefined;
    columnTypes = types;
    say({ kind: "columns", columns, types, requestId, isBuffered: buffered });
    if (end + 1 < head.length) lines.add(head.slice(end + 1));
    return columns;
  }
};

let startsSaid = 0;

const progress = () => {
  say({ kind: "progress", rows: lines.count, bytes: lines.bytes, starts: lines.starts.slice(startsSaid) });
  startsSaid = lines.starts.length;
  for (const chunk of waiting) {
    if (!isComplete(chunk)) continue;
    waiting.delete(chunk);
    sendChunk(chunk);
  }
};

/** The last line says how the stream ended. Rows are arrays, so it can't be mistaken for one. */
const finish = () => {
  const last = lines.pop();
  const end = last?.startsWith("{") ? JSON.parse(last) : undefined;
  progress();
  for (const chunk of waiting) sendChunk(chunk);
  waiting.clear();
  if (!end)
    return sayError({ code: "stream_broken", message: "The stream ended early: rows are missing.", outcome }, 0);
  if (!end.success) return sayError(end.error ?? end, 0, end.request_id);
  finishFile();
  const { row_count: rowCount, affected_rows: affectedRows, command, notices = [], timings } = end;
  say({ kind: "done", end: { rowCount, affectedRows, command, notices, execUs: timings.exec_us } });
};

const sayFailure = (cause: unknown) => {
  progress();
  if (controller.signal.aborted) return say({ kind: "stopped", why, outcome });
  sayError({ code: "network_error", message: `The connection broke: ${(cause as Error).message}.`, outcome }, 0);
};

const sayError = (error: ErrorLine | undefined, status: number, requestId?: string) => {
  const { statement_index: _, retry_after_ms: __, docs: ___, ...fields } = error ?? ({} as Partial<ErrorLine>);
  const unknown = error ? {} : { outcome };
  const nothing = { code: "no_json", message: `The response has status ${status} and no JSON.` };
  say({ kind: "failed", error: { ...nothing, ...unknown, ...fields, status, requestId } });
};
