/** The tables of a database: their rows, which can be changed, their structure, and new ones. */

import { lazy, Suspense, useEffect, useRef, useState } from "react";
import { listTables, missingTables, type Table } from "../api/data.ts";
import { may } from "../api/session.ts";
import { useStore } from "../api/store.ts";
import { choose, database, useGone } from "../app/databases.ts";
import { bytes, number } from "../app/figures.ts";
import { mayLeave } from "../app/leaving.ts";
import { Marked } from "../app/marked.tsx";
import { Button, Problem, Search, TabList, tabPanel, useLoaded } from "../app/parts.tsx";
import { go, place } from "../app/place.ts";
import { idOf, labelOf } from "../app/relations.ts";
import { toast } from "../app/toast.tsx";
import { completionsOf } from "../editor/catalog.ts";
import { CreateTable } from "./CreateTable.tsx";
import { Structure } from "./Structure.tsx";
import { TableRows } from "./TableRows.tsx";
import { UnsavedElsewhere } from "./UnsavedElsewhere.tsx";
import { type Owner, ownerOf } from "./unsaved.ts";

/** What is shown instead of a table. Its name is in the address where a table's name, which has a dot, would be. */
const NEW = "new";
const IMPORT = "import";
const DIAGRAM = "diagram";
const OTHERS = [NEW, IMPORT, DIAGRAM];

// Loaded when first shown.
const Diagram = lazy(async () => ({ default: (await import("./Diagram.tsx")).Diagram }));
const ImportPage = lazy(async () => ({ default: (await import("../import/ImportPage.tsx")).ImportPage }));

const PARTS = ["Rows", "Structure"] as const;
type Part = (typeof PARTS)[number];

/** The table whose rows are shown. */
const shownOf = (table: Table | undefined, part: Part, database: string): Owner | undefined =>
  table && part === "Rows" ? ownerOf(table, database) : undefined;

export const TablesPage = () => {
  const name = useStore(database);
  const gone = useGone();
  const { rest } = useStore(place);
  const { value, error, isLoading, again } = useLoaded(() => listTables(name, "full"), name);
  const [text, setText] = useState("");
  const [part, setPart] = useState<Part>("Rows");
  const shown = (value ?? []).filter((table) => labelOf(table).toLowerCase().includes(text.toLowerCase()));
  // The first one if the address has none. Another one than it names would be taken for that.
  const chosen = rest ? value?.find((table) => idOf(table) === rest) : value?.[0];
  const isMissing = Boolean(value && rest && !chosen) && !OTHERS.includes(rest);
  const schemas = [...new Set(["public", ...(value ?? []).map(({ schema }) => schema)])];
  const list = useRef<HTMLUListElement>(null);
  const chosenId = chosen && idOf(chosen);
  useEffect(() => {
    const button = chosenId && list.current?.querySelector("[aria-current=true]");
    if (button) button.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [chosenId]);
  const leave = () => go("tables", "");
  const open = (schema: string, table: string) => go("tables", idOf({ schema, name: table }));
  const openIn = (schema: string, table: string, where: string) => {
    choose(where);
    open(schema, table);
  };
  const changed = (where: string) => {
    // The editor completes it from now on.
    void completionsOf(where, true);
    again();
  };
  const openUnsaved = ({ database: where, schema, table }: Owner) => {
    const show = () => {
      setPart("Rows");
      openIn(schema, table, where);
    };
    // In the same database, the new address asks.
    if (where === name) show();
    else mayLeave(show);
  };
  const added = (schema: string, table: string) => {
    toast(`${idOf({ schema, name: table })} was created.`);
    changed(name);
    open(schema, table);
  };
  return (
    <div className="tables">
      <aside className="table-list" aria-label="Tables">
        <Search label="Search for a table" value={text} change={setText} />
        <div className="table-commands">
          <Button aria-pressed={rest === DIAGRAM} onClick={() => go("tables", DIAGRAM)}>
            Diagram
          </Button>
          {may("write") && (
            <>
              <Button aria-pressed={rest === NEW} onClick={() => go("tables", NEW)}>
                New table
              </Button>
              <Button aria-pressed={rest === IMPORT} onClick={() => go("tables", IMPORT)}>
                Import CSV
              </Button>
            </>
          )}
        </div>
        <ul ref={list}>
          {shown.map((table) => (
            <li key={idOf(table)}>
              <button type="button" aria-current={table === chosen} onClick={() => go("tables", idOf(table))}>
                <span>
                  <Marked>{labelOf(table)}</Marked>
                </span>
                <small>{table.size_bytes == null ? table.kind.replace("_", " ") : bytes(table.size_bytes)}</small>
              </button>
            </li>
          ))}
        </ul>
        {missingTables(value) && <p className="note">{missingTables(value)}</p>}
      </aside>
      <section className="table-main" aria-label={chosen ? labelOf(chosen) : rest === DIAGRAM ? "Diagram" : "No table"}>
        <Problem error={gone ? new Error(gone) : error} />
        {/* While the list is loaded, it is not known which table is shown. */}
        {(value || !isLoading) && <UnsavedElsewhere shown={shownOf(chosen, part, name)} open={openUnsaved} />}
        {rest === NEW && <CreateTable key={name} database={name} schemas={schemas} close={leave} created={added} />}
        {rest === IMPORT && value && (
          <Suspense fallback={<p className="state">Loading…</p>}>
            <ImportPage database={name} tables={value} schemas={schemas} imported={changed} open={openIn} />
          </Suspense>
        )}
        {rest === DIAGRAM && (
          <Suspense fallback={<p className="state">Loading…</p>}>
            <Diagram key={name} database={name} />
          </Suspense>
        )}
        {value && !rest && !chosen && <p className="state">There is no table in this database yet.</p>}
        {isMissing && isLoading && <p className="state">Loading…</p>}
        {isMissing && !isLoading && (
          <div className="state page-part" role="status">
            <p>
              There is no table{" "}
              <code>
                <Marked>{rest}</Marked>
              </code>{" "}
              in {name ? `the database ${name}` : "the default database"}, or your key may not read it. Choose one from
              the list, or another database.
            </p>
            <p>
              <Button onClick={again}>Look again</Button>
            </p>
          </div>
        )}
        {chosen && (
          <>
            <div className="bar table-head">
              <h1>
                <Marked>{labelOf(chosen)}</Marked>
              </h1>
              <small>
                {chosen.kind.replace("_", " ")}
                {chosen.row_estimate == null ? "" : `, about ${number(chosen.row_estimate)} rows`}
              </small>
              <span className="spring" />
              <TabList
                label="Parts"
                panel="table-part"
                names={PARTS}
                chosen={part}
                choose={(each) => each !== part && mayLeave(() => setPart(each))}
              />
            </div>
            <div className="tab-panel" {...tabPanel("table-part", PARTS.indexOf(part))}>
              {part === "Rows" ? (
                <TableRows key={`${name} ${idOf(chosen)}`} table={chosen} database={name} changed={again} />
              ) : (
                <Structure table={chosen} />
              )}
            </div>
          </>
        )}
      </section>
    </div>
  );
};
