/** The results of a run: their state, the grid, and what can be done with them. */

import { lazy, Suspense, useEffect, useReducer, useRef, useState } from "react";
import type { Notice, Outcome } from "../api/data.ts";
import { indented, isJson } from "../api/exact.ts";
import { Boundary } from "../app/Boundary.tsx";
import { copyText } from "../app/copy.ts";
import { bytes, count, duration, number } from "../app/figures.ts";
import { Marked } from "../app/marked.tsx";
import { Button, Menu, TabList, tabPanel } from "../app/parts.tsx";
import { toast } from "../app/toast.tsx";
import type { Explained } from "../explain/plan.ts";
import { textOfValue } from "../results/cells.ts";
import { save, saveAs } from "../results/export.ts";
import { FORMATS, type Format, written } from "../results/formats.ts";
import { type Cell, Grid } from "../results/Grid.tsx";
import { firstRows, TAKEN_BYTES_MAX } from "../results/rows.ts";
import { MAX_BYTES, type StreamedRows, streamToFile } from "../results/stream.ts";
import type { Failed, Run, Shown } from "./run.ts";
import { tableOf } from "./statements.ts";

const Chart = lazy(async () => ({ default: (await import("../explain/Chart.tsx")).Chart }));
const Plan = lazy(async () => ({ default: (await import("../explain/Plan.tsx")).Plan }));

const PRETTY_MAX = 200_000;
// More than this does not belong on a clipboard.
const COPIED_MAX = 50_000;

const PANEL = "result";

interface Props {
  run: Run | undefined;
  streamAll: (result: Shown) => void;
}

export const Results = ({ run, streamAll }: Props) => {
  const [chosen, choose] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new run starts with its first result
  useEffect(() => choose(0), [run?.id]);
  if (!run) return <Nothing />;
  const result = run.results[Math.min(chosen, run.results.length - 1)];
  return (
    <section className="results" aria-label="Results">
      {run.results.length > 1 && (
        <TabList
          label="Results of the statements"
          panel={PANEL}
          names={run.results.map(({ key }) => key)}
          chosen={result?.key ?? ""}
          choose={(key) => choose(run.results.findIndex((each) => each.key === key))}
          show={(key) => <ResultTitle results={run.results} of={key} />}
        />
      )}
      {run.failed && <Failure failed={run.failed} />}
      <Notices notices={run.notices} label="Notices of the transaction" />
      {run.mode === "rehearsal" && run.results.length > 0 && (
        <p className="note">Rehearsed: everything was rolled back, and nothing has changed.</p>
      )}
      {!run.failed && (!result || run.wasCancelled) && <State run={run} />}
      {result && (
        <div className="tab-panel" {...(run.results.length > 1 && tabPanel(PANEL, run.results.indexOf(result)))}>
          <Boundary key={result.key} what="This result">
            <Result run={run} result={result} streamAll={streamAll} />
          </Boundary>
        </div>
      )}
    </section>
  );
};

const Nothing = () => (
  <section className="results empty" aria-label="Results">
    <p>
      Results appear here. <kbd>Ctrl</kbd> <kbd>Enter</kbd> runs the statement at the cursor or the selection,{" "}
      <kbd>Ctrl</kbd> <kbd>Shift</kbd> <kbd>Enter</kbd> everything in one transaction.
    </p>
  </section>
);

const State = ({ run }: { run: Run }) => (
  <p className="state" role="status">
    {stateOf(run)}
    {run.wasCancelled && run.outcome === "unknown" && run.idempotencyKey && <small> Key {run.idempotencyKey}</small>}
  </p>
);

const CANCELLED: Record<Outcome, string> = {
  committed: "Cancelled too late: the service had committed it. It took effect.",
  rolled_back: "Cancelled. It was rolled back: nothing has changed.",
  not_executed: "Cancelled. The service has no record that it took effect.",
  unknown: "Cancelled. Whether it took effect is unknown: look at the data before you run it again.",
};

/** What the page says of a run without a result. */
export const stateOf = ({ endedAt, isEnding, wasCancelled, outcome, mode }: Run): string => {
  if (endedAt === null) return isEnding ? "Cancelling: asking what became of it…" : "Running…";
  if (!wasCancelled) return "Done.";
  if (outcome) return CANCELLED[outcome];
  return mode === "rehearsal" || mode === "explain"
    ? "Cancelled. It was a rehearsal, which is never committed, so nothing has changed."
    : "Cancelled. It only read, so nothing has changed.";
};

export const Failure = ({ failed: { message, error, sql } }: { failed: Failed }) => (
  <div className="failure" role="alert">
    <p>
      <b>
        <Marked>{message}</Marked>
      </b>
    </p>
    {[error?.detail, error?.hint].map(
      (each) =>
        each && (
          <p key={each}>
            <Marked>{each}</Marked>
          </p>
        ),
    )}
    {error && (
      <p className="facts">
        <code>{error.code}</code>
        {error.sqlstate && <span>SQLSTATE {error.sqlstate}</span>}
        {error.position !== undefined && <span>at character {error.position}</span>}
        {error.statementIndex !== undefined && <span>statement {error.statementIndex + 1}</span>}
        {error.outcome && <span>outcome: {OUTCOMES[error.outcome]}</span>}
        {error.idempotencyKey && <span>key {error.idempotencyKey}</span>}
        {error.requestId && <span className="faint">{error.requestId}</span>}
      </p>
    )}
    {error?.statementIndex !== undefined && (
      <pre className="excerpt">
        <Marked>{sql.slice(0, 300)}</Marked>
      </pre>
    )}
  </div>
);

