/**
 * A grid that has elements for the visible rows only. A browser lets no element be higher than about 33 million pixels,
 * so beyond a million rows the scroll bar covers more than one row per row's height.
 */

import {
  type KeyboardEvent,
  memo,
  type PointerEvent,
  type ReactNode,
  type RefObject,
  useCallback,
  useEffect,
  useId,
  useLayoutEffect,
  useMemo,
  useReducer,
  useState,
} from "react";
import type { Row, Value } from "../api/data.ts";
import { Marked, marked } from "../app/marked.tsx";
import { cellText, DEFAULT, isNumeric, widthsOf } from "./cells.ts";
import type { Rows } from "./rows.ts";

export const ROW_PX = 26;
const MAX_PX = 16_000_000;
const OVERSCAN = 6;
const SAMPLE_ROWS = 60;

export interface Cell {
  row: number;
  column: number;
}

interface Props {
  columns: readonly string[];
  types: readonly string[];
  rows: Rows;
  label: string;
  /** Called when a cell is opened, by Enter or a double click, which selects it before. */
  open?: (cell: Cell) => void;
  selected?: Cell | null;
  /** Gets the element that takes the focus. */
  focus?: RefObject<HTMLDivElement | null>;
  select?: (cell: Cell) => void;
  /** What is shown in the head of a column, beside its name. */
  head?: (column: number) => ReactNode;
  /** How its rows are sorted by a column, if they can be. */
  sortOf?: (column: number) => "ascending" | "descending" | "none";
  /** Marks of cells and rows, as class names. */
  classOf?: (cell: Cell) => string;
}

/** Which rows to show, and where. */
export const windowOf = (
  count: number,
  scrollTop: number,
  height: number,
): { first: number; last: number; top: number; total: number } => {
  const full = count * ROW_PX;
  const total = Math.min(full, MAX_PX);
  const visible = Math.ceil(height / ROW_PX);
  const range = Math.max(1, total - height);
  // Exact below the limit: a pixel is a pixel.
  const start =
    full <= MAX_PX ? scrollTop / ROW_PX : (Math.min(scrollTop, range) / range) * Math.max(0, count - height / ROW_PX);
  const first = Math.max(0, Math.floor(start) - OVERSCAN);
  const last = Math.min(count, Math.floor(start) + visible + OVERSCAN);
  return { first, last, top: scrollTop - (start - first) * ROW_PX, total };
};

