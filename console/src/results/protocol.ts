/** What the page and the worker that receives a stream say to each other. */

import type { ErrorFields, Notice } from "plainsql";
import type { Row } from "../api/data.ts";
import type { Format } from "./formats.ts";

/** Rows that are kept, and asked for, together: so many, or fewer if they are large. */
export const CHUNK_ROWS = 500;
export const CHUNK_BYTES = 1_000_000;

export interface StreamRequest {
  url: string;
  token: string;
  body: { sql: string; params: unknown[]; database?: string; read_only: boolean };
  /** The stream is stopped when it has more. */
  maxBytes: number;
  /** The rows are written in this format, and not kept. */
  file?: { format: Format; table: readonly string[] };
}

export type ToWorker =
  | { kind: "start"; request: StreamRequest }
  | { kind: "cancel" }
  /** The page keeps as much as it can. */
  | { kind: "full" }
  | { kind: "chunk"; chunk: number };

export interface StreamEnd {
  rowCount: number;
  affectedRows: number;
  command: string;
  notices: Notice[];
  execUs: number;
}

export type FromWorker =
  | { kind: "columns"; columns: string[]; types: string[]; requestId: string; isBuffered: boolean }
  /** `starts`: the first rows of chunks that have begun since. */
  | { kind: "progress"; rows: number; bytes: number; starts: number[] }
  | { kind: "rows"; chunk: number; rows: Row[]; bytes: number }
  | { kind: "file"; content: Blob; rows: number }
  | { kind: "done"; end: StreamEnd }
  | { kind: "stopped"; why: "cancelled" | "memory"; outcome?: ErrorFields["outcome"] }
  | { kind: "failed"; error: ErrorFields };
