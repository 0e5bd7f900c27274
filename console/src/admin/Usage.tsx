/** What was used, by day and database, beside what the tier allows. */

import { useState } from "react";
import { listUsage, type Usage } from "../api/control.ts";
import { capabilities } from "../api/data.ts";
import { current } from "../api/session.ts";
import { bytes, duration, number } from "../app/figures.ts";
import { Problem, useLoaded } from "../app/parts.tsx";

const DAY_MS = 86_400_000;
const MEASURES = ["requests", "rows", "engine_us", "bytes"] as const;
type Measure = (typeof MEASURES)[number];

const NAMES: Record<Measure, string> = { requests: "Requests", rows: "Rows", engine_us: "Engine time", bytes: "Bytes" };

const shownAs = (measure: Measure, value: number): string =>
  measure === "engine_us" ? duration(value / 1000) : measure === "bytes" ? bytes(value) : number(value);

const dayOf = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

interface Sums {
  days: { day: string; value: number }[];
  databases: { name: string; sums: Record<Measure, number> }[];
}

export const sumsOf = (usage: readonly Usage[], from: string, count: number, measure: Measure): Sums => {
  const start = Date.parse(from);
  const days = Array.from({ length: count }, (_, i) => ({ day: dayOf(start + i * DAY_MS), value: 0 }));
  const databases = new Map<string, Record<Measure, number>>();
  for (const each of usage) {
    const day = days[Math.round((Date.parse(each.day) - start) / DAY_MS)];
    if (day) day.value += each[measure];
    const sums = databases.get(each.database) ?? { requests: 0, rows: 0, engine_us: 0, bytes: 0 };
    for (const name of MEASURES) sums[name] += each[name];
    databases.set(each.database, sums);
  }
  const named = [...databases].map(([name, sums]) => ({ name, sums }));
  return { days, databases: named.sort((a, b) => b.sums[measure] - a.sums[measure]) };
};

const DAYS = 30;

export const UsagePage = () => {
  const [measure, setMeasure] = useState<Measure>("requests");
  const to = dayOf(Date.now());
  const from = dayOf(Date.now() - (DAYS - 1) * DAY_MS);
  const { value, error } = useLoaded(() => listUsage(from, to), `${from} ${to}`);
  const limits = useLoaded(capabilities, "limits");
  const { days, databases } = sumsOf(value ?? [], from, DAYS, measure);
  const most = Math.max(1, ...days.map((day) => day.value));
  return (
    <div className="page">
      <div className="page-head">
        <h1>Usage</h1>
        <small>of the last {DAYS} days, in UTC</small>
        <span className="spring" />
        <select aria-label="Measure" value={measure} onChange={(event) => setMeasure(event.target.value as Measure)}>
          {MEASURES.map((each) => (
            <option key={each} value={each}>
              {NAMES[each]}
            </option>
          ))}
        </select>
      </div>
      <Problem error={error ?? limits.error} />
      <figure className="bars" aria-label={`${NAMES[measure]} by day`}>
        <div className="bars-plot">
          {days.map(({ day, value: height }) => (
            <div key={day} className="bar-day" title={`${day}: ${shownAs(measure, height)}`}>
              <div style={{ height: `${(height / most) * 100}%` }} />
            </div>
          ))}
        </div>
        <figcaption>
          <span>{days[0]?.day}</span>
          <span>at most {shownAs(measure, Math.max(0, ...days.map((day) => day.value)))} in a day</span>
          <span>{days.at(-1)?.day}</span>
        </figcaption>
      </figure>
      {value && databases.length === 0 && (
        <p className="empty">Nothing was used yet. It is counted every few seconds.</p>
      )}
      {databases.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls on a narrow screen
        <div className="scroller" tabIndex={0} role="region" aria-label="Usage by database">
          <table>
            <thead>
              <tr>
                <th>Database</th>
                {MEASURES.map((each) => (
                  <th key={each} className="number">
                    {NAMES[each]}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {databases.map(({ name, sums }) => (
                <tr key={name}>
                  <td>{name}</td>
                  {MEASURES.map((each) => (
                    <td key={each} className="number">
                      {shownAs(each, sums[each])}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {limits.value && (
        <>
          <h2>Limits of the tier {current().organization.tier}</h2>
          <dl className="facts-list">
            {Object.entries(limits.value.limits as Record<string, unknown>).map(([name, limit]) => (
              <div key={name}>
                <dt>{name.replaceAll("_", " ")}</dt>
                <dd className="number">
                  {limit === null ? "none" : typeof limit === "number" ? number(limit) : String(limit)}
                </dd>
              </div>
            ))}
          </dl>
        </>
      )}
    </div>
  );
};
