/** Reads what EXPLAIN (FORMAT JSON) returns: how long each node took by itself, how wrong its estimate was, and hints. */

export interface PlanNode {
  "Node Type": string;
  "Relation Name"?: string;
  Alias?: string;
  "Index Name"?: string;
  "Join Type"?: string;
  "Plan Rows": number;
  "Actual Rows"?: number;
  "Actual Loops"?: number;
  "Actual Total Time"?: number;
  "Total Cost": number;
  Filter?: string;
  "Index Cond"?: string;
  "Hash Cond"?: string;
  "Join Filter"?: string;
  "Sort Key"?: string[];
  "Sort Method"?: string;
  "Sort Space Type"?: string;
  "Sort Space Used"?: number;
  "Hash Batches"?: number;
  "Rows Removed by Filter"?: number;
  "Heap Fetches"?: number;
  "Shared Hit Blocks"?: number;
  "Shared Read Blocks"?: number;
  "Temp Written Blocks"?: number;
  "Workers Planned"?: number;
  "Workers Launched"?: number;
  Plans?: PlanNode[];
}

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
  /** In milliseconds, in all loops, without what is below it. */
  ownMs: number;
  totalMs: number;
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

const loopsOf = (node: PlanNode): number => node["Actual Loops"] ?? 1;
const totalOf = (node: PlanNode): number => (node["Actual Total Time"] ?? 0) * loopsOf(node);

const titleOf = (node: PlanNode): string => {
  const kind = node["Join Type"] && node["Join Type"] !== "Inner" ? ` (${node["Join Type"].toLowerCase()})` : "";
  const relation = node["Relation Name"];
  const alias = node.Alias && node.Alias !== relation ? ` ${node.Alias}` : "";
  const index = node["Index Name"] ? ` by ${node["Index Name"]}` : "";
  return `${node["Node Type"]}${kind}${relation ? ` on ${relation}${alias}` : ""}${index}`;
};

const detailsOf = (node: PlanNode): string[] => {
  const found: string[] = [];
  const add = (name: string, value: string | number | undefined) =>
    value !== undefined && found.push(`${name}: ${value}`);
  add("condition", node["Index Cond"] ?? node["Hash Cond"] ?? node["Join Filter"]);
  add("filter", node.Filter);
  add("removed by the filter", node["Rows Removed by Filter"]);
  add("sorted by", node["Sort Key"]?.join(", "));
  if (loopsOf(node) > 1) add("loops", loopsOf(node));
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

/** All nodes from the top. The worst is the one that took most time by itself. */
export const nodesOf = ({ Plan }: Explained): Node[] => {
  const found: Node[] = [];
  const visit = (node: PlanNode, depth: number) => {
    const below = node.Plans ?? [];
    const totalMs = totalOf(node);
    const rows = (node["Actual Rows"] ?? 0) * loopsOf(node);
    const expected = node["Plan Rows"] * loopsOf(node);
    const [more, less] = [Math.max(rows, expected, 1), Math.max(1, Math.min(rows, expected))];
    const factor = node["Actual Rows"] === undefined ? 1 : more / less;
    found.push({
      key: String(found.length),
      depth,
      title: titleOf(node),
      details: detailsOf(node),
      ownMs: Math.max(0, totalMs - below.reduce((sum, each) => sum + totalOf(each), 0)),
      totalMs,
      rows,
      expected,
      factor,
      hints: hintsOf(node, factor, rows),
      isWorst: false,
    });
    for (const each of below) visit(each, depth + 1);
  };
  visit(Plan, 0);
  const worst = found.reduce((a, b) => (b.ownMs > a.ownMs ? b : a));
  worst.isWorst = worst.ownMs > 0;
  return found;
};
