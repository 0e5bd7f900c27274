import { expect, it } from "vitest";
import { firstRows, rowsInMemory } from "./rows.ts";

const many = rowsInMemory(Array.from({ length: 1_000 }, (_, i) => [i, "x".repeat(100), null]));

it("takes rows up to a number of them, or of their bytes", async () => {
  expect(await firstRows(many, 70, 1e6)).toHaveLength(70);
  expect(await firstRows(many, 5_000, 1e6)).toHaveLength(1_000);
  const few = await firstRows(many, 5_000, 10_900);
  expect(few).toHaveLength(100);
  expect(few[99]?.[0]).toBe(99);
});

it("takes a row that is larger than the limit if it is the first one", async () => {
  expect(await firstRows(many, 10, 1)).toHaveLength(1);
  const nested = rowsInMemory([[["x".repeat(60), ["x".repeat(60)]]], [new Uint8Array(90)], ["x"]]);
  expect(await firstRows(nested, 3, 100)).toHaveLength(1);
});

it("reads a part at a time", async () => {
  const asked: [number, number][] = [];
  const read = (start: number, end: number) => {
    asked.push([start, end]);
    return many.read(start, end);
  };
  await firstRows({ ...many, read }, 5_000, 10_900);
  expect(asked).toEqual([
    [0, 50],
    [50, 100],
    [100, 150],
  ]);
});
