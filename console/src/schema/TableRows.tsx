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
  rows: Row[];
  types: string[];
  hasMore: boolean;
}

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
  const source = useMemo(() => sourceOf(table), [table]);
  const names = useMemo(() => source.columns.map(({ name }) => name), [source]);
  const [filters, setFilters] = useState<Filter[]>([]);
  const [sort, setSort] = useState<Sort | null>(null);
  const [pages, setPages] = useState<From[]>([{ kind: "start" }]);
  const [loaded, setLoaded] = useState<Loaded>();
  const [updates, setUpdates] = useState<Record<number, Changed>>({});
  const [deletes, setDeletes] = useState<number[]>([]);
  const [inserts, setInserts] = useState<Changed[]>([]);
  const [cell, select] = useState<Cell | null>(null);
  const [dialog, setDialog] = useState<"edit" | "insert" | "review" | null>(null);
  const { error, work } = useWork();
  const isEditable = keyOf(source).length > 0 && may("write") && /table$/.test(table.kind);
  const from = pages.at(-1) as From;

  const discard = () => {
    setUpdates({});
    setDeletes([]);
    setInserts([]);
  };
  const load = () =>
    work(async () => {
      const options = { database, maxRows: PAGE_ROWS + 1, readOnly: true };
      const answer = await run(pageOf(source, { filters, sort }, from), options);
      const hasMore = answer.rows.length > PAGE_ROWS;
      setLoaded({ rows: answer.rows.slice(0, PAGE_ROWS), types: answer.types, hasMore });
      select(null);
    });
  // biome-ignore lint/correctness/useExhaustiveDependencies: loaded again when another page is wanted
  useEffect(load, [source, filters, sort, from]);

  const shown = useMemo(() => {
    const rows = (loaded?.rows ?? []).map((row, i) => {
      const change = updates[i];
      return change
        ? row.map((value, at) => ((names[at] as string) in change ? change[names[at] as string] : value))
        : row;
    });
    const added = inserts.map((each) => names.map((name) => each[name] ?? null));
    return rowsInMemory([...rows, ...added]);
  }, [loaded, updates, inserts, names]);
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
    const last = loaded?.rows.at(-1);
    if (!last) return;
    const byKey = orderOf(source, sort) !== undefined;
    setPages([...pages, byKey ? { kind: "after", row: last } : { kind: "offset", rows: pages.length * PAGE_ROWS }]);
  };
  const loadedCount = loaded?.rows.length ?? 0;
  const edits = {
    updates: Object.entries(updates).map(([i, each]) => ({ row: loaded?.rows[Number(i)] as Row, changed: each })),
    deletes: deletes.map((i) => loaded?.rows[i] as Row),
    inserts,
  };
  const total = edits.updates.length + edits.deletes.length + inserts.length;
  const column = cell && source.columns[cell.column];
  const canEdit = isEditable && column && cell.row < loadedCount && !column.generated && column.identity !== "always";
  const toggleDelete = () => {
    if (!cell) return;
    if (cell.row >= loadedCount) setInserts(inserts.filter((_, i) => i !== cell.row - loadedCount));
    else setDeletes(deletes.includes(cell.row) ? deletes.filter((i) => i !== cell.row) : [...deletes, cell.row]);
  };

  return (
    <>
      <Filters columns={source.columns} filters={filters} change={(next) => start({ filters: next })} />
      <div className="bar">
        {isEditable && (
          <>
            <Button disabled={!canEdit} onClick={() => setDialog("edit")}>
              Edit cell
            </Button>
            <Button onClick={() => setDialog("insert")}>Insert row</Button>
            <Button disabled={!cell} onClick={toggleDelete}>
              {cell && deletes.includes(cell.row) ? "Keep row" : "Delete row"}
            </Button>
          </>
        )}
        {!isEditable && <small>Read only: {reasonOf(source, table)}</small>}
        {total > 0 && (
          <>
            <Button kind="main" onClick={() => setDialog("review")}>
              Review {count(total, "change")}
            </Button>
            <Button onClick={discard}>Discard</Button>
          </>
        )}
        <span className="spring" />
        <small>page {pages.length}</small>
        <Button disabled={pages.length === 1 || total > 0} onClick={() => setPages(pages.slice(0, -1))}>
          Previous
        </Button>
        <Button disabled={!loaded?.hasMore || total > 0} onClick={goOn}>
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
          open={(opened) => {
            select(opened);
            if (canEdit) setDialog("edit");
          }}
          head={(i) => (
            <button
              type="button"
              className="sort"
              disabled={total > 0}
              aria-label={`Sort by ${names[i]}`}
              onClick={() => sortBy(names[i] as string)}
            >
              {sort?.column !== names[i] ? "↕" : sort?.isDescending ? "↓" : "↑"}
            </button>
          )}
          classOf={({ row, column: at }) =>
            deletes.includes(row)
              ? "is-deleted"
              : row >= loadedCount || (updates[row] && (names[at] as string) in updates[row])
                ? "is-changed"
                : ""
          }
        />
      )}
      {dialog === "edit" && cell && column && (
        <EditDialog
          column={column}
          value={shown.at(cell.row)?.[cell.column] ?? null}
          type={types[cell.column] ?? ""}
          close={() => setDialog(null)}
          save={(value) => setUpdates({ ...updates, [cell.row]: { ...updates[cell.row], [column.name]: value } })}
        />
      )}
      {dialog === "insert" && (
        <InsertDialog source={source} close={() => setDialog(null)} save={(row) => setInserts([...inserts, row])} />
      )}
      {dialog === "review" && (
        <ReviewDialog
          source={source}
          edits={edits}
          database={database}
          close={() => setDialog(null)}
          saved={() => {
            discard();
            load();
            changed();
          }}
        />
      )}
    </>
  );
};

const reasonOf = (source: Source, table: Table): string => {
  if (!/table$/.test(table.kind)) return `it is a ${table.kind.replace("_", " ")}.`;
  return keyOf(source).length === 0 ? "it has no primary key." : "the session has not the scope write.";
};

interface FiltersProps {
  columns: readonly Column[];
  filters: readonly Filter[];
  change: (filters: Filter[]) => void;
}

const Filters = ({ columns, filters, change }: FiltersProps) => {
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
      <select aria-label="Filter by" value={column} onChange={(event) => setColumn(event.target.value)}>
        {columns.map(({ name }) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      <select
        aria-label="Comparison"
        value={operator}
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
        disabled={operator.startsWith("is ")}
        onChange={(event) => setValue(event.target.value)}
      />
      <Button type="submit">Filter</Button>
      {filters.map((each, i) => (
        <Button
          // biome-ignore lint/suspicious/noArrayIndexKey: two may be the same
          key={i}
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
  const columns = source.columns.filter(({ generated, identity }) => !generated && identity !== "always");
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
