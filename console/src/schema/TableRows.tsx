/** The rows of a table, page by page, and changes that are saved together in one transaction. */

import { type FormEvent, useEffect, useMemo, useState } from "react";
import { type Row, run, runTransaction, type Table, type Value } from "../api/data.ts";
import { may } from "../api/session.ts";
import { count } from "../app/figures.ts";
import { Button, Dialog, Field, Problem, useWork } from "../app/parts.tsx";
import { toast } from "../app/toast.tsx";
import { textOfValue } from "../results/cells.ts";
import { type Cell, Grid } from "../results/Grid.tsx";
import { rowsInMemory } from "../results/rows.ts";
import { countOf, editsOf, NONE, type Pending, toggledDelete, withInsert, withoutInsert, withUpdate } from "./edits.ts";
import {
  type Changed,
  type Column,
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
});

interface Props {
  table: Table;
  database: string;
  /** Called when rows were saved. */
  changed: () => void;
}

export const TableRows = ({ table, database, changed }: Props) => {
  const [source, setSource] = useState(() => sourceOf(table));
  const names = useMemo(() => source.columns.map(({ name }) => name), [source]);
  const [filters, setFilters] = useState<Filter[]>([]);
  const [sort, setSort] = useState<Sort | null>(null);
  const [pages, setPages] = useState<From[]>([{ kind: "start" }]);
  const [saves, setSaves] = useState(0);
  const [loaded, setLoaded] = useState<Loaded>();
  const [pending, setPending] = useState<Pending>(NONE);
  const [cell, select] = useState<Cell | null>(null);
  const [dialog, setDialog] = useState<Opened | null>(null);
  const { error, work } = useWork();
  const from = pages.at(-1) as From;
  const wanted = useMemo<Page>(() => ({ source, filters, sort, from, saves }), [source, filters, sort, from, saves]);
  const edits = editsOf(pending);
  const total = countOf(edits);

  // The list of tables is read again after each save. Only other columns are another table, and not while rows of the
  // one before are being changed.
  useEffect(() => {
    const next = sourceOf(table);
    if (total === 0 && dialog === null && JSON.stringify(next) !== JSON.stringify(source)) {
      setSource(next);
      setPages([{ kind: "start" }]);
    }
  }, [table, source, total, dialog]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: `work` is another one each time
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
      select(null);
    });
    return () => controller.abort();
  }, [wanted, database]);

  const rows = loaded?.rows ?? NO_ROWS;
  const shown = useMemo(() => {
    const read = rows.map((row) => {
      const change = pending.updates.get(row);
      return change
        ? row.map((value, at) => ((names[at] as string) in change ? change[names[at] as string] : value))
        : row;
    });
    const added = pending.inserts.map((each) => names.map((name) => each[name] ?? null));
    return rowsInMemory([...read, ...added]);
  }, [rows, pending, names]);
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
  // What is shown is about to be replaced while another page is being loaded.
  const isCurrent = loaded?.wanted === wanted;
  const isEditable = keyOf(source).length > 0 && may("write") && /table$/.test(table.kind);
  const isLocked = total > 0;
  const chosen = cell ? rows[cell.row] : undefined;
  const isNew = cell !== null && cell.row >= rows.length && cell.row < shown.count;
  const edit = ({ row: i, column: at }: Cell) => {
    const [row, column] = [rows[i], source.columns[at]];
    if (!row || !isChangeable(column) || !isEditable || !isCurrent) return;
    setDialog({ what: "edit", row, column: at });
  };
  const canEdit = isEditable && isCurrent && chosen !== undefined && isChangeable(source.columns[cell?.column ?? -1]);
  const toggleDelete = () => {
    if (chosen) setPending(toggledDelete(pending, chosen));
    else if (cell && isNew) setPending(withoutInsert(pending, cell.row - rows.length));
  };
  const discard = () => {
    setPending(NONE);
    select(null);
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
            <Button disabled={!canEdit} onClick={() => cell && edit(cell)}>
              Edit cell
            </Button>
            <Button onClick={() => setDialog({ what: "insert" })}>Insert row</Button>
            <Button disabled={!isCurrent || !(chosen || isNew)} onClick={toggleDelete}>
              {chosen && pending.deletes.has(chosen) ? "Keep row" : "Delete row"}
            </Button>
          </>
        )}
        {!isEditable && <small>Read only: {reasonOf(source, table)}</small>}
        {total > 0 && (
          <>
            <Button kind="main" onClick={() => setDialog({ what: "review" })}>
              Review {count(total, "change")}
            </Button>
            <Button onClick={discard}>Discard</Button>
            <small>To filter, sort or turn the page, save or discard them.</small>
          </>
        )}
        <span className="spring" />
        <small>page {pages.length}</small>
        <Button disabled={pages.length === 1 || isLocked} onClick={() => setPages(pages.slice(0, -1))}>
          Previous
        </Button>
        <Button disabled={!isCurrent || !loaded.hasMore || isLocked} onClick={goOn}>
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
          open={(at) => {
            select(at);
            edit(at);
          }}
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
            return !row || (names[at] as string) in (pending.updates.get(row) ?? {}) ? "is-changed" : "";
          }}
        />
      )}
      {opened?.of && (
        <EditDialog
          column={opened.of}
          value={shownValue(pending, opened.row, opened.of.name, opened.column)}
          type={types[opened.column] ?? ""}
          close={() => setDialog(null)}
          save={(value) =>
            setPending((before) => withUpdate(before, opened.row, names[opened.column] as string, value))
          }
        />
      )}
      {dialog?.what === "insert" && (
        <InsertDialog
          source={source}
          close={() => setDialog(null)}
          save={(row) => setPending((before) => withInsert(before, row))}
        />
      )}
      {dialog?.what === "review" && (
        <ReviewDialog
          source={source}
          edits={edits}
          database={database}
          close={() => setDialog(null)}
          saved={() => {
            discard();
            setSaves((before) => before + 1);
            changed();
          }}
        />
      )}
    </>
  );
};

