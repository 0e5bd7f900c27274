/** Reads what EXPLAIN (FORMAT JSON) returns: how long each node took by itself, how wrong its estimate was, and hints. */

import { loopsOf, type PlanNode, type Timed, timesOf } from "./times.ts";

export interface Explained {
  Plan: PlanNode;
  "Planning Time"?: number;
  "Execution Time"?: number;
}

export interface Node {
  key: string;
  depth: number;
  title: string;
  details: string[];
  /** In milliseconds, in all loops, without what is below it. Of parallel processes, the average. */
  ownMs: number;
  totalMs: number;
  /** How many processes ran it. */
  processes: number;
  rows: number;
  /** How many rows were expected, in all loops. */
  expected: number;
  /** How many times more or fewer there were; at least 1. */
  factor: number;
  hints: string[];
  isWorst: boolean;
}

const WRONG_FACTOR = 10;
const MANY_ROWS = 1_000;

const titleOf = (node: PlanNode): string => {
  const kind = node["Join Type"] && node["Join Type"] !== "Inner" ? ` (${node["Join Type"].toLowerCase()})` : "";
  const relation = node["Relation Name"] ?? node["CTE Name"];
  const alias = node.Alias && node.Alias !== relation ? ` ${node.Alias}` : "";
  const index = node["Index Name"] ? ` by ${node["Index Name"]}` : "";
  const part = node["Subplan Name"] ? `${node["Subplan Name"]}: ` : "";
  return `${part}${node["Node Type"]}${kind}${relation ? ` on ${relation}${alias}` : ""}${index}`;
};

const detailsOf = (node: PlanNode, processes: number): string[] => {
  const found: string[] = [];
  const add = (name: string, value: string | number | undefined) =>
    value !== undefined && found.push(`${name}: ${value}`);
  add("condition", node["Index Cond"] ?? node["Hash Cond"] ?? node["Join Filter"]);
  add("filter", node.Filter);
  add("removed by the filter", node["Rows Removed by Filter"]);
  add("sorted by", node["Sort Key"]?.join(", "));
  if (loopsOf(node) === 0) found.push("never executed");
  if (processes > 1) add("processes", processes);
  if (loopsOf(node) > processes) add("loops", loopsOf(node));
  const read = node["Shared Read Blocks"];
  if (read || node["Shared Hit Blocks"]) {
    found.push(`blocks: ${node["Shared Hit Blocks"] ?? 0} cached, ${read ?? 0} read`);
  }
  return found;
};

const hintsOf = (node: PlanNode, factor: number, rows: number): string[] => {
  const hints: string[] = [];
  const removed = (node["Rows Removed by Filter"] ?? 0) * loopsOf(node);
  if (node["Node Type"] === "Seq Scan" && removed > MANY_ROWS && removed > 10 * rows) {
    hints.push(
      `It reads all of ${node["Relation Name"]} and drops most of it. An index for the filter would avoid that.`,
    );
  }
  if (node["Sort Space Type"] === "Disk") {
    hints.push(
      `The sort did not fit into memory and used ${node["Sort Space Used"]} kB of disk. Sort fewer rows or columns.`,
    );
  }
  if ((node["Hash Batches"] ?? 1) > 1)
    hints.push("The hash table did not fit into memory and was written to disk in parts.");
  if (node["Node Type"] === "Index Only Scan" && (node["Heap Fetches"] ?? 0) > MANY_ROWS) {
    hints.push("Many rows had to be looked up in the table after all. VACUUM makes this rarer.");
  }
  if (node["Node Type"] === "Nested Loop" && loopsOf(node.Plans?.[1] ?? node) > 10_000) {
    hints.push(`The inner side ran ${loopsOf(node.Plans?.[1] ?? node)} times.`);
  }
  if (factor >= WRONG_FACTOR && Math.max(rows, node["Plan Rows"]) >= MANY_ROWS) {
    hints.push(`The estimate is wrong by a factor of ${Math.round(factor)}. ANALYZE updates the statistics.`);
  }
  if ((node["Workers Planned"] ?? 0) > (node["Workers Launched"] ?? node["Workers Planned"] ?? 0)) {
    hints.push("Fewer parallel workers were started than planned.");
  }
  return hints;
};

const nodeOf = ({ node, depth, processes, totalMs, ownMs }: Timed, key: string): Node => {
  const rows = (node["Actual Rows"] ?? 0) * loopsOf(node);
  const expected = node["Plan Rows"] * loopsOf(node);
  const [more, less] = [Math.max(rows, expected, 1), Math.max(1, Math.min(rows, expected))];
  const factor = node["Actual Rows"] === undefined ? 1 : more / less;
  return {
    key,
    depth,
    title: titleOf(node),
    details: detailsOf(node, Math.round(processes)),
    ownMs: Math.max(0, ownMs),
    totalMs,
    processes: Math.round(processes),
    rows,
    expected,
    factor,
    hints: hintsOf(node, factor, rows),
    isWorst: false,
  };
};

/** All nodes from the top. The worst is the one that took most time by itself. */
export const nodesOf = ({ Plan }: Explained): Node[] => {
  const found = timesOf(Plan).map((each, i) => nodeOf(each, String(i)));
  const worst = found.reduce((a, b) => (b.ownMs > a.ownMs ? b : a));
  worst.isWorst = worst.ownMs > 0;
  return found;
};
