/** Imports a CSV file into a table: the form, and the progress. */

import { useEffect } from "react";
import type { Table } from "../api/data.ts";
import { useStore } from "../api/store.ts";
import { bytes, count, number } from "../app/figures.ts";
import { Button } from "../app/parts.tsx";
import { ImportForm } from "./ImportForm.tsx";
import { type CsvImport, currentImport, type Fault, type State } from "./importing.ts";

interface Props {
  database: string;
  tables: readonly Table[];
  schemas: readonly string[];
  /** Called when rows were imported. */
  imported: () => void;
  open: (schema: string, name: string) => void;
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
  imported: () => void;
  open: (schema: string, name: string) => void;
}

const ImportProgress = ({ run, imported, open }: ProgressProps) => {
  const { state, bytes: done, rows } = useStore(run.shown);
  const { file, target, database } = run.wanted;
  const isDone = state.kind === "done";
  // biome-ignore lint/correctness/useExhaustiveDependencies: once, when it is done
  useEffect(() => {
    if (isDone) imported();
  }, [isDone]);
  const isStopped = state.kind === "stopped" || state.kind === "failed";
  const leave = () => currentImport.set(undefined);
  return (
    <section className="import-progress" aria-label="Progress">
      <div role="status">
        <h2>{TITLES[state.kind]}</h2>
      </div>
      <p>
        {file.name} into {target.schema}.{target.name}
        {database && ` of the database ${database}`}
      </p>
      <progress aria-label="Bytes of the file" max={file.size || 1} value={isDone ? file.size || 1 : done} />
      <p className="summary">
        {bytes(done)} of {bytes(file.size)}, {count(rows, "row")}
      </p>
      {state.kind === "failed" && <FaultText fault={state.fault} />}
      {isStopped && (
        <p>
          Nothing is in the table yet.{" "}
          {rows > 0 && (
            <>
              The first {count(rows, "row")} {rows === 1 ? "is" : "are"} stored in <code>{run.stage.name}</code>.{" "}
            </>
          )}
          {state.kind === "failed" && !state.fault.canContinue
            ? "Discard the import, correct the file or the types, and import it again."
            : "Continue where it stopped, or discard the import."}
        </p>
      )}
      <div className="page-head">
        {(state.kind === "loading" || state.kind === "finishing") && (
          <Button onClick={() => run.stop()} autoFocus>
            Cancel
          </Button>
        )}
        {isStopped && (state.kind === "stopped" || state.fault.canContinue) && (
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
              open(target.schema, target.name);
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

const FaultText = ({ fault: { line, column, message } }: { fault: Fault }) => {
  const place = [line && `Line ${number(line)}`, column && `column ${column}`].filter(Boolean).join(", ");
  return (
    <p className="problem" role="alert">
      {place && <b>{place}: </b>}
      {message}
    </p>
  );
};
