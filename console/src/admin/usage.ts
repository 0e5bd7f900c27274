/** Sums of what was used, and how it compares with what the tier allows. */

import type { Usage } from "../api/control.ts";
import type { Capabilities } from "../api/data.ts";

const DAY_MS = 86_400_000;
const DAY_MINUTES = 1_440;

export const MEASURES = ["requests", "rows", "engine_us", "bytes"] as const;
export type Measure = (typeof MEASURES)[number];
type Sum = Record<Measure, number>;

export const dayOf = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

interface Sums {
  days: { day: string; value: number }[];
  databases: { name: string; sums: Sum }[];
}

const nothing = (): Sum => ({ requests: 0, rows: 0, engine_us: 0, bytes: 0 });

export const sumsOf = (usage: readonly Usage[], from: string, count: number, measure: Measure): Sums => {
  const start = Date.parse(from);
  const days = Array.from({ length: count }, (_, i) => ({ day: dayOf(start + i * DAY_MS), value: 0 }));
  const databases = new Map<string, Sum>();
  for (const each of usage) {
    const day = days[Math.round((Date.parse(each.day) - start) / DAY_MS)];
    if (day) day.value += each[measure];
    const sums = databases.get(each.database) ?? nothing();
    for (const name of MEASURES) sums[name] += each[name];
    databases.set(each.database, sums);
  }
  const named = [...databases].map(([name, sums]) => ({ name, sums }));
  return { days, databases: named.sort((a, b) => b.sums[measure] - a.sums[measure]) };
};

/** A value beside its limit; no limit is null. */
export interface Share {
  value: number;
  limit: number | null;
}

export interface Shares {
  name: string;
  /** The requests of the day that had most, beside what the limit of a minute allows in a day. */
  requests: Share;
  /** Of a request, on average. */
  rows: Share;
  bytes: Share;
  engineMs: Share;
}

type Limits = Pick<
  Capabilities["limits"],
  "requests_per_minute" | "result_rows" | "result_bytes" | "statement_timeout_ms"
>;

export const ALL = "all databases";

/** What each database used beside the limits, and all of them together: the limit of requests is one for all. */
export const sharesOf = (usage: readonly Usage[], limits: Limits): Shares[] => {
  const byName = new Map<string, Usage[]>([[ALL, [...usage]]]);
  for (const each of usage) byName.set(each.database, [...(byName.get(each.database) ?? []), each]);
  const perDay = limits.requests_per_minute === null ? null : limits.requests_per_minute * DAY_MINUTES;
  return [...byName].map(([name, all]) => {
    const days = new Map<string, number>();
    const sum = nothing();
    for (const each of all) {
      days.set(each.day, (days.get(each.day) ?? 0) + each.requests);
      for (const measure of MEASURES) sum[measure] += each[measure];
    }
    const average = (value: number): number => value / Math.max(1, sum.requests);
    return {
      name,
      requests: { value: Math.max(0, ...days.values()), limit: perDay },
      rows: { value: average(sum.rows), limit: limits.result_rows },
      bytes: { value: average(sum.bytes), limit: limits.result_bytes },
      engineMs: { value: average(sum.engine_us) / 1000, limit: limits.statement_timeout_ms },
    };
  });
};

/** How much of a limit it is, from 0 to 1. */
export const partOf = ({ value, limit }: Share): number => (limit === null ? 0 : Math.min(1, value / limit));

/** A share as people read it: `0.2 %`. Nothing if there is no limit. */
export const percentOf = (share: Share): string => {
  if (share.limit === null) return "";
  const percent = (share.value / share.limit) * 100;
  if (percent === 0) return "0 %";
  return percent < 0.1 ? "less than 0.1 %" : `${percent < 10 ? percent.toFixed(1) : Math.round(percent)} %`;
};
