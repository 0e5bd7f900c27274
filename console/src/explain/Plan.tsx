/** A plan as a tree, with a bar for the time of each node and one for how its rows compare with the estimate. */

import { duration, number } from "../app/figures.ts";
import { Marked } from "../app/marked.tsx";
import { type Explained, type Node, nodesOf } from "./plan.ts";

const timeTitle = ({ totalMs, processes }: Node): string =>
  `${duration(totalMs)} with what ran within it${processes > 1 ? `, the average of ${processes} processes` : ""}`;

export const Plan = ({ explained, isRehearsed }: { explained: Explained; isRehearsed: boolean }) => {
  const nodes = nodesOf(explained);
  const total = Math.max(0.001, explained["Execution Time"] ?? nodes[0]?.totalMs ?? 0);
  const most = Math.max(1, ...nodes.map((node) => Math.max(node.rows, node.expected)));
  const share = (value: number) => `${Math.max(0.5, (Math.log10(1 + value) / Math.log10(1 + most)) * 100)}%`;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls
    <section className="plan" aria-label="Plan" tabIndex={0}>
      <p className="facts">
        <span>executed in {duration(explained["Execution Time"] ?? 0)}</span>
        <span>planned in {duration(explained["Planning Time"] ?? 0)}</span>
        {isRehearsed && <span>rehearsed: what it changed was rolled back</span>}
      </p>
      <ol>
        {nodes.map((node) => (
          <li key={node.key} className={node.isWorst ? "plan-node worst" : "plan-node"}>
            <div className="plan-what" style={{ paddingLeft: node.depth * 16 }}>
              <b>
                <Marked>{node.title}</Marked>
              </b>{" "}
              {node.isWorst && <span className="tag bad">takes most time</span>}
              {node.details.map((each) => (
                <small key={each}>
                  <Marked>{each}</Marked>
                </small>
              ))}
              {node.hints.map((each) => (
                <p key={each} className="plan-hint">
                  <Marked>{each}</Marked>
                </p>
              ))}
            </div>
            <div className="plan-time number" title={timeTitle(node)}>
              {duration(node.ownMs)}
              <div className="meter">
                <div style={{ width: `${Math.min(100, (node.ownMs / total) * 100)}%` }} />
              </div>
            </div>
            <div className="plan-rows number">
              {number(Math.round(node.rows))} <small>of {number(Math.round(node.expected))} expected</small>
              <div className="meter rows">
                <div style={{ width: share(node.rows) }} />
                <i style={{ left: share(node.expected) }} />
              </div>
            </div>
          </li>
        ))}
      </ol>
    </section>
  );
};