const OUTCOMES: Record<string, string> = {
  committed: "committed, it took effect",
  rolled_back: "rolled back, nothing changed",
  not_executed: "not executed",
  unknown: "unknown: the response was lost",
};

const summaryOf = (result: Shown): string => {
  if (result.columns.length) return count(result.rows.count, "row");
  return result.affectedRows ? `${count(result.affectedRows, "row")} affected` : "";
};

const ResultTitle = ({ results, of }: { results: readonly Shown[]; of: string }) => {
  const at = results.findIndex(({ key }) => key === of);
  const result = results[at];
  return (
    result && (
      <>
        {at + 1} {result.command} <small>{summaryOf(result)}</small>
      </>
    )
  );
};

interface ResultProps {
  run: Run;
  result: Shown;
  streamAll: (result: Shown) => void;
}

const Result = ({ run, result, streamAll }: ResultProps) => {
  const [cell, select] = useState<Cell | null>(null);
  const [isOpen, setOpen] = useState(false);
  const [isDrawn, setDrawn] = useState(false);
  const [saving, setSaving] = useState<Saving | null>(null);
  const grid = useRef<HTMLDivElement | null>(null);
  const { columns, types, rows, stream } = result;
  const plan = planOf(run, result);
  if (plan) {
    return (
      <Suspense fallback={<p className="state">Loading…</p>}>
        <Plan explained={plan} isRehearsed={run.mode === "explain"} />
      </Suspense>
    );
  }
  const exportAll = (format: Format) =>
    said(async () => {
      const controller = new AbortController();
      const stop = () => controller.abort(new Error("The export was stopped."));
      const follow = (rows: number, bytes: number) => setSaving({ rows, bytes, stop });
      follow(0, 0);
      const file = { format, table: tableOf(result.sql) };
      const options = { signal: controller.signal, follow };
      const written = await streamToFile(result, run.database, file, options).finally(() => setSaving(null));
      saveAs(format, written.content, fileName());
      toast(`${count(written.rows, "row")} exported.`);
    });
  const value = cell && rows.at(cell.row)?.[cell.column];
  return (
    <>
      <div className="bar">
        <Summary run={run} result={result} />
        <span className="spring" />
        {columns.length > 0 && rows.count > 0 && (
          <>
            <Button aria-pressed={isDrawn} onClick={() => setDrawn(!isDrawn)}>
              Chart
            </Button>
            <Menu label="Copy" items={FORMATS.map((format) => ({ label: format, act: () => copy(format, result) }))} />
            <Menu
              label="Export"
              items={FORMATS.map((format) => ({
                label: format,
                act: () => void (canExportAll(run, result) ? exportAll(format) : exported(format, result)),
              }))}
            />
          </>
        )}
      </div>
      {result.truncated && (
        <p className="note" role="status">
          {count(rows.count, "row")} shown, and there are more.{" "}
          {isRead(result.command) && run.mode !== "rehearsal" ? (
            <Button kind="link" onClick={() => streamAll(result)}>
              Stream all
            </Button>
          ) : (
            "The statement took effect; the other rows of its result were not kept."
          )}
        </p>
      )}
      {stream && isFull(stream) && (
        <p className="note" role="status">
          Stopped at {count(rows.count, "row")} / {bytes(stream.bytes)}, to keep this tab's memory bounded: all streams
          of the page share {bytes(MAX_BYTES)}. Close editor tabs whose streams you no longer need.{" "}
          {canExportAll(run, result)
            ? "Export streams all rows to a file."
            : "The statement took effect; the other rows of its result were not kept."}
        </p>
      )}
      {saving && (
        <p className="note" role="status">
          Exporting: {count(saving.rows, "row")} · {bytes(saving.bytes)}{" "}
          <Button kind="link" onClick={saving.stop}>
            Stop
          </Button>
        </p>
      )}
      <Notices notices={result.notices} />
      {isDrawn && (
        <Suspense fallback={<p className="state">Loading…</p>}>
          <Chart result={result} />
        </Suspense>
      )}
      {isDrawn ? null : columns.length > 0 ? (
        <Grid
          columns={columns}
          types={types}
          rows={rows}
          label="Rows"
          selected={cell}
          select={select}
          focus={grid}
          open={() => setOpen(true)}
        />
      ) : (
        <p className="state">
          {result.command} {result.affectedRows > 0 && `· ${count(result.affectedRows, "row")} affected`}
        </p>
      )}
      {cell && isOpen && (
        <CellView
          name={columns[cell.column] ?? ""}
          type={types[cell.column] ?? ""}
          text={value === null ? "NULL" : textOfValue(value, types[cell.column])}
          close={() => {
            setOpen(false);
            grid.current?.focus();
          }}
        />
      )}
    </>
  );
};

