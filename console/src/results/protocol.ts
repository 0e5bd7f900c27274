/** What the page and the worker that receives a stream say to each other. */

import type { ErrorFields, Notice } from "plainsql";
import type { Row } from "../api/data.ts";

/** Rows that are kept, and asked for, together. */
export const CHUNK_ROWS = 500;

export interface StreamRequest {
  url: string;
  token: string;
  body: { sql: string; params: unknown[]; database?: string; read_only: boolean };
  /** The stream is stopped when it has more. */
  maxBytes: number;
}

export type ToWorker =
  | { kind: "start"; request: StreamRequest }
  | { kind: "cancel" }
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
  | { kind: "progress"; rows: number; bytes: number }
  | { kind: "rows"; chunk: number; rows: Row[] }
  | { kind: "done"; end: StreamEnd }
  | { kind: "stopped"; why: "cancelled" | "memory"; outcome?: ErrorFields["outcome"] }
  | { kind: "failed"; error: ErrorFields };