const NO_ROWS: Row[] = [];

const isChangeable = (column: Column | undefined): boolean =>
  column !== undefined && !column.generated && column.identity !== "always";

/** The value of a cell, as it was changed or read. */
const shownValue = ({ updates }: Pending, row: Row, name: string, at: number): Value => {
  const change = updates.get(row) ?? {};
  return (name in change ? change[name] : row[at]) ?? null;
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
          {each.column} {each.operator} {each.value} ×
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
  const [error, setError] = useState<unknown>();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    try {
      save(isNull ? null : typedValue(text, column.type));
      close();
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <Dialog title={`Edit ${column.name}`} close={close}>
      <form className="page-form" onSubmit={submit}>
        <Field label="New value" hint={column.type}>
          <textarea
            rows={4}
            value={text}
            disabled={isNull}
            onChange={(event) => setText(event.target.value)}
            autoFocus
          />
        </Field>
        {column.nullable && (
          <label className="check">
            <input type="checkbox" checked={isNull} onChange={(event) => setNull(event.target.checked)} /> NULL
          </label>
        )}
        <Problem error={error} />
        <div className="buttons">
          <Button onClick={close}>Cancel</Button>
          <Button kind="main" type="submit">
            Change
          </Button>
        </div>
      </form>
    </Dialog>
  );
};

const InsertDialog = ({ source, close, save }: { source: Source; close: () => void; save: (row: Changed) => void }) => {
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [error, setError] = useState<unknown>();
  const columns = source.columns.filter(isChangeable);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    try {
      const given = columns.filter(({ name }) => texts[name]);
      save(Object.fromEntries(given.map(({ name, type }) => [name, typedValue(texts[name] ?? "", type)])));
      close();
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <Dialog title="Insert row" close={close}>
      <form className="page-form" onSubmit={submit}>
        {columns.map(({ name, type, nullable, default: usual, identity }) => (
          <Field
            key={name}
            label={name}
            hint={`${type}${usual || identity || nullable ? "; empty for its default" : ""}`}
          >
            <input
              type="text"
              value={texts[name] ?? ""}
              placeholder={usual ?? (nullable ? "NULL" : "")}
              onChange={(event) => setTexts({ ...texts, [name]: event.target.value })}
            />
          </Field>
        ))}
        <Problem error={error} />
        <div className="buttons">
          <Button onClick={close}>Cancel</Button>
          <Button kind="main" type="submit">
            Add
          </Button>
        </div>
      </form>
    </Dialog>
  );
};

interface ReviewProps {
  source: Source;
  edits: Parameters<typeof statementsFor>[1];
  database: string;
  close: () => void;
  saved: () => void;
}

const ReviewDialog = ({ source, edits, database, close, saved }: ReviewProps) => {
  const statements = statementsFor(source, edits);
  const { isBusy, error, work } = useWork();
  const save = () =>
    work(async () => {
      await runTransaction(statements, { database, maxRows: 1 });
      toast(`${count(statements.length, "change")} saved.`);
      saved();
      close();
    });
  return (
    <Dialog title="Review changes" close={close}>
      <p>
        All of it is one transaction. Each statement must change one row, and a cell must still have the value that you
        saw; otherwise nothing is changed.
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls */}
      <pre className="preview" tabIndex={0}>
        {statements.map((each) => `${readable(each)};`).join("\n")}
      </pre>
      <Problem error={error} />
      <div className="buttons">
        <Button onClick={close}>Back</Button>
        <Button kind="main" disabled={isBusy} onClick={save} autoFocus>
          Save
        </Button>
      </div>
    </Dialog>
  );
};
