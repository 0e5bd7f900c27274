// Plans of PostgreSQL 15, as it made them, without the fields that are not read.
import { expect, it } from "vitest";
import { type Explained, type Node, nodesOf } from "./plan.ts";
import plans from "./plans.json";
import type { PlanNode } from "./times.ts";

const of = (name: keyof typeof plans): Node[] => nodesOf(plans[name] as unknown as Explained);
const worst = (name: keyof typeof plans) => of(name).find(({ isWorst }) => isWorst)?.title;
const node = (name: keyof typeof plans, title: string) => of(name).find((each) => each.title === title);
const names = Object.keys(plans) as (keyof typeof plans)[];

it.each(names)("shares out the time of the plan %s, none of it twice", (name) => {
  const nodes = of(name);
  const sum = nodes.reduce((all, { ownMs }) => all + ownMs, 0);
  expect(sum / (nodes[0]?.totalMs ?? 0)).toBeCloseTo(1, 1);
});

it("takes the average of processes that run at the same time, not their sum", () => {
  // Three processes scan for a third of a second each. Then one process sorts for longer, but not for a second.
  expect(worst("gather")).toBe("Aggregate");
  const scan = node("gather", "Seq Scan on sales");
  expect(scan?.processes).toBe(3);
  expect(scan?.details).toContain("processes: 3");
  expect(scan?.rows).toBe(3 * 46_858);
});

it("does not take the time of a CTE for that of a node that scans it", () => {
  expect(worst("cte")).toBe("CTE totals: Aggregate");
  expect(node("cte", "CTE Scan on totals a")?.ownMs).toBeLessThan(5);
  // What stands above the CTE has not waited for it.
  expect(node("cte", "Sort")?.ownMs).toBeCloseTo(290.277 - 287.513);
});

it("does not take the time of an InitPlan for that of the node that needs its value", () => {
  expect(worst("init")).toBe("InitPlan 1 (returns $0): Aggregate");
  expect(node("init", "Seq Scan on sales")?.totalMs).toBeGreaterThan(700);
  expect(node("init", "Seq Scan on sales")?.ownMs).toBeLessThan(100);
});

it("knows that a Gather evaluates what its processes need", () => {
  const last = of("gather_init").filter(({ title }) => title === "Gather")[1];
  expect(last?.totalMs).toBeCloseTo(304.912);
  expect(last?.ownMs).toBeCloseTo(304.912 - 96.289 - 143.586);
});

it("knows it also if one of the processes' nodes takes longer than the value", () => {
  const slower = JSON.parse(JSON.stringify(plans.gather_init)) as Explained;
  // The way from the top to the scan, as if its filter took a second more.
  for (let at: PlanNode | undefined = slower.Plan; at; at = at.Plans?.at(-1)) {
    at["Actual Total Time"] = (at["Actual Total Time"] ?? 0) + 1_000;
  }
  const gather = nodesOf(slower).filter(({ title }) => title === "Gather")[1];
  expect(gather?.ownMs).toBeCloseTo(304.912 - 96.289 - 143.586);
});

it("says of a node that it never ran, and takes no time for it", () => {
  const init = node("never", "InitPlan 1 (returns $0): Aggregate");
  expect([init?.details, init?.totalMs, init?.factor, init?.isWorst]).toEqual([["never executed"], 0, 1, false]);
});

it("takes the time of a subquery in all its loops off the node that has it", () => {
  expect(worst("subplan")).toBe("Seq Scan on sales s");
  expect(node("subplan", "Seq Scan on regions r")?.ownMs).toBeLessThan(1);
});
