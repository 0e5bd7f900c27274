/**
 * Keeps the lines of a stream as the bytes in which they came, in chunks that have at most so many lines, and no more
 * lines after so many bytes. A line is parsed when someone looks at it.
 */

const NEWLINE = 10;

export class Lines {
  /** How many complete lines there are. */
  count = 0;
  /** The bytes of all lines. */
  bytes = 0;
  /** The number of the first line of each chunk. */
  readonly starts: number[] = [0];
  readonly #linesMax: number;
  readonly #bytesMax: number;
  readonly #chunks: Uint8Array[] = [];
  #parts: Uint8Array[] = [];
  #inChunk = 0;
  #bytesInChunk = 0;

  constructor(linesMax: number, bytesMax: number) {
    this.#linesMax = linesMax;
    this.#bytesMax = bytesMax;
  }

  /** Adds bytes, which may end within a line. */
  add(bytes: Uint8Array): void {
    this.bytes += bytes.length;
    let start = 0;
    for (let at = bytes.indexOf(NEWLINE); at >= 0; at = bytes.indexOf(NEWLINE, at + 1)) {
      this.count += 1;
      this.#inChunk += 1;
      if (this.#inChunk < this.#linesMax && this.#bytesInChunk + at - start < this.#bytesMax) continue;
      this.#parts.push(bytes.slice(start, at + 1));
      this.#close();
      start = at + 1;
    }
    if (start < bytes.length) this.#parts.push(start ? bytes.slice(start) : bytes);
    this.#bytesInChunk += bytes.length - start;
  }

  /** The bytes of a chunk. */
  bytesOf(index: number): number {
    return this.#chunks[index]?.length ?? this.#bytesInChunk;
  }

  /** Takes the first chunk away, unless it is the last one. Its lines still count. */
  shift(): string[] | undefined {
    return this.#chunks.length > 1 ? textLines(this.#chunks.shift() as Uint8Array) : undefined;
  }

  /** Takes all lines away that are left. */
  *rest(): Generator<string[]> {
    for (const chunk of this.#chunks.splice(0)) yield textLines(chunk);
    yield textLines(joined(this.#parts.splice(0)));
  }

  /** The complete lines of a chunk. */
  chunk(index: number): string[] {
    if (index > this.#chunks.length) return [];
    return textLines(this.#chunks[index] ?? joined(this.#parts));
  }

  /** Takes the last line away, which is the end of a stream. Undefined if there is none. */
  pop(): string | undefined {
    if (this.count === 0) return undefined;
    if (this.#inChunk === 0) {
      const last = this.#chunks.pop();
      this.#parts = last ? [last] : [];
      this.starts.pop();
      this.#inChunk = this.count - (this.starts.at(-1) ?? 0);
      this.#bytesInChunk = last?.length ?? 0;
    }
    const bytes = joined(this.#parts);
    const end = bytes.lastIndexOf(NEWLINE);
    const before = end > 0 ? bytes.lastIndexOf(NEWLINE, end - 1) + 1 : 0;
    this.#parts = before ? [bytes.slice(0, before)] : [];
    this.#bytesInChunk = before;
    this.#inChunk -= 1;
    this.count -= 1;
    return new TextDecoder().decode(bytes.subarray(before, end));
  }

  #close(): void {
    this.#chunks.push(joined(this.#parts));
    this.#parts = [];
    this.#inChunk = 0;
    this.#bytesInChunk = 0;
    this.starts.push(this.count);
  }
}

const textLines = (bytes: Uint8Array): string[] => {
  const lines = new TextDecoder().decode(bytes).split("\n");
  // What is after the last newline is no line yet.
  lines.pop();
  return lines;
};

const joined = (parts: Uint8Array[]): Uint8Array => {
  if (parts.length === 1) return parts[0] as Uint8Array;
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
};
