/** The tables of a database: their rows, which can be changed, and their structure. */

import { useState } from "react";
import { listTables, type Table } from "../api/data.ts";
import { useStore } from "../api/store.ts";
import { database } from "../app/databases.ts";
import { bytes, number } from "../app/figures.ts";
import { Problem, useLoaded } from "../app/parts.tsx";
import { go, place } from "../app/place.ts";
import { Structure } from "./Structure.tsx";
import { TableRows } from "./TableRows.tsx";

const labelOf = ({ schema, name }: Table): string => (schema === "public" ? name : `${schema}.${name}`);
const idOf = ({ schema, name }: Table): string => `${schema}.${name}`;

export const TablesPage = () => {
  const name = useStore(database);
  const { rest } = useStore(place);
  const { value, error, again } = useLoaded(() => listTables(name, "full"), name);
  const [text, setText] = useState("");
  const [part, setPart] = useState<"Rows" | "Structure">("Rows");
  const shown = (value ?? []).filter((table) => labelOf(table).toLowerCase().includes(text.toLowerCase()));
  const chosen = value?.find((table) => idOf(table) === rest) ?? value?.[0];
  return (
    <div className="tables">
      <aside className="table-list" aria-label="Tables">
        <input
          type="search"
          aria-label="Search for a table"
          placeholder="Search"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <ul>
          {shown.map((table) => (
            <li key={idOf(table)}>
              <button type="button" aria-current={table === chosen} onClick={() => go("tables", idOf(table))}>
                <span>{labelOf(table)}</span>
                <small>{table.size_bytes == null ? table.kind.replace("_", " ") : bytes(table.size_bytes)}</small>
              </button>
            </li>
          ))}
        </ul>
      </aside>
      <section className="table-main" aria-label={chosen ? labelOf(chosen) : "Table"}>
        <Problem error={error} />
        {value && !chosen && (
          <p className="state">
            There is no table in this database yet. Create one on the <a href="#/query">query page</a>.
          </p>
        )}
        {chosen && (
          <>
            <div className="bar table-head">
              <h1>{labelOf(chosen)}</h1>
              <small>
                {chosen.kind.replace("_", " ")}
                {chosen.row_estimate == null ? "" : `, about ${number(chosen.row_estimate)} rows`}
              </small>
              <span className="spring" />
              <div className="tabs small" role="tablist" aria-label="Parts">
                {(["Rows", "Structure"] as const).map((each) => (
                  <button
                    key={each}
                    type="button"
                    role="tab"
                    className="tab"
                    aria-selected={part === each}
                    onClick={() => setPart(each)}
                  >
                    {each}
                  </button>
                ))}
              </div>
            </div>
            {part === "Rows" ? (
              <TableRows key={`${name} ${idOf(chosen)}`} table={chosen} database={name} changed={again} />
            ) : (
              <Structure table={chosen} />
            )}
          </>
        )}
      </section>
    </div>
  );
};
