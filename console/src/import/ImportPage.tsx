/** Imports a CSV file into a table: the form, and the progress. */

import { useEffect } from "react";
import type { Table } from "../api/data.ts";
import { useStore } from "../api/store.ts";
import { copyText } from "../app/copy.ts";
import { bytes, count, number } from "../app/figures.ts";
import { Marked } from "../app/marked.tsx";
import { Button } from "../app/parts.tsx";
import { idOf } from "../app/relations.ts";
import { ImportForm } from "./ImportForm.tsx";
import { type CsvImport, currentImport, type Doubt, type Fault, type State, type Why } from "./importing.ts";

interface Props {
  database: string;
  tables: readonly Table[];
  schemas: readonly string[];
  /** Called when rows were imported. */
  imported: (database: string) => void;
  open: (schema: string, name: string, database: string) => void;
}

export const ImportPage = ({ database, tables, schemas, imported, open }: Props) => {
  const running = useStore(currentImport);
  return (
    <div className="page import">
      <div className="page-head">
        <h1>Import a CSV file</h1>
      </div>
      {running && <ImportProgress key={running.stage.name} run={running} imported={imported} open={open} />}
      {/* What was chosen stays, for an import that is begun again. */}
      <div hidden={Boolean(running)}>
        <ImportForm key={database} database={database} tables={tables} schemas={schemas} />
      </div>
    </div>
  );
};

const TITLES: Record<State["kind"], string> = {
  loading: "Importing…",
  finishing: "Finishing…",
  stopped: "Cancelled",
  failed: "Failed",
  undoing: "Discarding…",
  done: "Imported",
  undone: "Nothing was imported",
};

interface ProgressProps {
  run: CsvImport;
  imported: (database: string) => void;
  open: (schema: string, name: string, database: string) => void;
}

const ImportProgress = ({ run, imported, open }: ProgressProps) => {
  const { state, bytes: done, rows } = useStore(run.shown);
  const { file, target, database } = run.wanted;
  const isDone = state.kind === "done";
  // biome-ignore lint/correctness/useExhaustiveDependencies: once, when it is done
  useEffect(() => {
    if (isDone) imported(database);
  }, [isDone]);
  const isStopped = state.kind === "stopped" || state.kind === "failed";
  const why = state.kind === "stopped" ? state.why : undefined;
  const doubt = isStopped ? state.doubt : undefined;
  const leave = () => currentImport.set(undefined);
  return (
    <section className="import-progress" aria-label="Progress">
      <div role="status">
        <h2>{titleOf(state)}</h2>
      </div>
      <p>
        <Marked>{`${file.name} into ${idOf(target)}`}</Marked>
        {database && ` of the database ${database}`}
      </p>
      <progress aria-label="Bytes of the file" max={file.size || 1} value={isDone ? file.size || 1 : done} />
      <p className="summary">
        {bytes(done)} of {bytes(file.size)}, {count(rows, "row")}
      </p>
      {state.kind === "failed" && <FaultText fault={state.fault} />}
      {isStopped && doubt && <DoubtText run={run} doubt={doubt} why={why} />}
      {why === "session" && <p>The import was stopped because the session had ended.</p>}
      {isStopped && doubt?.of !== "finish" && <StoredText run={run} state={state} />}
      <div className="page-head">
        {(state.kind === "loading" || state.kind === "finishing") && (
          <Button onClick={() => run.stop()} autoFocus>
            Cancel
          </Button>
        )}
        {isStopped && doubt?.of !== "drop" && (state.kind === "stopped" || state.fault.canContinue) && (
          <Button kind="main" onClick={() => void run.go()}>
            Continue
          </Button>
        )}
        {isStopped && <Button onClick={() => void run.undo()}>Discard</Button>}
        {isDone && (
          <Button
            kind="main"
            autoFocus
            onClick={() => {
              leave();
              open(target.schema, target.name, database);
            }}
          >
            Open table
          </Button>
        )}
        {(isDone || state.kind === "undone") && (
          <Button autoFocus={!isDone} onClick={leave}>
            {isDone ? "Import another file" : "Back"}
          </Button>
        )}
      </div>
    </section>
  );
};

