/** The rows of a table, page by page, and changes that are saved together in one transaction. */

import { type FormEvent, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Row, Table } from "../api/data.ts";
import { may } from "../api/session.ts";
import { store, useStore } from "../api/store.ts";
import { count } from "../app/figures.ts";
import { useUnsaved } from "../app/leaving.ts";
import { Marked, marked } from "../app/marked.tsx";
import { Button, Problem, Question } from "../app/parts.tsx";
import { toast } from "../app/toast.tsx";
import { type Cell, Grid } from "../results/Grid.tsx";
import { rowsInMemory } from "../results/rows.ts";
import {
  countOf,
  editsOf,
  NONE,
  type Pending,
  shownOf,
  shownValue,
  toggledDelete,
  withInsert,
  withoutInsert,
  withUpdate,
} from "./edits.ts";
import { type Loaded, type Page, sourceOf, useRows, useSource } from "./pages.ts";
import { EditDialog, InsertDialog, isChangeable, ReviewDialog } from "./RowDialogs.tsx";
import {
  type Column,
  type Filter,
  type From,
  keyOf,
  OPERATORS,
  type Operator,
  orderOf,
  PAGE_ROWS,
  type Sort,
  type Source,
} from "./statements.ts";
import {
  type Changes,
  changesOf,
  isEmpty,
  isSmall,
  isTooLate,
  isTyped,
  keepAtEnd,
  type Owner,
  ownerOf,
  release,
  sizeOf,
  type UnsavedTable,
  unsavedOf,
  updateSent,
} from "./unsaved.ts";

type Opened = { what: "edit"; row: Row; column: number } | { what: "insert" | "review" | "discard" };

interface Props {
  table: Table;
  database: string;
  /** Called when rows were saved. */
  changed: () => void;
}

/** What is shown of a table at first, unless changes of it were kept. */
const firstOf = (table: Table, owner: Owner): UnsavedTable => ({
  owner,
  changes: store(changesOf(NONE)),
  source: sourceOf(table),
  filters: [],
  sort: null,
  pages: [{ kind: "start" }],
  loaded: undefined,
});

export const TableRows = ({ table, database, changed }: Props) => {
  const [owner] = useState<Owner>(() => ownerOf(table, database));
  const [first] = useState(() => unsavedOf(owner) ?? firstOf(table, owner));
  const [filters, setFilters] = useState(first.filters);
  const [sort, setSort] = useState(first.sort);
  const [pages, setPages] = useState(first.pages);
  const { changes } = first;
  const held = useStore(changes);
  const { pending, idempotencyKey, isInDoubt, typed, saves } = held;
  const [cell, select] = useState<Cell | null>(null);
  const [dialog, setDialog] = useState<Opened | null>(isTyped(held) ? { what: "insert" } : null);
  const edits = editsOf(pending);
  const total = countOf(edits);
  const change = (next: Pending) => changes.update((last) => changesOf(next, last.saves));
  const saved = () => updateSent(changes, idempotencyKey, ({ saves }) => changesOf(NONE, saves + 1));
  useUnsaved(!isEmpty(held));
  // Rows that are being changed stay those of the table as it was.
  const isIdle = total === 0 && dialog === null;
  const source = useSource(table, first.source, isIdle, () => setPages([{ kind: "start" }]));
  const names = useMemo(() => source.columns.map(({ name }) => name), [source]);
  const from = pages.at(-1) as From;
  const wanted = useMemo<Page>(() => ({ source, filters, sort, from, saves }), [source, filters, sort, from, saves]);
  const { loaded, isCurrent, error } = useRows(wanted, database, first.loaded, () => select(null));
  useKept({ owner, changes, source, filters, sort, pages, loaded: isCurrent ? loaded : undefined });
  const rows = loaded?.rows ?? NO_ROWS;
  const shown = useMemo(() => rowsInMemory(shownOf(rows, pending, names)), [rows, pending, names]);
  const types = loaded?.types ?? source.columns.map(({ type }) => type);

  const start = (next: { filters?: Filter[]; sort?: Sort | null }) => {
    if (next.filters) setFilters(next.filters);
    if (next.sort !== undefined) setSort(next.sort);
    setPages([{ kind: "start" }]);
  };
  const next = nextPage(source, sort, loaded, pages.length);
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
    select(null);
    // What is there is not known.
    if (isInDoubt) saved();
    else change(NONE);
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
        {isEditable ? (
          <Commands
            canEdit={editable(cell) !== undefined}
            canInsert={!isInDoubt}
            canDelete={canChange && (chosen !== undefined || isNew)}
            isDeleted={isDeleted(pending, chosen)}
            edit={() => edit(cell)}
            insert={() => setDialog({ what: "insert" })}
            toggleDelete={toggleDelete}
          />
        ) : (
          <small>Read only: {reasonOf(source, table)}</small>
        )}
        {total > 0 && (
          <Unsaved
            total={total}
            held={held}
            review={() => setDialog({ what: "review" })}
            discard={discard}
            ask={() => setDialog({ what: "discard" })}
          />
        )}
        <Turning
          pages={pages.length}
          isLocked={isLocked}
          hasNext={isCurrent && next.length > 0}
          back={() => setPages(pages.slice(0, -1))}
          goOn={() => setPages([...pages, ...next])}
        />
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
          sortOf={(i) => sortOf(sort, names[i])}
          head={(i) => (
            <button
              type="button"
              className="sort"
              disabled={isLocked}
              aria-label={`Sort by ${names[i]}`}
              onClick={() => start({ sort: nextSort(sort, names[i] as string) })}
            >
              {ARROWS[sortOf(sort, names[i])]}
            </button>
          )}
          classOf={({ row, column }) => classOf(pending, rows[row], names[column] as string)}
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
        <InsertDialog
          source={source}
          typed={typed}
          setTyped={(next) => changes.update((last) => ({ ...last, typed: next }))}
          close={() => setDialog(null)}
          save={(row) => change(withInsert(pending, row))}
        />
      )}
      {dialog?.what === "review" && (
        <ReviewDialog
          source={{ ...source, types }}
          edits={edits}
          options={{ database, maxRows: 1, idempotencyKey }}
          held={held}
          sending={(next) => updateSent(changes, idempotencyKey, (sent) => ({ ...sent, ...next }))}
          close={() => setDialog(null)}
          saved={() => {
            if (!saved()) return;
            toast(`${count(total, "change")} saved.`);
            changed();
          }}
        />
      )}
      {dialog?.what === "discard" && (
        <Question
          title={`Discard ${count(total, "change")}?`}
          stay="Keep them"
          leave="Discard"
          answer={(isLeaving) => {
            setDialog(null);
            if (isLeaving) discard();
          }}
        >
          <p>
            {isInDoubt
              ? "Whether they were saved is unknown. If they were not, they can't be brought back."
              : "They are not saved, and can't be brought back."}
          </p>
        </Question>
      )}
    </>
  );
};

