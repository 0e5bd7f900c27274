/** Reads CSV in parts, so that a large file needs little memory. */

/** A record, and the line on which it begins. An empty field is null if it has no quotes. */
export interface CsvRecord {
  line: number;
  fields: (string | null)[];
}

/** What is wrong with a file, and where. */
export class FileError extends Error {
  override name = "FileError";
  readonly line: number | undefined;

  constructor(message: string, line?: number) {
    super(message);
    this.line = line;
  }
}

// A quote that is never closed would otherwise collect the rest of the file.
const RECORD_CHARACTERS_MAX = 4 << 20;

const QUOTE = 34;
const LF = 10;
const CR = 13;

/** Where the next character is: at a field's start, in one, in quotes, or after a quote in quotes. */
type Place = "start" | "field" | "quotes" | "quote";

export class CsvReader {
  readonly #delimiter: number;
  #place: Place = "start";
  #field = "";
  #isQuoted = false;
  #fields: (string | null)[] = [];
  #records: CsvRecord[] = [];
  #line = 1;
  #begin = 1;
  #size = 0;
  // The line feed after a carriage return belongs to it, and may come with the next part.
  #isAfterReturn = false;

  constructor(delimiter: string) {
    this.#delimiter = delimiter.charCodeAt(0);
  }

  /** The records that are complete with this part of the text. */
  push(text: string): CsvRecord[] {
    let from = 0;
    for (let at = 0; at < text.length; at += 1) {
      const character = text.charCodeAt(at);
      const isReturned = this.#isAfterReturn;
      this.#isAfterReturn = character === CR;
      if (this.#place === "quotes") {
        from = this.#readQuoted(text, from, at, isReturned);
      } else if (this.#place === "quote" && character === QUOTE) {
        this.#place = "quotes";
        from = at;
      } else if (character === LF && isReturned) {
        from = at + 1;
      } else if (character === this.#delimiter || character === LF || character === CR) {
        this.#endField(text.slice(from, at));
        from = at + 1;
        if (character !== this.#delimiter) this.#endRecord();
      } else if (this.#place === "start" && character === QUOTE) {
        this.#place = "quotes";
        this.#isQuoted = true;
        from = at + 1;
      } else if (this.#place === "quote") {
        throw new FileError("There is text after a field in quotes.", this.#line);
      } else this.#place = "field";
    }
    this.#field += text.slice(from);
    this.#limit(text.length);
    return this.#taken();
  }

  /** The last record, if the file does not end with a line end. */
  end(): CsvRecord[] {
    if (this.#place === "quotes") {
      throw new FileError("A quote in the record that begins here is not closed.", this.#begin);
    }
    if (this.#place !== "start" || this.#fields.length) {
      this.#endField("");
      this.#endRecord();
    }
    return this.#taken();
  }

  /** Where the part of the field begins that is not kept yet. */
  #readQuoted(text: string, from: number, at: number, isReturned: boolean): number {
    const character = text.charCodeAt(at);
    // A line end in quotes is a part of the value.
    if (character === CR || (character === LF && !isReturned)) this.#line += 1;
    if (character !== QUOTE) return from;
    this.#field += text.slice(from, at);
    this.#place = "quote";
    return at + 1;
  }

  #endField(rest: string): void {
    const text = this.#field + rest;
    this.#fields.push(text === "" && !this.#isQuoted ? null : text);
    this.#field = "";
    this.#isQuoted = false;
    this.#place = "start";
  }

  #endRecord(): void {
    this.#records.push({ line: this.#begin, fields: this.#fields });
    this.#fields = [];
    this.#line += 1;
    this.#begin = this.#line;
    this.#size = 0;
  }

  #limit(characters: number): void {
    if (this.#records.length) return;
    this.#size += characters;
    if (this.#size <= RECORD_CHARACTERS_MAX) return;
    throw new FileError("The record that begins here is larger than 4 MiB. Is a quote missing?", this.#begin);
  }

  #taken(): CsvRecord[] {
    const records = this.#records;
    this.#records = [];
    return records;
  }
}

/** A part of a file's records, and how many bytes were read until then. */
export interface CsvPart {
  records: CsvRecord[];
  bytes: number;
}

/** Reads a file, which must be in UTF-8, from its beginning to its end. */
export async function* csvParts(file: Blob, delimiter: string): AsyncGenerator<CsvPart, void, void> {
  const reader = new CsvReader(delimiter);
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const decode = (bytes: Uint8Array | undefined, line: () => number | undefined): string => {
    try {
      return bytes ? decoder.decode(bytes, { stream: true }) : decoder.decode();
    } catch {
      throw new FileError("The file is not in UTF-8 after this line.", line());
    }
  };
  let bytes = 0;
  let last: number | undefined;
  const stream = file.stream().getReader();
  try {
    for (;;) {
      const { done, value } = await stream.read();
      bytes += value?.byteLength ?? 0;
      const records = reader.push(decode(value, () => last));
      last = records.at(-1)?.line ?? last;
      yield { records, bytes };
      if (done) break;
    }
    yield { records: reader.end(), bytes };
  } finally {
    stream.cancel().catch(() => undefined);
  }
}

export const DELIMITERS = { ",": "comma", ";": "semicolon", "\t": "tab", "|": "bar" } as const;
export type Delimiter = keyof typeof DELIMITERS;

const SAMPLE_RECORDS = 1_000;

/** The first records of a file. */
export const sampleOf = (text: string, isWhole: boolean, delimiter: Delimiter): CsvRecord[] => {
  const reader = new CsvReader(delimiter);
  const records = reader.push(text);
  if (isWhole) records.push(...reader.end());
  return records.filter((record) => !isBlank(record)).slice(0, SAMPLE_RECORDS);
};

/** The delimiter that gives the first records the most fields, and all of them the same number. */
export const delimiterOf = (text: string, isWhole: boolean): Delimiter => {
  let best: Delimiter = ",";
  let most = 1;
  for (const each of Object.keys(DELIMITERS) as Delimiter[]) {
    try {
      const records = sampleOf(text, isWhole, each);
      const width = records[0]?.fields.length ?? 0;
      if (width > most && records.every(({ fields }) => fields.length === width)) [best, most] = [each, width];
    } catch {
      // With another one, the quotes may be right.
    }
  }
  return best;
};

/** Whether it is a line without content. */
export const isBlank = ({ fields }: CsvRecord): boolean => fields.length === 1 && fields[0] === null;