const titleOf = (state: State): string => {
  if ((state.kind === "failed" || (state.kind === "stopped" && state.why === "session")) && state.doubt) {
    return "Outcome unknown";
  }
  return state.kind === "stopped" && state.why === "session" ? "Stopped" : TITLES[state.kind];
};

/** What there is of an import that has not finished, and what to do with it. */
const StoredText = ({ run, state }: { run: CsvImport; state: State & { kind: "stopped" | "failed" } }) => {
  const { rows } = run.shown.get();
  const stage = <code>{run.stage.name}</code>;
  const isFinal = state.kind === "failed" && !state.fault.canContinue;
  return (
    <p>
      Nothing is in the table yet.{" "}
      {rows > 0 && (
        <>
          The first {count(rows, "row")} {rows === 1 ? "is" : "are"} stored in {stage}.{" "}
        </>
      )}
      {rows === 0 && state.kind === "stopped" && <>The staging table is {stage}. </>}
      {!state.doubt &&
        (isFinal
          ? "Discard the import, correct the file or the types, and import it again."
          : "Continue where it stopped, or discard the import.")}
    </p>
  );
};

const REASONS: Record<Why, string> = { cancelled: "You cancelled the import", session: "The session ended" };

interface DoubtProps {
  run: CsvImport;
  doubt: Doubt;
  /** Why it was stopped; without it, the response was lost. */
  why: Why | undefined;
}

/** What is unknown, how to look, and what makes it certain. */
const DoubtText = ({ run, doubt, why: stopped }: DoubtProps) => {
  const { target } = run.wanted;
  const why = stopped ? REASONS[stopped] : "The connection was lost";
  const { rows } = run.shown.get();
  return (
    <div className="note import-doubt" role="alert">
      {doubt.of === "batch" && (
        <>
          <p>
            <b>The outcome of rows {range(doubt.rows)} is unknown.</b> They begin on lines {range(doubt.lines)} of the
            file. {why} before the service confirmed them: either all of them are stored in{" "}
            <code>{run.stage.name}</code>, or none.
          </p>
          <p>
            <b>Continue</b> sends the same rows with the same idempotency key, so that each row is stored once, whether
            they arrived before or not. The service knows the key for 24 hours.
          </p>
          <Look
            sql={run.stage.lookForRows(doubt.lines)}
            says={`It returns ${number(doubt.rows[1] - doubt.rows[0] + 1)} if they are stored, and 0 if not.`}
          />
        </>
      )}
      {doubt.of === "finish" && (
        <>
          <p>
            <b>Whether the import has finished is unknown.</b> {why} before the service confirmed it: either all{" "}
            {count(rows, "row")} are in{" "}
            <code>
              <Marked>{idOf(target)}</Marked>
            </code>
            , or none.
          </p>
          <p>
            <b>Continue</b> sends the same transaction with the same idempotency key, so that it takes effect once. The
            service knows the key for 24 hours.
          </p>
          <Look
            sql={run.stage.lookForEnd()}
            says="It returns true if the import has finished, unless you have discarded it."
          />
        </>
      )}
      {doubt.of === "create" && (
        <p>
          <b>Whether the staging table was created is unknown.</b> {why} before the service confirmed it. No row was
          sent. <b>Continue</b> sends the same statement with the same idempotency key, so that it is created once.
        </p>
      )}
      {doubt.of === "drop" && (
        <p>
          <b>
            Whether <code>{run.stage.name}</code> was dropped is unknown.
          </b>{" "}
          {why} before the service confirmed it. Discard the import again.
        </p>
      )}
    </div>
  );
};

const range = ([first, last]: readonly [number, number]): string =>
  first === last ? number(first) : `${number(first)}–${number(last)}`;

const Look = ({ sql, says }: { sql: string; says: string }) => (
  <>
    <p>To look yourself, run this query. {says}</p>
    <p className="secret">
      <code>
        <Marked>{sql}</Marked>
      </code>
      <Button onClick={() => void copyText(sql)}>Copy</Button>
    </p>
  </>
);

const FaultText = ({ fault: { line, column, message } }: { fault: Fault }) => {
  const place = [line && `Line ${number(line)}`, column && `column ${column}`].filter(Boolean).join(", ");
  return (
    <p className="problem" role="alert">
      {place && <b>{place}: </b>}
      <Marked>{message}</Marked>
    </p>
  );
};
