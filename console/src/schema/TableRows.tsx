/** The rows of a table, page by page, and changes that are saved together in one transaction. */

import { PlainSQLError } from "plainsql";
import { type FormEvent, useEffect, useMemo, useState } from "react";
import { newKey, type Row, type RunOptions, run, runTransaction, type Table, type Value } from "../api/data.ts";
import { may } from "../api/session.ts";
import { count } from "../app/figures.ts";
import { useUnsaved } from "../app/leaving.ts";
import { Marked } from "../app/marked.tsx";
import { Button, Dialog, Field, FormDialog, Problem, useWork } from "../app/parts.tsx";
import { toast } from "../app/toast.tsx";
import { textOfValue } from "../results/cells.ts";
import { type Cell, Grid } from "../results/Grid.tsx";
import { type Rows, rowsInMemory } from "../results/rows.ts";
import { countOf, editsOf, NONE, type Pending, toggledDelete, withInsert, withoutInsert, withUpdate } from "./edits.ts";
import {
  type Changed,
  type Column,
  type Described,
  type Edits,
  type Filter,
  type From,
  keyOf,
  OPERATORS,
  type Operator,
  orderOf,
  PAGE_ROWS,
  pageOf,
  readable,
  type Sort,
  type Source,
  statementsFor,
  typedValue,
} from "./statements.ts";

interface Loaded {
  /** What was asked for. */
  wanted: Page;
  rows: Row[];
  types: string[];
  hasMore: boolean;
}

/** What is to be shown. Another one is made to load it again. */
interface Page {
  source: Source;
  filters: Filter[];
  sort: Sort | null;
  from: From;
  saves: number;
}

type Opened = { what: "edit"; row: Row; column: number } | { what: "insert" | "review" };

const sourceOf = (table: Table): Source => ({
  schema: table.schema,
  name: table.name,
  columns: (table.columns ?? []) as Column[],
  kind: table.kind,
});

interface Props {
  table: Table;
  database: string;
  /** Called when rows were saved. */
  changed: () => void;
}