const useSize = (element: HTMLElement | null): { width: number; height: number } => {
  const [size, setSize] = useState({ width: 800, height: 400 });
  useLayoutEffect(() => {
    if (!element) return;
    const measure = () => setSize({ width: element.clientWidth, height: element.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [element]);
  return size;
};

export const Grid = ({
  columns,
  types,
  rows,
  label,
  open,
  selected = null,
  select,
  focus,
  head,
  sortOf,
  classOf,
}: Props) => {
  const [element, setElement] = useState<HTMLDivElement | null>(null);
  const [scroll, setScroll] = useState({ top: 0, left: 0 });
  const id = useId();
  const attach = useCallback(
    (next: HTMLDivElement | null) => {
      setElement(next);
      if (focus) focus.current = next;
    },
    [focus],
  );
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const { width, height } = useSize(element);
  const sample = rows.at(0) ? Math.min(rows.count, SAMPLE_ROWS) : 0;
  // biome-ignore lint/correctness/useExhaustiveDependencies: measured again when there are enough rows to measure
  const natural = useMemo(
    () =>
      widthsOf(
        columns,
        types,
        Array.from({ length: sample }, (_, i) => rows.at(i) ?? []),
      ),
    [columns, types, rows, sample > 0],
  );
  const [changed, setChanged] = useState<Record<number, number>>({});
  // biome-ignore lint/correctness/useExhaustiveDependencies: another result has other columns
  useEffect(() => setChanged({}), [columns]);
  useEffect(() => rows.follow(redraw), [rows]);

  const numberPx = 24 + String(rows.count).length * 7.5;
  // Room for what stands beside a name.
  const headPx = head ? 22 : 0;
  const lefts = useMemo(() => {
    let left = numberPx;
    return columns.map((_, i) => {
      const here = left;
      left += changed[i] ?? (natural[i] ?? 100) + headPx;
      return here;
    });
  }, [columns, changed, natural, numberPx, headPx]);
  const widths = useMemo(
    () => columns.map((_, i) => changed[i] ?? (natural[i] ?? 100) + headPx),
    [columns, changed, natural, headPx],
  );
  const widthOf = (i: number) => widths[i] ?? 100;
  const lastColumn = columns.length - 1;
  const totalPx = lastColumn < 0 ? numberPx : (lefts[lastColumn] as number) + widthOf(lastColumn);

  const { first, last, top, total } = windowOf(rows.count, scroll.top, height - ROW_PX);
  const isNear = (i: number) =>
    (lefts[i] as number) + widthOf(i) > scroll.left - 200 && (lefts[i] as number) < scroll.left + width + 200;
  const shown = columns.map((_, i) => i).filter((i) => columns.length < 30 || isNear(i));
  const shownKey = `${shown[0]} ${shown.at(-1)}`;
  // biome-ignore lint/correctness/useExhaustiveDependencies: what is shown is one range
  const layout = useMemo(
    () => ({ id, types, shown, lefts, widths, numberPx, totalPx }),
    [id, types, shownKey, lefts, widths, numberPx, totalPx],
  );

  const move = (event: KeyboardEvent) => {
    // A button in its head has keys of its own.
    if (event.target !== event.currentTarget) return;
    const wider = event.altKey && selected ? { ArrowLeft: -20, ArrowRight: 20 }[event.key] : undefined;
    if (selected && wider) {
      const { column } = selected;
      event.preventDefault();
      return setChanged((before) => ({ ...before, [column]: Math.max(40, widthOf(column) + wider) }));
    }
    const next = selected && afterKey(event, selected, rows.count, columns.length, Math.floor(height / ROW_PX) - 2);
    if (selected && (event.key === "Enter" || event.key === " ")) open?.(selected);
    else if (next) {
      select?.(next);
      reveal(element, next, rows.count, lefts[next.column] as number, widthOf(next.column), numberPx);
    } else return;
    event.preventDefault();
  };

  const resize = (event: PointerEvent<HTMLElement>, column: number) => {
    event.preventDefault();
    const from = event.clientX - widthOf(column);
    const drag = (moved: globalThis.PointerEvent) =>
      setChanged((before) => ({ ...before, [column]: Math.max(40, moved.clientX - from) }));
    const stop = () => {
      removeEventListener("pointermove", drag);
      removeEventListener("pointerup", stop);
    };
    addEventListener("pointermove", drag);
    addEventListener("pointerup", stop);
  };

  return (
    <div
      ref={attach}
      className="grid"
      role="grid"
      aria-label={label}
      aria-rowcount={rows.count + 1}
      aria-colcount={columns.length + 1}
      tabIndex={0}
      aria-activedescendant={
        // Only a cell that is there can be named.
        selected && selected.row >= first && selected.row < last && shown.includes(selected.column)
          ? idOf(id, selected.row, selected.column)
          : undefined
      }
      onKeyDown={move}
      onFocus={() => selected || (rows.count > 0 && columns.length > 0 && select?.({ row: 0, column: 0 }))}
      onScroll={({ currentTarget: { scrollTop, scrollLeft } }) => setScroll({ top: scrollTop, left: scrollLeft })}
    >
      <div className="grid-head" role="row" aria-rowindex={1} style={{ width: totalPx }}>
        <span className="grid-number" role="columnheader" aria-colindex={1} style={{ width: numberPx }}>
          #
        </span>
        {shown.map((i) => (
          <span
            key={i}
            role="columnheader"
            aria-colindex={i + 2}
            aria-sort={sortOf?.(i)}
            className={isNumeric(types[i]) ? "grid-name number" : "grid-name"}
            style={{ left: lefts[i], width: widthOf(i) }}
            title={marked(`${columns[i]} ${types[i] ?? ""}`)}
          >
            <b>
              <Marked>{columns[i] ?? ""}</Marked>
            </b>{" "}
            <small>
              <Marked>{types[i] ?? ""}</Marked>
            </small>
            {head?.(i)}
            <i className="grid-resize" onPointerDown={(event) => resize(event, i)} />
          </span>
        ))}
      </div>
      <div className="grid-body" role="rowgroup" style={{ height: total, width: totalPx }}>
        <div className="grid-window" role="presentation" style={{ transform: `translateY(${top}px)` }}>
          {Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset).map((at) => (
            <GridRow
              key={at}
              at={at}
              row={rows.at(at)}
              layout={layout}
              selected={selected?.row === at ? selected.column : -1}
              select={select}
              open={open}
              classOf={classOf}
            />
          ))}
        </div>
      </div>
    </div>
  );
};

const idOf = (grid: string, row: number, column: number): string => `${grid}-${row}-${column}`;

interface Layout {
  id: string;
  types: readonly string[];
  shown: readonly number[];
  lefts: readonly number[];
  widths: readonly number[];
  numberPx: number;
  totalPx: number;
}

interface RowProps {
  at: number;
  row: Row | undefined;
  layout: Layout;
  /** The column of the selected cell; -1 if it is in another row. */
  selected: number;
  select: ((cell: Cell) => void) | undefined;
  open: ((cell: Cell) => void) | undefined;
  classOf: ((cell: Cell) => string) | undefined;
}

const isSameRow = (before: RowProps, after: RowProps): boolean =>
  before.at === after.at &&
  before.row === after.row &&
  before.layout === after.layout &&
  before.selected === after.selected &&
  // Where cells have marks, they may have changed.
  before.classOf === after.classOf;

/** A row is drawn again only if something in it has changed: while one scrolls, most have not. */
const GridRow = memo(({ at, row, layout, selected, select, open, classOf }: RowProps) => {
  const { id, types, shown, lefts, widths, numberPx, totalPx } = layout;
  return (
    <div className="grid-row" role="row" aria-rowindex={at + 2} style={{ width: totalPx }}>
      <span className="grid-number" role="rowheader" aria-colindex={1} style={{ width: numberPx }}>
        {at + 1}
      </span>
      {shown.map((i) => (
        <span
          key={i}
          id={idOf(id, at, i)}
          role="gridcell"
          aria-colindex={i + 2}
          aria-selected={selected === i}
          className={`grid-cell ${isNumeric(types[i]) ? "number" : ""} ${classOf?.({ row: at, column: i }) ?? ""}`}
          style={{ left: lefts[i], width: widths[i] }}
          onClick={() => select?.({ row: at, column: i })}
          onDoubleClick={() => {
            select?.({ row: at, column: i });
            open?.({ row: at, column: i });
          }}
        >
          {row && <Content value={row[i]} type={types[i]} />}
        </span>
      ))}
    </div>
  );
}, isSameRow);

/** A value, or what stands for one, which looks like no value. */
const Content = ({ value, type }: { value: Value; type: string | undefined }) => {
  if (value === null) return <em>NULL</em>;
  return value === DEFAULT ? <em>DEFAULT</em> : <Marked>{cellText(value, type)}</Marked>;
};

const afterKey = (
  { key, ctrlKey, metaKey }: KeyboardEvent,
  { row, column }: Cell,
  rows: number,
  columns: number,
  page: number,
): Cell | null => {
  const far = ctrlKey || metaKey;
  const steps: Record<string, [number, number]> = {
    ArrowUp: [far ? -rows : -1, 0],
    ArrowDown: [far ? rows : 1, 0],
    ArrowLeft: [0, far ? -columns : -1],
    ArrowRight: [0, far ? columns : 1],
    PageUp: [-page, 0],
    PageDown: [page, 0],
    Home: [far ? -rows : 0, -columns],
    End: [far ? rows : 0, columns],
  };
  const step = steps[key];
  if (!step) return null;
  const within = (value: number, count: number) => Math.max(0, Math.min(count - 1, value));
  return { row: within(row + step[0], rows), column: within(column + step[1], columns) };
};

const reveal = (
  element: HTMLElement | null,
  cell: Cell,
  count: number,
  left: number,
  width: number,
  numberPx: number,
) => {
  if (!element) return;
  const height = element.clientHeight - ROW_PX;
  const full = count * ROW_PX;
  if (full <= MAX_PX) {
    const top = cell.row * ROW_PX;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + ROW_PX > element.scrollTop + height) element.scrollTop = top + ROW_PX - height;
  } else {
    const { first, last } = windowOf(count, element.scrollTop, height);
    if (cell.row < first + OVERSCAN || cell.row > last - OVERSCAN - 2) {
      element.scrollTop = (cell.row / count) * (MAX_PX - height);
    }
  }
  if (left - numberPx < element.scrollLeft) element.scrollLeft = left - numberPx;
  else if (left + width > element.scrollLeft + element.clientWidth)
    element.scrollLeft = left + width - element.clientWidth;
};