/** Keeps the changes if the session ends, and says so when they are shown again. */
const useKept = (now: UnsavedTable) => {
  const latest = useRef(now);
  useLayoutEffect(() => {
    latest.current = now;
  });
  useEffect(() => {
    const { owner, changes } = latest.current;
    release(owner);
    const held = changes.get();
    const size = sizeOf(held);
    const what = held.isInDoubt ? "Perhaps saved" : "Not saved yet";
    if (size > 0) toast(`${what}, and still here: ${count(size, "change")}.`);
    return () => keepAtEnd(latest.current);
  }, []);
};

/** Where the next page begins, if there is one. */
const nextPage = (source: Source, sort: Sort | null, loaded: Loaded | undefined, pages: number): From[] => {
  const last = loaded?.rows.at(-1);
  if (!loaded?.hasMore || !last) return [];
  return orderOf(source, sort) ? [{ kind: "after", row: last }] : [{ kind: "offset", rows: pages * PAGE_ROWS }];
};

/** Upwards, downwards, and not at all. */
const nextSort = (sort: Sort | null, column: string): Sort | null => {
  if (sort?.column !== column) return { column, isDescending: false };
  return sort.isDescending ? null : { column, isDescending: true };
};

const ARROWS = { none: "↕", ascending: "↑", descending: "↓" } as const;

/** How the rows are sorted by a column. */
const sortOf = (sort: Sort | null, column: string | undefined): keyof typeof ARROWS => {
  if (!sort || sort.column !== column) return "none";
  return sort.isDescending ? "descending" : "ascending";
};

/** The mark of a cell. One of a new row has no row that was read. */
const classOf = ({ deletes, updates }: Pending, row: Row | undefined, column: string): string => {
  if (row && deletes.has(row)) return "is-deleted";
  return !row || updates.get(row)?.has(column) ? "is-changed" : "";
};

const isDeleted = ({ deletes }: Pending, row: Row | undefined): boolean => row !== undefined && deletes.has(row);

interface CommandsProps {
  canEdit: boolean;
  canInsert: boolean;
  canDelete: boolean;
  /** Whether the chosen row is to be deleted. */
  isDeleted: boolean;
  edit: () => void;
  insert: () => void;
  toggleDelete: () => void;
}

const Commands = ({ canEdit, canInsert, canDelete, isDeleted, edit, insert, toggleDelete }: CommandsProps) => (
  <>
    <Button disabled={!canEdit} onClick={edit}>
      Edit cell
    </Button>
    <Button disabled={!canInsert} onClick={insert}>
      Insert row
    </Button>
    <Button disabled={!canDelete} onClick={toggleDelete}>
      {isDeleted ? "Keep row" : "Delete row"}
    </Button>
  </>
);

interface TurningProps {
  pages: number;
  isLocked: boolean;
  hasNext: boolean;
  back: () => void;
  goOn: () => void;
}

const Turning = ({ pages, isLocked, hasNext, back, goOn }: TurningProps) => (
  <span className="turning">
    <small>page {pages}</small>
    <Button disabled={pages === 1 || isLocked} onClick={back}>
      Previous
    </Button>
    <Button disabled={!hasNext || isLocked} onClick={goOn}>
      Next
    </Button>
  </span>
);

interface UnsavedProps {
  total: number;
  held: Changes;
  review: () => void;
  discard: () => void;
  /** Asks before it discards what is not made again at once. */
  ask: () => void;
}

const Unsaved = ({ total, held, review, discard, ask }: UnsavedProps) => (
  <>
    <Button kind="main" onClick={review}>
      Review {count(total, "change")}
    </Button>
    <Button onClick={isSmall(held) ? discard : ask}>Discard</Button>
    <small>{whatToDo(held)}</small>
  </>
);

const whatToDo = (held: Changes): string => {
  if (!held.isInDoubt) return "To filter, sort or turn the page, save or discard them.";
  const way = isTooLate(held) ? "Discard them" : "Save them again, or discard them";
  return `Whether they were saved is unknown. ${way} to see what is there.`;
};

const NO_ROWS: Row[] = [];

/** The row and the column of a cell whose value can be changed. */
const changeableAt = (cell: Cell | null, rows: readonly Row[], source: Source) => {
  const row = rows[cell?.row ?? -1];
  const column = cell?.column ?? -1;
  return row && isChangeable(source.columns[column]) ? { row, column } : undefined;
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
          <option key={name} value={name}>
            {marked(name)}
          </option>
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
