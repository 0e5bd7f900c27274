/** Writes results to a file, in parts, so that a large one needs no large text. */

import { EXTENSIONS, type Format, type Shape, writerOf } from "./formats.ts";
import type { Rows } from "./rows.ts";

const PART_ROWS = 5_000;
const TYPES: Record<Format, string> = {
  CSV: "text/csv",
  JSON: "application/json",
  Markdown: "text/markdown",
  INSERT: "application/sql",
};

export const save = async (format: Format, shape: Shape, rows: Rows, name: string): Promise<void> => {
  const writer = writerOf(format, shape);
  const parts: Blob[] = [new Blob([writer.head])];
  const { count } = rows;
  for (let at = 0; at < count; at += PART_ROWS) {
    parts.push(new Blob([writer.rows(await rows.read(at, Math.min(count, at + PART_ROWS)), at === 0)]));
  }
  parts.push(new Blob([writer.tail]));
  download(new Blob(parts, { type: TYPES[format] }), `${name}.${EXTENSIONS[format]}`);
};

export const download = (content: Blob, name: string): void => {
  const url = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
};
