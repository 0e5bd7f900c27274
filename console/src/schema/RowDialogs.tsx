/** The dialogs in which a cell is changed, a row is added, and changes are looked at before they are saved. */

import { PlainSQLError } from "plainsql";
import { useState } from "react";
import { type RunOptions, runTransaction, type Value } from "../api/data.ts";
import { Marked, marked } from "../app/marked.tsx";
import { Button, Dialog, Field, FormDialog, Problem, Question, useWork } from "../app/parts.tsx";
import { textOfValue } from "../results/cells.ts";
import {
  type Changed,
  type Column,
  type Described,
  type Edits,
  readable,
  type Source,
  statementsFor,
  typedValue,
} from "./statements.ts";
import { type Changes, isTooLate, isTyped } from "./unsaved.ts";

export const isChangeable = (column: Column | undefined): boolean =>
  column !== undefined && !column.generated && column.identity !== "always";

interface EditProps {
  column: Column;
  value: Value;
  type: string;
  close: () => void;
  save: (value: Value) => void;
}

export const EditDialog = ({ column, value, type, close, save }: EditProps) => {
  const [text, setText] = useState(value === null ? "" : textOfValue(value, type));
  const [isNull, setNull] = useState(value === null);
  return (
    <FormDialog
      title={`Edit ${column.name}`}
      button="Change"
      close={close}
      save={() => save(isNull ? null : typedValue(text, column.type))}
    >
      <Field label="New value" hint={column.type}>
        <textarea rows={4} value={text} disabled={isNull} onChange={(event) => setText(event.target.value)} autoFocus />
      </Field>
      {column.nullable && (
        <label className="check">
          <input type="checkbox" checked={isNull} onChange={(event) => setNull(event.target.checked)} /> NULL
        </label>
      )}
    </FormDialog>
  );
};

interface InsertProps {
  source: Source;
  /** What is typed, by the names of columns. It is held elsewhere, so that it outlasts the session. */
  typed: ReadonlyMap<string, string>;
  setTyped: (typed: ReadonlyMap<string, string>) => void;
  close: () => void;
  save: (row: Changed) => void;
}

export const InsertDialog = ({ source, typed, setTyped, close, save }: InsertProps) => {
  const [isAsking, setAsking] = useState(false);
  const columns = source.columns.filter(isChangeable);
  const add = () => {
    const given = columns.filter(({ name }) => typed.get(name));
    save(new Map(given.map(({ name, type }) => [name, typedValue(typed.get(name) ?? "", type)])));
  };
  const leave = () => {
    setTyped(new Map());
    close();
  };
  return (
    <>
      {isAsking && (
        // Before the other one, which gives the focus back after it.
        <Question
          title="Leave the new row?"
          stay="Stay"
          leave="Leave"
          answer={(isLeaving) => (isLeaving ? leave() : setAsking(false))}
        >
          <p>What you have typed is not added yet. If you leave, it is lost.</p>
        </Question>
      )}
      <FormDialog
        title="Insert row"
        button="Add"
        close={close}
        leave={isTyped({ typed }) ? () => setAsking(true) : leave}
        save={add}
      >
        {columns.map(({ name, type, nullable, default: usual, identity }) => (
          <Field
            key={name}
            label={name}
            hint={`${type}${usual || identity || nullable ? "; empty for its default" : ""}`}
          >
            <input
              type="text"
              value={typed.get(name) ?? ""}
              placeholder={marked(usual ?? (nullable ? "NULL" : ""))}
              onChange={(event) => setTyped(new Map(typed).set(name, event.target.value))}
            />
          </Field>
        ))}
      </FormDialog>
    </>
  );
};

const TOO_LATE =
  "They were sent about a day ago, and the service knows their key for 24 hours. Sent again, they might take effect" +
  " twice. Discard them, and look at what is there.";

interface ReviewProps {
  source: Described;
  edits: Edits;
  options: RunOptions;
  held: Changes;
  /** Called before they are sent, and when it is known whether they took effect, or that it is not. */
  sending: (next: Partial<Pick<Changes, "isBusy" | "isInDoubt" | "sentAt">>) => void;
  close: () => void;
  saved: () => void;
}

export const ReviewDialog = ({ source, edits, options, held, sending, close, saved }: ReviewProps) => {
  const { isInDoubt, sentAt } = held;
  const isLate = isTooLate(held);
  const statements = statementsFor(source, edits);
  const { isBusy, error, work } = useWork();
  const save = () =>
    work(async () => {
      // The dialog may have been open for a day.
      if (isTooLate(held)) throw new Error(TOO_LATE);
      sending({ isBusy: true, sentAt: isInDoubt ? sentAt : Date.now() });
      try {
        await runTransaction(statements, options);
      } catch (failed) {
        const outcome = failed instanceof PlainSQLError ? failed.outcome : undefined;
        if (outcome !== "committed") {
          // Only an attempt that ran would have found an earlier one.
          const isUnknown = outcome === "unknown" || (isInDoubt && outcome !== "rolled_back");
          sending({ isBusy: false, isInDoubt: isUnknown });
          throw failed;
        }
      }
      saved();
      close();
    });
  return (
    // While they are being saved, there is no way to other changes, which would go with these.
    <Dialog title="Review changes" close={close} isFirm={isBusy}>
      <p>
        All of it is one transaction. Each statement must change one row. A cell that you change must still have the
        value that you saw, and so must all cells of a row that you delete; otherwise nothing is changed. Only arrays of
        JSON and of types without an equality of their own are not compared.
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls */}
      <pre className="preview" tabIndex={0}>
        <Marked>{statements.map((each) => `${readable(each)};`).join("\n")}</Marked>
      </pre>
      <Problem error={error} />
      {isInDoubt && (
        <p className="note" role="alert">
          <b>Whether the changes were saved is unknown.</b> The response was lost: either all of them took effect, or
          none.{" "}
          {isLate ? (
            TOO_LATE
          ) : (
            <>
              <b>Save again</b> sends them with the same idempotency key, so that they take effect once, whether they
              arrived before or not. The service knows the key for 24 hours.
            </>
          )}
        </p>
      )}
      <div className="buttons">
        <Button disabled={isBusy} onClick={close} autoFocus={isLate}>
          Back
        </Button>
        {!isLate && (
          <Button kind="main" disabled={isBusy || statements.length === 0} onClick={save} autoFocus>
            {isBusy ? "Saving…" : isInDoubt ? "Save again" : "Save"}
          </Button>
        )}
      </div>
    </Dialog>
  );
};
