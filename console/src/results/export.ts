/** Writes results to a file, in parts, so that a large one needs no large text. */

import { EXTENSIONS, type Format, type Shape, writerOf } from "./formats.ts";
import type { Rows } from "./rows.ts";

// However large they are, these fit into memory.
const PART_ROWS = 500;
const TYPES: Record<Format, string> = {
  CSV: "text/csv",
  "CSV for spreadsheets": "text/csv",
  JSON: "application/json",
  Markdown: "text/markdown",
  INSERT: "application/sql",
};

/** Saves what there is of the rows now. How many it saved. */
export const save = async (format: Format, shape: Shape, rows: Rows, name: string): Promise<number> => {
  const writer = writerOf(format, shape);
  const parts: Blob[] = [new Blob([writer.head])];
  const { count } = rows;
  let written = 0;
  while (written < count) {
    const part = await rows.read(written, Math.min(count, written + PART_ROWS));
    if (part.length === 0) break;
    parts.push(new Blob([writer.rows(part, written === 0)]));
    written += part.length;
  }
  parts.push(new Blob([writer.tail]));
  saveAs(format, new Blob(parts), name);
  return written;
};

export const saveAs = (format: Format, content: Blob, name: string): void =>
  download(new Blob([content], { type: TYPES[format] }), `${name}.${EXTENSIONS[format]}`);

export const download = (content: Blob, name: string): void => {
  const url = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
};
