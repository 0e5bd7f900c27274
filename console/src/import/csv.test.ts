import { expect, it } from "vitest";
import { CsvReader, type CsvRecord, csvParts, delimiterOf, type FileError, isBlank, sampleOf } from "./csv.ts";

const read = (text: string, parts = 1): CsvRecord[] => {
  const reader = new CsvReader(",");
  const records: CsvRecord[] = [];
  const step = Math.ceil(text.length / parts) || 1;
  for (let at = 0; at < text.length; at += step) records.push(...reader.push(text.slice(at, at + step)));
  return [...records, ...reader.end()];
};

const TEXT = 'a,"b ""q"", x",,""\r\n"two\r\nlines",é🏠,3,\n\n"last",1,2,3';
const RECORDS = [
  { line: 1, fields: ["a", 'b "q", x', null, ""] },
  { line: 2, fields: ["two\r\nlines", "é🏠", "3", null] },
  { line: 4, fields: [null] },
  { line: 5, fields: ["last", "1", "2", "3"] },
];

it("reads quotes, line ends and empty fields, however the text is cut", () => {
  for (let parts = 1; parts <= TEXT.length; parts += 1) expect(read(TEXT, parts)).toEqual(RECORDS);
  expect(RECORDS.map(isBlank)).toEqual([false, false, true, false]);
  expect(read("a\n")).toEqual([{ line: 1, fields: ["a"] }]);
  expect(read('a\n""')).toHaveLength(2);
  expect(read("a,\r")).toEqual([{ line: 1, fields: ["a", null] }]);
  expect(read('5" pipe,x')[0]?.fields).toEqual(['5" pipe', "x"]);
  expect(read("")).toEqual([]);
});

it("says on which line a quote is wrong", () => {
  const failure = (text: string) => {
    try {
      read(text);
    } catch (error) {
      return [(error as FileError).line, (error as FileError).message];
    }
    return undefined;
  };
  expect(failure('a\n"b"c\n')).toEqual([2, "There is text after a field in quotes."]);
  expect(failure('a\nb,"c\nd\n')?.[0]).toBe(2);
});

it("gives up a record that never ends", () => {
  const reader = new CsvReader(",");
  reader.push('a\n"');
  const part = "x".repeat(1 << 20);
  expect(() => {
    for (let i = 0; i < 6; i += 1) reader.push(part);
  }).toThrow(/larger than 4 MiB/);
});

it("reads a file in UTF-8 as a stream, and no other", async () => {
  const collect = async (content: BlobPart[]) => {
    const all: CsvRecord[] = [];
    let bytes = 0;
    for await (const part of csvParts(new Blob(content), ",")) {
      all.push(...part.records);
      bytes = part.bytes;
    }
    return { all, bytes };
  };
  expect(await collect(["\ufeff", TEXT])).toEqual({ all: RECORDS, bytes: new Blob(["\ufeff", TEXT]).size });
  await expect(collect(["a\n", new Uint8Array([0xe9, 0x0a])])).rejects.toThrow(/not in UTF-8/);
});

it("finds the delimiter", () => {
  expect(delimiterOf("a;b;c\n1,5;2;3\n", true)).toBe(";");
  expect(delimiterOf("a\tb\n1\t2\n", true)).toBe("\t");
  expect(delimiterOf('"a;b",c\n1,2\n', true)).toBe(",");
  expect(delimiterOf("one\n", true)).toBe(",");
  // The last record of the sample may be cut.
  expect(sampleOf("a,b\n1,2\n3", false, ",")).toHaveLength(2);
});
