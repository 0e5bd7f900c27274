/** The structure of a table: columns, indexes and foreign keys. */

import type { Table } from "../api/data.ts";
import { Marked } from "../app/marked.tsx";
import { PageTable } from "../app/parts.tsx";
import { addressOf, idOf } from "../app/relations.ts";

type Key = NonNullable<Table["foreign_keys"]>[number];

const referenced = ({ references: { schema, table } }: Key) => ({ schema, name: table });
const namesOf = (columns: readonly string[] | undefined): string => (columns ?? []).join(", ");

export const Structure = ({ table }: { table: Table }) => (
  // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls
  <div className="page structure" tabIndex={0} role="region" aria-label="Structure">
    <h2>Columns</h2>
    <PageTable label="Columns" head={["Name", "Type", "Null", "Default"]}>
      {(table.columns ?? []).map((column) => (
        <tr key={column.name}>
          <td>
            <b>
              <Marked>{column.name}</Marked>
            </b>{" "}
            {column.primary_key && <span className="tag">key</span>}
          </td>
          <td>
            <code>
              <Marked>{column.type}</Marked>
            </code>
          </td>
          <td>{column.nullable ? "yes" : "no"}</td>
          <td className="wide">
            <code>
              <Marked>
                {column.generated
                  ? `generated: ${column.generated}`
                  : column.identity
                    ? `identity, ${column.identity}`
                    : (column.default ?? "")}
              </Marked>
            </code>
          </td>
        </tr>
      ))}
    </PageTable>
    <h2>Indexes</h2>
    {(table.indexes ?? []).length === 0 && <p className="empty">It has no index.</p>}
    <ul className="definitions">
      {(table.indexes ?? []).map((index) => (
        <li key={index.name}>
          <code>
            <Marked>{index.definition}</Marked>
          </code>
        </li>
      ))}
    </ul>
    <h2>Foreign keys</h2>
    {(table.foreign_keys ?? []).length === 0 && <p className="empty">It refers to no other table.</p>}
    <ul className="definitions">
      {(table.foreign_keys ?? []).map((key) => (
        <li key={key.name}>
          <b>
            <Marked>{key.name}</Marked>
          </b>
          : <Marked>{`(${namesOf(key.columns)})`}</Marked> →{" "}
          <a href={addressOf(referenced(key))}>
            <Marked>{idOf(referenced(key))}</Marked>
          </a>{" "}
          <Marked>{`(${namesOf(key.references.columns)})`}</Marked>, on delete {key.on_delete}, on update{" "}
          {key.on_update}
        </li>
      ))}
    </ul>
  </div>
);
