import { expect, it } from "vitest";
import { guess, histogram, summaryOf, valuesOf } from "./chart.ts";

it("guesses what is drawn", () => {
  expect(guess(["text", "jsonb"])).toBeUndefined();
  expect(guess(["int8", "timestamptz", "text"])).toEqual({ kind: "line", x: 1, ys: [0] });
  expect(guess(["text", "int8", "numeric"])).toEqual({ kind: "bar", x: 0, ys: [1, 2] });
  expect(guess(["float8"])).toEqual({ kind: "histogram", x: 0, ys: [0] });
  expect(guess(["int4", "int4"])).toEqual({ kind: "line", x: 0, ys: [1] });
});

it("reads numbers, times and texts", () => {
  expect(valuesOf([["1234567890.5"], [null], ["NaN"]], 0, "numeric")).toEqual([1234567890.5, null, null]);
  expect(valuesOf([["1970-01-02"], ["infinity"]], 0, "date")).toEqual([86400, null]);
  expect(valuesOf([["1970-01-01T00:00:01"]], 0, "timestamp")).toEqual([1]);
  expect(valuesOf([["a"], ["b"]], 0, "text")).toEqual([0, 1]);
});

it("counts every value once", () => {
  const { xs, counts } = histogram([0, 1, 2, 3, null, 9, 10], 5);
  expect(counts).toEqual([2, 2, 0, 0, 2]);
  expect(xs).toEqual([1, 3, 5, 7, 9]);
  expect(histogram([4, 4]).counts).toEqual([2]);
  expect(histogram([]).counts).toEqual([]);
});

it("says in words what a chart shows", () => {
  const rows = [
    ["2026-01-01", "5", 1.25],
    ["2026-01-02", null, 1.25],
    ["2026-01-03", "12345", 1.25],
  ];
  const types = ["date", "int8", "float8"];
  const columns = ["day", "total", "rate"];
  expect(summaryOf(rows, columns, types, { kind: "line", x: 0, ys: [1, 2] })).toBe(
    "total: 2 values, from 5 to 12,345. rate: 3 values, all 1.25. By day, 2026-01-01 in the first row and 2026-01-03 in the last.",
  );
  expect(summaryOf([], columns, types, { kind: "histogram", x: 0, ys: [1] })).toBe("total: 0 values.");
});
