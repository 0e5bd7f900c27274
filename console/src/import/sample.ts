/** What the beginning of a file says about its columns. */

import { distinct } from "../results/formats.ts";
import { type CsvRecord, type Delimiter, delimiterOf, sampleOf } from "./csv.ts";
import { type Guessed, typeOf } from "./types.ts";

const SAMPLE_BYTES = 1 << 20;
const SHOWN_VALUES = 3;
const SHOWN_CHARACTERS = 40;

export interface Sample {
  file: File;
  text: string;
  isWhole: boolean;
  delimiter: Delimiter;
  /** A name for a table. */
  name: string;
}

export const sampleOfFile = async (file: File): Promise<Sample> => {
  const isWhole = file.size <= SAMPLE_BYTES;
  const text = await file.slice(0, SAMPLE_BYTES).text();
  return { file, text, isWhole, delimiter: delimiterOf(text, isWhole), name: tableNameOf(file.name) };
};

export const tableNameOf = (fileName: string): string =>
  fileName
    .replace(/\.[^.]*$/, "")
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}_]+/gu, "_")
    .replaceAll(/^_+|_+$/g, "") || "imported";

export interface SampledField {
  /** What it is called in the form. */
  label: string;
  name: string;
  type: Guessed;
  values: (string | null)[];
}

export interface Sampled {
  fields: SampledField[];
  error?: unknown;
}

export const sampledOf = ({ text, isWhole }: Sample, delimiter: Delimiter, hasHeader: boolean): Sampled => {
  let records: CsvRecord[];
  try {
    records = sampleOf(text, isWhole, delimiter);
  } catch (error) {
    return { fields: [], error };
  }
  const [first, ...others] = records;
  if (!first) return { fields: [], error: new Error("The file has no complete record.") };
  const header = hasHeader ? first.fields : [];
  const rows = hasHeader ? others : records;
  const names = distinct(first.fields.map((_, i) => header[i]?.trim() || `column_${i + 1}`));
  const fields = names.map((name, i) => ({
    label: header[i] ?? `Field ${i + 1}`,
    name,
    type: typeOf(rows.map((row) => row.fields[i])),
    values: rows.slice(0, SHOWN_VALUES).map((row) => row.fields[i]?.slice(0, SHOWN_CHARACTERS) ?? null),
  }));
  return { fields };
};