/** The plan in the result of EXPLAIN (FORMAT JSON). */
const planOf = (run: Run, { command, types, rows }: Shown): Explained | undefined => {
  if (run.endedAt === null || command !== "EXPLAIN" || types[0] !== "json") return undefined;
  const [first] = JSON.parse(String(rows.at(0)?.[0] ?? "[]")) as Explained[];
  return first?.Plan ? first : undefined;
};

interface Saving {
  rows: number;
  bytes: number;
  stop: () => void;
}

const isFull = ({ state }: StreamedRows): boolean => state.kind === "stopped" && state.why === "memory";

/** Whether there are more rows than are here, which can be asked for again. */
const canExportAll = (run: Run, { stream, truncated, command }: Shown): boolean => {
  if (stream) return isFull(stream) && stream.state.kind === "stopped" && stream.state.outcome === undefined;
  return truncated && isRead(command) && run.mode !== "rehearsal";
};

/** Statements that can be sent again without doing anything twice. */
const isRead = (command: string): boolean => ["SELECT", "SHOW", "EXPLAIN", "VALUES", "TABLE"].includes(command);

const Summary = ({ run, result }: { run: Run; result: Shown }) => {
  const [, redraw] = useReducer((ticks: number) => ticks + 1, 0);
  const { stream } = result;
  useEffect(() => result.rows.follow(redraw), [result.rows]);
  const isRunning = stream?.isRunning ?? false;
  const facts = [
    result.command || (isRunning ? "Streaming" : "Stream"),
    result.columns.length ? `${count(result.rows.count, "row")}` : "",
    result.affectedRows ? `${count(result.affectedRows, "row")} affected` : "",
    result.execUs ? `${duration(result.execUs / 1000)} in PostgreSQL` : "",
    run.endedAt === null ? "" : `${duration(run.endedAt - run.startedAt)} in all`,
    stream ? bytes(stream.bytes) : "",
    run.attempts > 1 ? `${run.attempts} attempts` : "",
    result.isReplayed ? "answer to an earlier attempt" : "",
    stream?.state.kind === "stopped" && stream.state.why === "cancelled" ? "cancelled" : "",
  ];
  return (
    <span className="summary" role="status" data-state={stream?.state.kind ?? "done"}>
      {facts.filter(Boolean).join(" · ")}
    </span>
  );
};

const Notices = ({ notices, label = "Notices" }: { notices: readonly Notice[]; label?: string }) =>
  notices.length > 0 && (
    <ul className="notices" aria-label={label}>
      {notices.map((each, i) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: they never change
        <li key={i}>
          <b>{each.severity}</b> <Marked>{[each.message, each.detail, each.hint].filter(Boolean).join(" ")}</Marked>
        </li>
      ))}
    </ul>
  );

const CellView = ({ name, type, text, close }: { name: string; type: string; text: string; close: () => void }) => {
  const value = useRef<HTMLPreElement>(null);
  // Escape closes it, and the arrow keys scroll it.
  useEffect(() => value.current?.focus(), []);
  const pretty = isJson(type) && text.length < PRETTY_MAX ? indented(text) : text;
  return (
    <aside
      className="cell-view"
      aria-label={`Value of ${name}`}
      onKeyDown={(event) => event.key === "Escape" && close()}
    >
      <div className="bar">
        <b>
          <Marked>{name}</Marked>
        </b>{" "}
        <small>
          <Marked>{type}</Marked>
        </small>
        <span className="spring" />
        <Button onClick={() => copyText(text)}>Copy</Button>
        <Button onClick={close}>Close</Button>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls */}
      <pre tabIndex={0} ref={value}>
        <Marked>{pretty}</Marked>
      </pre>
    </aside>
  );
};

const shapeOf = ({ columns, types, sql }: Shown) => ({ columns, types, table: tableOf(sql) });

/** What fails in a menu has no place of its own to say so. */
const said = async (work: () => Promise<void>): Promise<void> => {
  try {
    await work();
  } catch (error) {
    toast((error as Error).message, "danger");
  }
};

const copy = (format: Format, result: Shown): Promise<void> =>
  said(async () => {
    const rows = await firstRows(result.rows, COPIED_MAX, TAKEN_BYTES_MAX);
    const done =
      rows.length < result.rows.count
        ? `Copied the first ${number(rows.length)} of ${count(result.rows.count, "row")}: a copy has at most` +
          ` ${count(COPIED_MAX, "row")} or ${bytes(TAKEN_BYTES_MAX)}. Export has no limit.`
        : undefined;
    await copyText(written(format, shapeOf(result), rows), done);
  });

const exported = (format: Format, result: Shown): Promise<void> =>
  said(async () => {
    toast(`${count(await save(format, shapeOf(result), result.rows, fileName()), "row")} exported.`);
  });

const fileName = (): string => `plainsql-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}`;
