/** Makes batches of rows from a file: each is one request. */

import { type CsvRecord, csvParts, type Delimiter, FileError, isBlank } from "./csv.ts";
import { type ImportColumn, type ImportRow, isText } from "./stage.ts";

export interface Batch {
  rows: ImportRow[];
  /** How many bytes of the file are in it and those before. */
  bytes: number;
  /** Whether the file ends with it. Only this says so: a file that can't be read further just stops. */
  isLast: boolean;
}

export interface Reading {
  delimiter: Delimiter;
  hasHeader: boolean;
  /** How many fields each record must have. */
  width: number;
  columns: readonly ImportColumn[];
  /** Whether an empty field without quotes is an empty text, where that is possible, and not NULL. */
  isEmptyText: boolean;
}

const BATCH_ROWS = 5_000;
// The smallest limit on a request is 4 MiB, and a character may need several bytes.
const BATCH_CHARACTERS = 1 << 19;

export async function* batchesOf(file: Blob, reading: Reading): AsyncGenerator<Batch, void, void> {
  let rows: ImportRow[] = [];
  let characters = 0;
  let read = 0;
  let isHeader = reading.hasHeader;
  for await (const { records, bytes } of csvParts(file, reading.delimiter)) {
    for (const [i, record] of records.entries()) {
      if (reading.width > 1 && isBlank(record)) continue;
      if (isHeader) {
        isHeader = false;
        continue;
      }
      const row = rowOf(record, reading);
      rows.push(row);
      for (const value of row.values) characters += (value?.length ?? 0) + 4;
      if (rows.length < BATCH_ROWS && characters < BATCH_CHARACTERS) continue;
      // About: records are of different sizes.
      yield { rows, bytes: read + Math.round(((bytes - read) * (i + 1)) / records.length), isLast: false };
      rows = [];
      characters = 0;
    }
    read = bytes;
  }
  yield { rows, bytes: read, isLast: true };
}

export const rowOf = ({ line, fields }: CsvRecord, { width, columns, isEmptyText }: Reading): ImportRow => {
  if (fields.length !== width) {
    throw new FileError(`The record has ${fields.length} fields, but the first one has ${width}.`, line);
  }
  const values = columns.map(({ index, type }) => {
    const value = fields[index] ?? null;
    if (!isText(type)) return value === "" ? null : value;
    return value === null && isEmptyText ? "" : value;
  });
  return { line, values };
};
