/** A quick chart of a result. uPlot draws it on a canvas. */

import { useEffect, useId, useMemo, useRef, useState, useSyncExternalStore } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Row } from "../api/data.ts";
import { useStore } from "../api/store.ts";
import { bytes, count, number } from "../app/figures.ts";
import { Marked, marked } from "../app/marked.tsx";
import { theme } from "../app/theme.ts";
import { cellText, isNumeric } from "../results/cells.ts";
import { firstRows, type Rows, TAKEN_BYTES_MAX } from "../results/rows.ts";
import { type Guess, guess, histogram, isTime, KINDS, type Kind, summaryOf, valuesOf } from "./chart.ts";

const ROWS_MAX = 20_000;
const COLOURS = ["#3b7de0", "#d9622b", "#2b9a66", "#9a4fc4", "#b8860b", "#c2416b"];

interface Props {
  result: { columns: readonly string[]; types: readonly string[]; rows: Rows };
}

export const Chart = ({ result }: Props) => {
  const { types } = result;
  const columns = useMemo(() => result.columns.map(marked), [result.columns]);
  const first = useMemo(() => guess(types), [types]);
  const [chosen, choose] = useState<Guess | undefined>(first);
  const [rows, setRows] = useState<Row[]>();
  useEffect(() => {
    let isCurrent = true;
    firstRows(result.rows, ROWS_MAX, TAKEN_BYTES_MAX).then((read) => isCurrent && setRows(read));
    return () => {
      isCurrent = false;
    };
  }, [result]);
  if (!chosen) return <p className="state">There is no column of numbers to draw.</p>;
  const numbers = columns.flatMap((name, i) => (isNumeric(types[i]) ? [{ name, i }] : []));
  const isHistogram = chosen.kind === "histogram";
  return (
    <section className="chart" aria-label="Chart">
      <div className="bar">
        <select
          aria-label="Kind of chart"
          value={chosen.kind}
          onChange={(event) => choose({ ...chosen, kind: event.target.value as Kind })}
        >
          {KINDS.map((kind) => (
            <option key={kind}>{kind}</option>
          ))}
        </select>
        {!isHistogram && (
          <select
            aria-label="Horizontal"
            value={chosen.x}
            onChange={(event) => choose({ ...chosen, x: Number(event.target.value) })}
          >
            {columns.map((name, i) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: two columns may have the same name
              <option key={i} value={i}>
                {name}
              </option>
            ))}
          </select>
        )}
        {numbers.slice(0, 12).map(({ name, i }) => (
          <label key={i} className="check">
            <input
              type="checkbox"
              checked={chosen.ys.includes(i)}
              onChange={() =>
                choose({
                  ...chosen,
                  ys: chosen.ys.includes(i)
                    ? chosen.ys.filter((each) => each !== i)
                    : [...chosen.ys, i].sort((a, b) => a - b),
                })
              }
            />{" "}
            {name}
          </label>
        ))}
        {rows && result.rows.count > rows.length && (
          <small role="status">
            Of {number(result.rows.count)} rows, the first {number(rows.length)}: a chart has at most{" "}
            {count(ROWS_MAX, "row")} or {bytes(TAKEN_BYTES_MAX)}.
          </small>
        )}
      </div>
      {rows && chosen.ys.length > 0 && <Plot rows={rows} columns={columns} types={types} chosen={chosen} />}
    </section>
  );
};

/** Changes when the page gets other colours. */
const useColours = (): string => {
  const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const isDark = useSyncExternalStore(
    (listener) => {
      query.addEventListener("change", listener);
      return () => query.removeEventListener("change", listener);
    },
    () => query.matches,
  );
  return `${isDark} ${useStore(theme)}`;
};

interface PlotProps {
  rows: Row[];
  columns: readonly string[];
  types: readonly string[];
  chosen: Guess;
}

const Plot = ({ rows, columns, types, chosen }: PlotProps) => {
  const host = useRef<HTMLDivElement>(null);
  const id = useId();
  const colours = useColours();
  // biome-ignore lint/correctness/useExhaustiveDependencies: drawn again with other colours
  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const style = getComputedStyle(element);
    const [text, line] = [style.color, style.borderTopColor];
    const isHistogram = chosen.kind === "histogram";
    const data = isHistogram ? histogramData(rows, chosen, types) : seriesData(rows, chosen, types);
    const xType = types[chosen.x];
    const isText = !isHistogram && !isTime(xType) && !isNumeric(xType);
    const axis = {
      stroke: text,
      grid: { stroke: line, width: 1 },
      ticks: { stroke: line, width: 1 },
      font: "11px system-ui",
    };
    const names = (_: uPlot, places: number[]) =>
      places.map((at) =>
        Number.isInteger(at) && rows[at] ? marked(cellText(rows[at][chosen.x], xType).slice(0, 16)) : "",
      );
    const plot = new uPlot(
      {
        width: element.clientWidth,
        height: Math.max(180, element.clientHeight - 40),
        scales: { x: { time: !isHistogram && isTime(xType) } },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
        axes: [isText ? { ...axis, values: names } : axis, { ...axis, size: 64 }],
        legend: { live: true },
        series: [
          { label: isHistogram ? (columns[chosen.ys[0] ?? 0] ?? "") : (columns[chosen.x] ?? "") },
          ...seriesOf(chosen, columns),
        ],
      },
      data,
      element,
    );
    const observer = new ResizeObserver(() =>
      plot.setSize({ width: element.clientWidth, height: Math.max(180, element.clientHeight - 40) }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [rows, columns, types, chosen, colours]);
  return (
    <>
      <div
        ref={host}
        className="plot"
        role="img"
        aria-label={`${chosen.kind} chart of ${chosen.ys.map((i) => columns[i]).join(", ")}`}
        aria-describedby={id}
      />
      <p id={id} className="unseen">
        <Marked>{summaryOf(rows, columns, types, chosen)}</Marked>
      </p>
    </>
  );
};

const seriesOf = ({ kind, ys }: Guess, columns: readonly string[]): uPlot.Series[] =>
  (kind === "histogram" ? ys.slice(0, 1) : ys).map((i, at) => {
    const stroke = COLOURS[at % COLOURS.length] as string;
    const label = kind === "histogram" ? "values" : (columns[i] ?? "");
    if (kind === "scatter") return { label, stroke, paths: () => null, points: { show: true, size: 5, fill: stroke } };
    if (kind === "line") return { label, stroke, width: 1.5 };
    const paths = uPlot.paths.bars?.({ size: [0.8, 60] });
    return { label, stroke, fill: `${stroke}99`, points: { show: false }, ...(paths && { paths }) };
  });

const histogramData = (rows: readonly Row[], { ys }: Guess, types: readonly string[]): uPlot.AlignedData => {
  const column = ys[0] ?? 0;
  const { xs, counts } = histogram(valuesOf(rows, column, types[column]));
  return [xs, counts];
};

/** uPlot wants x to ascend. */
const seriesData = (rows: readonly Row[], { x, ys }: Guess, types: readonly string[]): uPlot.AlignedData => {
  const xs = valuesOf(rows, x, types[x]);
  const order = xs
    .flatMap((value, i) => (value === null ? [] : [i]))
    .sort((a, b) => (xs[a] as number) - (xs[b] as number));
  const series = ys.map((column) => {
    const values = valuesOf(rows, column, types[column]);
    return order.map((i) => values[i] ?? null);
  });
  return [order.map((i) => xs[i] as number), ...series];
};
