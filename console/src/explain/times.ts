/**
 * How long each node of a plan took by itself. PostgreSQL measures a node with all that runs within it, so the time of
 * what runs within it is taken off. Most of that is what stands below it, but there are three exceptions:
 *
 * - Below a Gather, a time is the average of all loops in all processes. The processes run at the same time, so what a
 *   node adds to the duration is the average of the processes, not their sum.
 * - A CTE stands below the top of its query, but runs within the nodes that scan it, in parts.
 * - So does an InitPlan, which runs within the first node that needs its value.
 */

export interface PlanNode {
  "Node Type": string;
  "Parent Relationship"?: string;
  "Subplan Name"?: string;
  "CTE Name"?: string;
  "Params Evaluated"?: string[];
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

/** How many times it ran, in all processes. None, if what is above it never needed it. */
export const loopsOf = (node: PlanNode): number => node["Actual Loops"] ?? 1;

/** A node with its times, in milliseconds. */
export interface Timed {
  node: PlanNode;
  depth: number;
  processes: number;
  /** With all that ran within it. */
  totalMs: number;
  /** Without. As times are rounded, it may be a little below 0. */
  ownMs: number;
  below: Timed[];
}

/** The scans of each CTE, by its name, which holds below the top of the query that has it. */
type Scans = ReadonlyMap<string, Timed[]>;

const CTE = /^CTE (.*)$/s;

const cteOf = (node: PlanNode): string | undefined => CTE.exec(node["Subplan Name"] ?? "")?.[1];
const isInitPlan = (node: PlanNode): boolean => node["Parent Relationship"] === "InitPlan";
const sumOf = (all: readonly Timed[]): number => all.reduce((sum, { totalMs }) => sum + totalMs, 0);
const within = (timed: Timed): Timed[] => [timed, ...timed.below.flatMap(within)];

/** How many processes run what is below a node. */
const processesBelow = (node: PlanNode, child: PlanNode, here: number): number =>
  node["Node Type"].startsWith("Gather") && child["Parent Relationship"] === "Outer"
    ? Math.max(1, loopsOf(child) / Math.max(1, loopsOf(node)))
    : here;

const visit = (node: PlanNode, depth: number, processes: number, outer: Scans): Timed => {
  const plans = node.Plans ?? [];
  const own = plans.flatMap((each) => (isInitPlan(each) ? (cteOf(each) ?? []) : []));
  const scans: Scans = new Map([...outer, ...own.map((name) => [name, []] as [string, Timed[]])]);
  const below = plans.map((each) => visit(each, depth + 1, processesBelow(node, each, processes), scans));
  const totalMs = ((node["Actual Total Time"] ?? 0) * loopsOf(node)) / processes;
  const ownMs = totalMs - sumOf(below.filter((each) => !isInitPlan(each.node)));
  const timed = { node, depth, processes, totalMs, ownMs, below };
  if (node["Node Type"] === "CTE Scan") scans.get(node["CTE Name"] ?? "")?.push(timed);
  for (const each of below.filter((one) => isInitPlan(one.node) && one.totalMs > 0)) {
    const name = cteOf(each.node);
    if (name !== undefined) takeFromScans(each, scans.get(name) ?? []);
    else takeFromUser(each, timed);
  }
  return timed;
};

/** Which of the scans ran which part of a CTE is not said: they share its time as they share the time of the scans. */
const takeFromScans = ({ totalMs }: Timed, scans: readonly Timed[]): void => {
  const all = sumOf(scans);
  if (all === 0) return;
  // The rest of a CTE that writes runs after everything else.
  for (const scan of scans) scan.ownMs -= Math.min(totalMs, all) * (scan.totalMs / all);
};

/** Takes the time of an InitPlan off the node that ran it: of those that use its value, the one that took longest. */
const takeFromUser = (plan: Timed, owner: Timed): void => {
  const its = new Set(within(plan));
  const others = within(owner).filter((each) => !its.has(each));
  // It is evaluated there for all that is below.
  const gathers = others.filter(({ node }) => node["Params Evaluated"]?.some((each) => isOf(plan.node, each)));
  const users = gathers.length
    ? gathers
    : others.filter(({ node }) => expressionsOf(node).some((each) => isOf(plan.node, each)));
  const candidates = users.length ? users : owner.ownMs >= plan.totalMs ? [owner] : others;
  const user = candidates.reduce((a, b) => (b.ownMs > a.ownMs ? b : a));
  user.ownMs -= plan.totalMs;
};

/** What a node computes, as text. Not everything is in a plan, such as its columns. */
const expressionsOf = (node: PlanNode): string[] =>
  Object.entries(node).flatMap(([name, value]) => {
    if (name === "Subplan Name" || name === "Plans") return [];
    const values: unknown[] = Array.isArray(value) ? value : [value];
    return values.filter((each): each is string => typeof each === "string");
  });

/** Whether an expression has the value of an InitPlan, which is `$0` or, since PostgreSQL 17, `(InitPlan 1).col1`. */
const isOf = (plan: PlanNode, expression: string): boolean => {
  const name = plan["Subplan Name"] ?? "";
  const params = name.match(/\$\d+/g) ?? [];
  const used: string[] = expression.match(/\$\d+/g) ?? [];
  return params.some((each) => used.includes(each)) || expression.includes(`(${name})`);
};

/** The nodes from the top, each before what is below it. */
export const timesOf = (top: PlanNode): Timed[] => within(visit(top, 0, 1, new Map()));
