import { expect, it } from "vitest";
import { nodesOf } from "./plan.ts";
import type { PlanNode } from "./times.ts";

const scan: PlanNode = {
  "Node Type": "Seq Scan",
  "Relation Name": "notes",
  Alias: "n",
  "Plan Rows": 10,
  "Actual Rows": 5,
  "Actual Loops": 2,
  "Actual Total Time": 40,
  "Total Cost": 100,
  Filter: "(body = 'x')",
  "Rows Removed by Filter": 50_000,
};

it("finds the node that took most time by itself, and says why", () => {
  const plan: PlanNode = {
    "Node Type": "Sort",
    "Plan Rows": 20_000,
    "Actual Rows": 10,
    "Actual Loops": 1,
    "Actual Total Time": 90,
    "Total Cost": 120,
    "Sort Space Type": "Disk",
    "Sort Space Used": 512,
    Plans: [scan],
  };
  const [sort, below] = nodesOf({ Plan: plan });
  expect([sort?.ownMs, below?.ownMs]).toEqual([10, 80]);
  expect([sort?.isWorst, below?.isWorst]).toEqual([false, true]);
  expect(sort?.factor).toBe(2000);
  expect(sort?.hints).toHaveLength(2);
  expect(below?.title).toBe("Seq Scan on notes n");
  expect([below?.rows, below?.expected]).toEqual([10, 20]);
  expect(below?.hints[0]).toContain("An index for the filter");
});

it("reads a plan that was not executed", () => {
  const [node] = nodesOf({ Plan: { "Node Type": "Result", "Plan Rows": 1, "Total Cost": 0.01 } });
  expect([node?.factor, node?.ownMs, node?.isWorst]).toEqual([1, 0, false]);
});
