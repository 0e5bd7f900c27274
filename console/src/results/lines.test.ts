import { expect, it } from "vitest";
import { Lines } from "./lines.ts";

const bytes = (text: string) => new TextEncoder().encode(text);

it("keeps lines, however the bytes are cut", () => {
  const text = Array.from({ length: 23 }, (_, i) => `[${i},"ä\u{1f600}"]\n`).join("");
  const all = bytes(text);
  for (const size of [1, 7, 64, all.length]) {
    const lines = new Lines(5);
    for (let at = 0; at < all.length; at += size) lines.add(all.slice(at, at + size));
    expect(lines.count).toBe(23);
    expect([0, 1, 2, 3, 4].flatMap((chunk) => lines.chunk(chunk)).join("\n")).toBe(text.trimEnd());
    expect(lines.bytes).toBe(all.length);
  }
});

it("takes the last line away, also from a full chunk", () => {
  for (const rows of [1, 4, 5, 6]) {
    const lines = new Lines(5);
    lines.add(bytes(`${Array.from({ length: rows }, (_, i) => `[${i}]`).join("\n")}\n{"end":1}\n`));
    expect(lines.pop()).toBe('{"end":1}');
    expect(lines.count).toBe(rows);
    expect(lines.chunk(0).concat(lines.chunk(1))).toEqual(Array.from({ length: rows }, (_, i) => `[${i}]`));
  }
});

it("has no line before the first newline", () => {
  const lines = new Lines(5);
  lines.add(bytes("[1]"));
  expect(lines.count).toBe(0);
  expect(lines.pop()).toBeUndefined();
  expect(lines.chunk(0)).toEqual([]);
});
