import { expect, it } from "vitest";
import { ALL, partOf, percentOf, sharesOf, sumsOf } from "./usage.ts";

const use = (day: string, database: string, requests: number, each = 10) => ({
  day,
  database,
  requests,
  rows: requests * each,
  bytes: requests * 1000,
  engine_us: requests * 2000,
});
const usage = [use("2026-11-01", "main", 100), use("2026-11-02", "main", 40), use("2026-11-02", "shop", 80, 30)];
const limits = { requests_per_minute: 1, result_rows: 100, result_bytes: 10_000, statement_timeout_ms: 1_000 };

it("sums by day and by database, the largest first", () => {
  const { days, databases } = sumsOf(usage as never, "2026-11-01", 3, "rows");
  expect(days.map(({ value }) => value)).toEqual([1000, 2800, 0]);
  expect(databases.map(({ name }) => name)).toEqual(["shop", "main"]);
});

it("compares the busiest day and an average request with the limits", () => {
  const [all, main, shop] = sharesOf(usage as never, limits);
  // Both databases on the second day: the limit is one for all.
  expect(all).toMatchObject({ name: ALL, requests: { value: 120, limit: 1440 } });
  expect(main).toMatchObject({ name: "main", requests: { value: 100 }, rows: { value: 10, limit: 100 } });
  expect(shop).toMatchObject({ rows: { value: 30 }, bytes: { value: 1000 }, engineMs: { value: 2, limit: 1000 } });
  expect(partOf(shop?.rows ?? { value: 0, limit: 1 })).toBe(0.3);
});

it("has no share of what has no limit, and none of nothing", () => {
  const [all] = sharesOf([], { ...limits, requests_per_minute: null });
  expect(all?.requests).toEqual({ value: 0, limit: null });
  expect(percentOf({ value: 5, limit: null })).toBe("");
  expect(partOf({ value: 5, limit: null })).toBe(0);
  expect([0, 0.05, 2.54, 55.5].map((value) => percentOf({ value, limit: 100 }))).toEqual([
    "0 %",
    "less than 0.1 %",
    "2.5 %",
    "56 %",
  ]);
});
