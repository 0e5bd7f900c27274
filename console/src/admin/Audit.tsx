/** The audit log: who changed what on the control plane. */

import { useEffect, useState } from "react";
import { type AuditEntry, auditPage } from "../api/control.ts";
import { count, moment, number } from "../app/figures.ts";
import { Marked } from "../app/marked.tsx";
import { Button, PageTable, Problem, Search, useWork } from "../app/parts.tsx";

export const AuditPage = () => {
  const [entries, setEntries] = useState<AuditEntry[]>();
  const [next, setNext] = useState<string | null>(null);
  const [text, setText] = useState("");
  const [action, setAction] = useState("");
  const { isBusy, error, work } = useWork();
  const load = (cursor: string | null) =>
    work(async () => {
      const page = await auditPage(cursor);
      setEntries((before) => [...(cursor ? (before ?? []) : []), ...page.audit]);
      setNext(page.next);
    });
  // biome-ignore lint/correctness/useExhaustiveDependencies: once
  useEffect(() => load(null), []);
  const actions = [...new Set((entries ?? []).map((each) => each.action))].sort();
  const shown = (entries ?? []).filter(
    (each) => (!action || each.action === action) && JSON.stringify(each).toLowerCase().includes(text.toLowerCase()),
  );
  return (
    <div className="page">
      <div className="page-head">
        <h1>Audit log</h1>
        <span className="spring" />
        <Search label="Search" placeholder="Search in what is loaded" value={text} change={setText} />
        <select aria-label="Action" value={action} onChange={(event) => setAction(event.target.value)}>
          <option value="">all actions</option>
          {actions.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </div>
      <Problem error={error} />
      {entries && shown.length === 0 && <p className="empty">No entry fits.</p>}
      {shown.length > 0 && (
        <PageTable label="Entries" head={["Time (UTC)", "Action", "Target", "By", "Details"]}>
          {shown.map((each) => (
            <tr key={each.id}>
              <td className="number">{moment(each.at)}</td>
              <td>{each.action}</td>
              <td>
                <code>{each.target_id}</code>
              </td>
              <td>
                {each.actor.kind} {each.actor.id && <code className="faint">{each.actor.id}</code>}
              </td>
              <td className="wide">
                <code>
                  <Marked>{JSON.stringify(each.details)}</Marked>
                </code>
              </td>
            </tr>
          ))}
        </PageTable>
      )}
      {entries && (
        <p className="bar" role="status">
          {next
            ? `${count(shown.length, "entry", "entries")} of the newest ${number(entries.length)}. Older ones are neither searched nor listed by action until you load them.`
            : `${count(shown.length, "entry", "entries")} of all ${number(entries.length)}.`}
          {next && (
            <Button disabled={isBusy} onClick={() => load(next)}>
              Load older entries
            </Button>
          )}
        </p>
      )}
    </div>
  );
};
