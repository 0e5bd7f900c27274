/** What was used, by day and database, beside what the tier allows. */

import { useState } from "react";
import { listUsage, type Usage } from "../api/control.ts";
import { type Capabilities, capabilities } from "../api/data.ts";
import { current } from "../api/session.ts";
import { useStore } from "../api/store.ts";
import { databases as known } from "../app/databases.ts";
import { bytes, duration, number } from "../app/figures.ts";
import { PageTable, Problem, useLoaded } from "../app/parts.tsx";
import { dayOf, MEASURES, type Measure, partOf, percentOf, type Share, sharesOf, sumsOf } from "./usage.ts";

const DAY_MS = 86_400_000;

const NAMES: Record<Measure, string> = { requests: "Requests", rows: "Rows", engine_us: "Engine time", bytes: "Bytes" };

const shownAs = (measure: Measure, value: number): string =>
  measure === "engine_us" ? duration(value / 1000) : measure === "bytes" ? bytes(value) : number(value);

const DAYS = 30;

export const UsagePage = () => {
  const [measure, setMeasure] = useState<Measure>("requests");
  const to = dayOf(Date.now());
  const from = dayOf(Date.now() - (DAYS - 1) * DAY_MS);
  const { value, error } = useLoaded(() => listUsage(from, to), `${from} ${to}`);
  const limits = useLoaded(capabilities, "limits");
  const { days, databases } = sumsOf(value ?? [], from, DAYS, measure);
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
      <Days days={days} measure={measure} />
      {value && databases.length === 0 && (
        <p className="empty">Nothing was used yet. It is counted every few seconds.</p>
      )}
      {databases.length > 0 && (
        <PageTable
          label="Usage by database"
          head={["Database", ...MEASURES.map((each) => ({ text: NAMES[each], isNumber: true }))]}
        >
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
        </PageTable>
      )}
      {limits.value && (
        <>
          <h2>Limits of the tier {current().organization.tier}</h2>
          {value && value.length > 0 && <BesideLimits usage={value} limits={limits.value.limits} />}
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

/** A bar for each day. What it shows is in words, too, for those who don't see it. */
const Days = ({ days, measure }: { days: readonly { day: string; value: number }[]; measure: Measure }) => {
  const most = Math.max(0, ...days.map(({ value }) => value));
  return (
    <figure className="bars" aria-label={`${NAMES[measure]} by day`}>
      <ul className="bars-plot">
        {days.map(({ day, value }) => (
          <li key={day} className="bar-day" title={`${day}: ${shownAs(measure, value)}`}>
            <span className="unseen">
              {day}: {shownAs(measure, value)}
            </span>
            <div style={{ height: `${(value / Math.max(1, most)) * 100}%` }} />
          </li>
        ))}
      </ul>
      <figcaption>
        <span>{days[0]?.day}</span>
        <span>at most {shownAs(measure, most)} in a day</span>
        <span>{days.at(-1)?.day}</span>
      </figcaption>
    </figure>
  );
};

const SHARES = ["Requests on its busiest day", "Rows of a request", "Bytes of a request", "Its time in PostgreSQL"];

const BesideLimits = ({ usage, limits }: { usage: readonly Usage[]; limits: Capabilities["limits"] }) => {
  const all = useStore(known)?.filter(({ state }) => state !== "deleted");
  return (
    <>
      <p>
        A bar is full where the limit is. The limit of requests holds for all databases together, minute by minute; here
        it stands for a whole day. The others are averages of a request: a single one may have come closer to its limit,
        and a stream has no limit of rows or bytes.
      </p>
      <PageTable
        label="Usage beside the limits"
        head={["Database", ...SHARES.map((text) => ({ text, isNumber: true }))]}
      >
        {sharesOf(usage, limits).map(({ name, requests, rows, bytes: size, engineMs }) => (
          <tr key={name}>
            <td>{name}</td>
            <Meter share={requests} show={number} />
            <Meter share={rows} show={(value) => number(Math.round(value))} />
            <Meter share={size} show={bytes} />
            <Meter share={engineMs} show={duration} />
          </tr>
        ))}
      </PageTable>
      {all && (
        <PageTable label="Databases beside the limit">
          <tr>
            <td>Databases, with those that can be restored</td>
            <Meter share={{ value: all.length, limit: limits.databases }} show={number} />
          </tr>
        </PageTable>
      )}
    </>
  );
};

const Meter = ({ share, show }: { share: Share; show: (value: number) => string }) => (
  <td className="number share">
    {show(share.value)}{" "}
    <small>{share.limit === null ? "no limit" : `of ${show(share.limit)}, ${percentOf(share)}`}</small>
    {share.limit !== null && (
      <div className="meter">
        <div style={{ width: `${partOf(share) * 100}%` }} />
      </div>
    )}
  </td>
);