export const TableRows = ({ table, database, changed }: Props) => {
  const [filters, setFilters] = useState<Filter[]>([]);
  const [sort, setSort] = useState<Sort | null>(null);
  const [pages, setPages] = useState<From[]>([{ kind: "start" }]);
  const [saves, setSaves] = useState(0);
  const [{ pending, idempotencyKey }, setReviewed] = useState(() => reviewedOf(NONE));
  const change = (next: Pending) => setReviewed(reviewedOf(next));
  const [isInDoubt, setInDoubt] = useState(false);
  const [cell, select] = useState<Cell | null>(null);
  const [dialog, setDialog] = useState<Opened | null>(null);
  const edits = editsOf(pending);
  const total = countOf(edits);
  useUnsaved(total > 0);
  // Rows that are being changed stay those of the table as it was.
  const source = useSource(table, total === 0 && dialog === null, () => setPages([{ kind: "start" }]));
  const names = useMemo(() => source.columns.map(({ name }) => name), [source]);
  const from = pages.at(-1) as From;
  const wanted = useMemo<Page>(() => ({ source, filters, sort, from, saves }), [source, filters, sort, from, saves]);
  const { loaded, isCurrent, error } = useRows(wanted, database, () => select(null));
  const rows = loaded?.rows ?? NO_ROWS;
  const shown = useMemo(() => shownOf(rows, pending, names), [rows, pending, names]);
  const types = loaded?.types ?? source.columns.map(({ type }) => type);

  const start = (next: { filters?: Filter[]; sort?: Sort | null }) => {
    if (next.filters) setFilters(next.filters);
    if (next.sort !== undefined) setSort(next.sort);
    setPages([{ kind: "start" }]);
  };
  const sortBy = (column: string) => {
    if (sort?.column !== column) start({ sort: { column, isDescending: false } });
    else start({ sort: sort.isDescending ? null : { column, isDescending: true } });
  };
  const goOn = () => {
    const last = rows.at(-1);
    if (!last) return;
    const byKey = orderOf(source, sort) !== undefined;
    setPages([...pages, byKey ? { kind: "after", row: last } : { kind: "offset", rows: pages.length * PAGE_ROWS }]);
  };
  const isEditable = keyOf(source).length > 0 && may("write") && /table$/.test(table.kind);
  const isLocked = total > 0;
  const chosen = cell ? rows[cell.row] : undefined;
  const isNew = cell !== null && cell.row >= rows.length && cell.row < shown.count;
  // Until their outcome is known, other changes would be sent with another key, and these perhaps twice.
  const canChange = isEditable && isCurrent && !isInDoubt;
  const editable = (at: Cell | null) => (canChange ? changeableAt(at, rows, source) : undefined);
  const edit = (at: Cell | null) => {
    const found = editable(at);
    if (found) setDialog({ what: "edit", ...found });
  };
  const toggleDelete = () => {
    if (chosen) change(toggledDelete(pending, chosen));
    else if (cell && isNew) change(withoutInsert(pending, cell.row - rows.length));
  };
  const discard = () => {
    change(NONE);
    select(null);
    // What is there is not known.
    if (isInDoubt) setSaves((before) => before + 1);
    setInDoubt(false);
  };
  const opened = dialog?.what === "edit" ? { ...dialog, of: source.columns[dialog.column] } : undefined;

  return (
    <>
      <Filters
        columns={source.columns}
        filters={filters}
        isLocked={isLocked}
        change={(next) => start({ filters: next })}
      />
      <div className="bar">
        {isEditable && (
          <>
            <Button disabled={!editable(cell)} onClick={() => edit(cell)}>
              Edit cell
            </Button>
            <Button disabled={isInDoubt} onClick={() => setDialog({ what: "insert" })}>
              Insert row
            </Button>
            <Button disabled={!canChange || !(chosen || isNew)} onClick={toggleDelete}>
              {chosen && pending.deletes.has(chosen) ? "Keep row" : "Delete row"}
            </Button>
          </>
        )}
        {!isEditable && <small>Read only: {reasonOf(source, table)}</small>}
        {total > 0 && (
          <Unsaved total={total} isInDoubt={isInDoubt} review={() => setDialog({ what: "review" })} discard={discard} />
        )}
        <span className="spring" />
        <small>page {pages.length}</small>
        <Button disabled={pages.length === 1 || isLocked} onClick={() => setPages(pages.slice(0, -1))}>
          Previous
        </Button>
        <Button disabled={!isCurrent || !loaded?.hasMore || isLocked} onClick={goOn}>
          Next
        </Button>
      </div>
      <Problem error={error} />
      {loaded && shown.count === 0 && <p className="state">No rows{filters.length > 0 && " fit the filter"}.</p>}
      {loaded && shown.count > 0 && (
        <Grid
          columns={names}
          types={types}
          rows={shown}
          label="Rows"
          selected={cell}
          select={select}
          open={edit}
          head={(i) => (
            <button
              type="button"
              className="sort"
              disabled={isLocked}
              aria-label={`Sort by ${names[i]}`}
              onClick={() => sortBy(names[i] as string)}
            >
              {sort?.column !== names[i] ? "↕" : sort?.isDescending ? "↓" : "↑"}
            </button>
          )}
          classOf={({ row: i, column: at }) => {
            const row = rows[i];
            if (row && pending.deletes.has(row)) return "is-deleted";
            return !row || pending.updates.get(row)?.has(names[at] as string) ? "is-changed" : "";
          }}
        />
      )}
      {opened?.of && (
        <EditDialog
          column={opened.of}
          value={shownValue(pending, opened.row, opened.of.name, opened.column)}
          type={types[opened.column] ?? ""}
          close={() => setDialog(null)}
          save={(value) => change(withUpdate(pending, opened.row, names[opened.column] as string, value))}
        />
      )}
      {dialog?.what === "insert" && (
        <InsertDialog source={source} close={() => setDialog(null)} save={(row) => change(withInsert(pending, row))} />
      )}
      {dialog?.what === "review" && (
        <ReviewDialog
          source={{ ...source, types }}
          edits={edits}
          options={{ database, maxRows: 1, idempotencyKey }}
          isInDoubt={isInDoubt}
          setInDoubt={setInDoubt}
          close={() => setDialog(null)}
          saved={() => {
            change(NONE);
            setInDoubt(false);
            setSaves((before) => before + 1);
            changed();
          }}
        />
      )}
    </>
  );
};

