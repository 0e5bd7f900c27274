import { expect, it } from "vitest";
import { Lines } from "./lines.ts";

const bytes = (text: string) => new TextEncoder().encode(text);

it("keeps lines, however the bytes are cut", () => {
  const text = Array.from({ length: 23 }, (_, i) => `[${i},"ä\u{1f600}"]\n`).join("");
  const all = bytes(text);
  for (const size of [1, 7, 64, all.length]) {
    const lines = new Lines(5, 1_000);
    for (let at = 0; at < all.length; at += size) lines.add(all.slice(at, at + size));
    expect(lines.count).toBe(23);
    expect([0, 1, 2, 3, 4].flatMap((chunk) => lines.chunk(chunk)).join("\n")).toBe(text.trimEnd());
    expect(lines.bytes).toBe(all.length);
  }
});

it("takes the last line away, also from a full chunk", () => {
  for (const rows of [1, 4, 5, 6]) {
    const lines = new Lines(5, 1_000);
    lines.add(bytes(`${Array.from({ length: rows }, (_, i) => `[${i}]`).join("\n")}\n{"end":1}\n`));
    expect(lines.pop()).toBe('{"end":1}');
    expect(lines.count).toBe(rows);
    expect(lines.chunk(0).concat(lines.chunk(1))).toEqual(Array.from({ length: rows }, (_, i) => `[${i}]`));
  }
});

it("begins another chunk after so many bytes", () => {
  const lines = new Lines(5, 10);
  for (const part of ['["', 'a long one"]\n[1]', "\n[2]\n", "[3]\n[4]\n{}\n"]) lines.add(bytes(part));
  expect(lines.starts).toEqual([0, 1, 4]);
  expect([0, 1, 2].map((chunk) => lines.chunk(chunk).length)).toEqual([1, 3, 2]);
  expect([0, 1, 2].map((chunk) => lines.bytesOf(chunk))).toEqual([15, 12, 7]);
});

it("gives its lines up when they are taken", () => {
  const lines = new Lines(2, 1_000);
  lines.add(bytes("[1]\n[2]\n[3]\n[4]\n{}\n"));
  expect(lines.shift()).toEqual(["[1]", "[2]"]);
  // It may have the end.
  expect(lines.shift()).toBeUndefined();
  expect(lines.pop()).toBe("{}");
  expect([...lines.rest()].flat()).toEqual(["[3]", "[4]"]);
  expect([...lines.rest()].flat()).toEqual([]);
});

it("has no line before the first newline", () => {
  const lines = new Lines(5, 1_000);
  lines.add(bytes("[1]"));
  expect(lines.count).toBe(0);
  expect(lines.pop()).toBeUndefined();
  expect(lines.chunk(0)).toEqual([]);
});
