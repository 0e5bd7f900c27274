/** The rows of a table, a page at a time, and the table as it was described when they were read. */

import { useEffect, useState } from "react";
import { type Row, run, type Table } from "../api/data.ts";
import { useWork } from "../app/parts.tsx";
import { type Column, type Filter, type From, PAGE_ROWS, pageOf, type Sort, type Source } from "./statements.ts";

export interface Loaded {
  /** What was asked for. */
  wanted: Page;
  rows: Row[];
  types: string[];
  hasMore: boolean;
}

/** What is to be shown. Another one is made to load it again. */
export interface Page {
  source: Source;
  filters: Filter[];
  sort: Sort | null;
  from: From;
  saves: number;
}

export const sourceOf = (table: Table): Source => ({
  schema: table.schema,
  name: table.name,
  columns: (table.columns ?? []) as Column[],
  kind: table.kind,
});

/**
 * The table as it was described when `isIdle` was last true, at first as it was before. The list of tables is read again
 * after each save.
 */
export const useSource = (table: Table, before: Source, isIdle: boolean, moved: () => void): Source => {
  const [source, setSource] = useState(before);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the function is another one each time
  useEffect(() => {
    const next = sourceOf(table);
    if (!isIdle || JSON.stringify(next) === JSON.stringify(source)) return;
    setSource(next);
    moved();
  }, [table, source, isIdle]);
  return source;
};

/**
 * Loads the rows of a page, unless they are those that were there before. They are current unless another page is being
 * loaded, which is about to replace them.
 */
export const useRows = (wanted: Page, database: string, before: Loaded | undefined, arrived: () => void) => {
  const [loaded, setLoaded] = useState(() => before && { ...before, wanted });
  const { error, work } = useWork();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the functions are others each time
  useEffect(() => {
    if (loaded?.wanted === wanted) return;
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