/** Changes, and the key by which the service knows them, however often they are sent. Others have another one. */
const reviewedOf = (pending: Pending) => ({ pending, idempotencyKey: newKey() });

/** The table as it was described when `isIdle` was last true. The list of tables is read again after each save. */
const useSource = (table: Table, isIdle: boolean, moved: () => void): Source => {
  const [source, setSource] = useState(() => sourceOf(table));
  // biome-ignore lint/correctness/useExhaustiveDependencies: the function is another one each time
  useEffect(() => {
    const next = sourceOf(table);
    if (!isIdle || JSON.stringify(next) === JSON.stringify(source)) return;
    setSource(next);
    moved();
  }, [table, source, isIdle]);
  return source;
};

const shownOf = (rows: readonly Row[], pending: Pending, names: readonly string[]): Rows => {
  const read = rows.map((row) => names.map((name, at) => shownValue(pending, row, name, at)));
  const added = pending.inserts.map((each) => names.map((name) => each.get(name) ?? null));
  return rowsInMemory([...read, ...added]);
};

/** Loads the rows of a page. They are current unless another page is being loaded, which is about to replace them. */
const useRows = (wanted: Page, database: string, arrived: () => void) => {
  const [loaded, setLoaded] = useState<Loaded>();
  const { error, work } = useWork();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the functions are others each time
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    work(async () => {
      const options = { database, maxRows: PAGE_ROWS + 1, readOnly: true, signal };
      const answer = await run(pageOf(wanted.source, wanted, wanted.from), options).catch((failed: unknown) => {
        if (!signal.aborted) throw failed;
      });
      // Another page is wanted by now.
      if (!answer || signal.aborted) return;
      const hasMore = answer.rows.length > PAGE_ROWS;
      setLoaded({ wanted, rows: answer.rows.slice(0, PAGE_ROWS), types: answer.types, hasMore });
      arrived();
    });
    return () => controller.abort();
  }, [wanted, database]);
  return { loaded, isCurrent: loaded?.wanted === wanted, error };
};

interface UnsavedProps {
  total: number;
  isInDoubt: boolean;
  review: () => void;
  discard: () => void;
}

const Unsaved = ({ total, isInDoubt, review, discard }: UnsavedProps) => (
  <>
    <Button kind="main" onClick={review}>
      Review {count(total, "change")}
    </Button>
    <Button onClick={discard}>Discard</Button>
    <small>
      {isInDoubt
        ? "Whether they were saved is unknown. Save them again, or discard them to see what is there."
        : "To filter, sort or turn the page, save or discard them."}
    </small>
  </>
);

const NO_ROWS: Row[] = [];

const isChangeable = (column: Column | undefined): boolean =>
  column !== undefined && !column.generated && column.identity !== "always";

/** The row and the column of a cell whose value can be changed. */
const changeableAt = (cell: Cell | null, rows: readonly Row[], source: Source) => {
  const row = rows[cell?.row ?? -1];
  const column = cell?.column ?? -1;
  return row && isChangeable(source.columns[column]) ? { row, column } : undefined;
};

/** The value of a cell, as it was changed or read. */
const shownValue = ({ updates }: Pending, row: Row, name: string, at: number): Value => {
  const change = updates.get(row);
  return (change?.has(name) ? change.get(name) : row[at]) ?? null;
};

const reasonOf = (source: Source, table: Table): string => {
  if (!/table$/.test(table.kind)) return `it is a ${table.kind.replace("_", " ")}.`;
  return keyOf(source).length === 0 ? "it has no primary key." : "the session has not the scope write.";
};

interface FiltersProps {
  columns: readonly Column[];
  filters: readonly Filter[];
  isLocked: boolean;
  change: (filters: Filter[]) => void;
}

