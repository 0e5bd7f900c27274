/** Health of both planes, capabilities with their probes, and the benchmark as a picture. */

import { useState } from "react";
import { controlHealth } from "../api/control.ts";
import { type Bench, bench, capabilities, dataHealth, type Probe, probe } from "../api/data.ts";
import { current } from "../api/session.ts";
import { useStore } from "../api/store.ts";
import { database } from "../app/databases.ts";
import { duration, number } from "../app/figures.ts";
import { Button, PageTable, Problem, useLoaded, useWork } from "../app/parts.tsx";

export const ServicePage = () => {
  const data = useLoaded(dataHealth, "data");
  const control = useLoaded(controlHealth, "control");
  return (
    <div className="page">
      <div className="page-head">
        <h1>Service</h1>
        <small>version {current().version}</small>
        <span className="spring" />
        <Button
          onClick={() => {
            data.again();
            control.again();
          }}
        >
          Check again
        </Button>
      </div>
      <div className="cards">
        {[
          { name: "Data plane", url: current().dataUrl, ...data },
          { name: "Control plane", url: current().controlUrl, ...control },
        ].map(({ name, url, value, error }) => (
          <section key={name} className="card" aria-label={name}>
            <h2>{name}</h2>
            <code className="faint">{url}</code>
            <Problem error={error} />
            {value && (
              <p>
                <span className={value.status === "ok" ? "tag good" : "tag bad"}>{value.status}</span> up for{" "}
                {duration(value.uptime_s * 1000)}
              </p>
            )}
            {value && (
              <p className="facts">
                {Object.entries(value.checks).map(([check, result]) => (
                  <span key={check}>
                    {check}: <b className={result === "ok" ? "good" : "bad"}>{result}</b>
                  </span>
                ))}
              </p>
            )}
          </section>
        ))}
      </div>
      <BenchPart />
      <CapabilitiesPart />
    </div>
  );
};

const BenchPart = () => {
  const name = useStore(database);
  const [done, setDone] = useState<Bench>();
  const { isBusy, error, work } = useWork();
  return (
    <section className="page-part" aria-label="Benchmark">
      <div className="page-head">
        <h2>Benchmark</h2>
        <small>runs for at most 5 s on temporary data in {name || "the default database"}</small>
        <span className="spring" />
        <Button disabled={isBusy} onClick={() => work(async () => setDone(await bench(name)))}>
          {isBusy ? "Running…" : "Run"}
        </Button>
      </div>
      <Problem error={error} />
      {done && <BenchTable ops={done.ops} />}
    </section>
  );
};

/** On a line: from the fastest to the slowest, with the median and the 95th and 99th percentile. */
const BenchTable = ({ ops }: { ops: Bench["ops"] }) => {
  const logs = ops.flatMap((each) => [each.min_us ?? 1, each.max_us ?? 1]).map((us) => Math.log10(Math.max(1, us)));
  const low = Math.floor(Math.min(...logs));
  const high = Math.ceil(Math.max(...logs));
  const at = (us: number | null) => `${((Math.log10(Math.max(1, us ?? 1)) - low) / Math.max(1, high - low)) * 100}%`;
  return (
    <PageTable
      label="Results of the benchmark"
      head={[
        "Operation",
        { text: "Per second", isNumber: true },
        { text: "Median", isNumber: true },
        { text: "99 %", isNumber: true },
        { text: "Errors", isNumber: true },
        `Latency, from ${duration(10 ** low / 1000)} to ${duration(10 ** high / 1000)}`,
      ]}
    >
      {ops.map((each) => (
        <tr key={each.name}>
          <td>{each.name.replaceAll("_", " ")}</td>
          <td className="number">{number(Math.round(each.ops_per_s))}</td>
          <td className="number">{duration((each.p50_us ?? 0) / 1000)}</td>
          <td className="number">{duration((each.p99_us ?? 0) / 1000)}</td>
          <td className="number">{each.errors}</td>
          <td>
            <div className="whisker">
              <div
                className="whisker-range"
                style={{ left: at(each.min_us), right: `calc(100% - ${at(each.max_us)})` }}
              />
              <div
                className="whisker-box"
                style={{ left: at(each.p50_us), right: `calc(100% - ${at(each.p95_us)})` }}
              />
              <div className="whisker-mark" style={{ left: at(each.p99_us) }} />
              <span className="unseen">
                from {duration((each.min_us ?? 0) / 1000)} to {duration((each.max_us ?? 0) / 1000)}, 95 % within{" "}
                {duration((each.p95_us ?? 0) / 1000)}
              </span>
            </div>
          </td>
        </tr>
      ))}
    </PageTable>
  );
};

const CapabilitiesPart = () => {
  const name = useStore(database);
  const { value, error } = useLoaded(capabilities, "capabilities");
  const [probes, setProbes] = useState<Record<string, Probe>>({});
  const { isBusy, error: failed, work } = useWork();
  return (
    <section className="page-part" aria-label="Capabilities">
      <div className="page-head">
        <h2>Capabilities</h2>
        <small>a probe tries one for real, on temporary data</small>
      </div>
      <Problem error={error ?? failed} />
      {value && (
        <PageTable label="List of capabilities">
          {Object.entries(value.capabilities).map(([each, { supported, description }]) => (
            <tr key={each}>
              <td>
                <code>{each}</code>
              </td>
              <td>
                <span className={supported ? "tag good" : "tag bad"}>{supported ? "yes" : "no"}</span>
              </td>
              <td className="wide">{description}</td>
              <td className="number">
                {probes[each] && (
                  <small>
                    {probes[each].supported ? "works" : "does not work"}, {duration(probes[each].latency_us / 1000)}
                  </small>
                )}
              </td>
              <td>
                <Button
                  disabled={isBusy}
                  aria-label={`Probe ${each}`}
                  onClick={() =>
                    work(async () => {
                      const done = await probe(each, name);
                      setProbes((before) => ({ ...before, [each]: done }));
                    })
                  }
                >
                  Probe
                </Button>
              </td>
            </tr>
          ))}
        </PageTable>
      )}
    </section>
  );
};