const Filters = ({ columns, filters, isLocked, change }: FiltersProps) => {
  const [column, setColumn] = useState(columns[0]?.name ?? "");
  const [operator, setOperator] = useState<Operator>("=");
  const [value, setValue] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    change([...filters, { column, operator, value }]);
    setValue("");
  };
  return (
    <form className="bar filters" onSubmit={submit}>
      <select
        aria-label="Filter by"
        value={column}
        disabled={isLocked}
        onChange={(event) => setColumn(event.target.value)}
      >
        {columns.map(({ name }) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      <select
        aria-label="Comparison"
        value={operator}
        disabled={isLocked}
        onChange={(event) => setOperator(event.target.value as Operator)}
      >
        {OPERATORS.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
      <input
        type="text"
        aria-label="Value of the filter"
        value={value}
        disabled={isLocked || operator.startsWith("is ")}
        onChange={(event) => setValue(event.target.value)}
      />
      <Button type="submit" disabled={isLocked}>
        Filter
      </Button>
      {filters.map((each, i) => (
        <Button
          // biome-ignore lint/suspicious/noArrayIndexKey: two may be the same
          key={i}
          disabled={isLocked}
          aria-label={`Remove the filter ${each.column} ${each.operator} ${each.value}`}
          onClick={() => change(filters.filter((_, at) => at !== i))}
        >
          <Marked>{`${each.column} ${each.operator} ${each.value}`}</Marked> ×
        </Button>
      ))}
    </form>
  );
};

interface EditProps {
  column: Column;
  value: Value;
  type: string;
  close: () => void;
  save: (value: Value) => void;
}

const EditDialog = ({ column, value, type, close, save }: EditProps) => {
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

const InsertDialog = ({ source, close, save }: { source: Source; close: () => void; save: (row: Changed) => void }) => {
  const [texts, setTexts] = useState<ReadonlyMap<string, string>>(new Map());
  const columns = source.columns.filter(isChangeable);
  const add = () => {
    const given = columns.filter(({ name }) => texts.get(name));
    save(new Map(given.map(({ name, type }) => [name, typedValue(texts.get(name) ?? "", type)])));
  };
  return (
    <FormDialog title="Insert row" button="Add" close={close} save={add}>
      {columns.map(({ name, type, nullable, default: usual, identity }) => (
        <Field
          key={name}
          label={name}
          hint={`${type}${usual || identity || nullable ? "; empty for its default" : ""}`}
        >
          <input
            type="text"
            value={texts.get(name) ?? ""}
            placeholder={usual ?? (nullable ? "NULL" : "")}
            onChange={(event) => setTexts(new Map(texts).set(name, event.target.value))}
          />
        </Field>
      ))}
    </FormDialog>
  );
};

interface ReviewProps {
  source: Described;
  edits: Edits;
  options: RunOptions;
  /** Whether they were sent, and no response has said what became of them. */
  isInDoubt: boolean;
  setInDoubt: (isInDoubt: boolean) => void;
  close: () => void;
  saved: () => void;
}

const ReviewDialog = ({ source, edits, options, isInDoubt, setInDoubt, close, saved }: ReviewProps) => {
  const statements = statementsFor(source, edits);
  const { isBusy, error, work } = useWork();
  const save = () =>
    work(async () => {
      try {
        await runTransaction(statements, options);
      } catch (failed) {
        const outcome = failed instanceof PlainSQLError ? failed.outcome : undefined;
        if (outcome !== "committed") {
          // Only an attempt that ran would have found an earlier one.
          setInDoubt(outcome === "unknown" || (isInDoubt && outcome !== "rolled_back"));
          throw failed;
        }
      }
      toast(`${count(statements.length, "change")} saved.`);
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
          none. <b>Save again</b> sends them with the same idempotency key, so that they take effect once, whether they
          arrived before or not. The service knows the key for 24 hours.
        </p>
      )}
      <div className="buttons">
        <Button disabled={isBusy} onClick={close}>
          Back
        </Button>
        <Button kind="main" disabled={isBusy} onClick={save} autoFocus>
          {isBusy ? "Saving…" : isInDoubt ? "Save again" : "Save"}
        </Button>
      </div>
    </Dialog>
  );
};
