import { renderToStaticMarkup } from "react-dom/server";
import { expect, it } from "vitest";
import type { Table } from "../api/data.ts";
import { Structure } from "./Structure.tsx";

const column = (name: string) => ({
  name,
  type: `type of ${name}`,
  nullable: true,
  default: null,
  primary_key: false,
  identity: null,
  generated: null,
});

const TABLE: Table = {
  schema: "public",
  name: "t",
  kind: "table",
  columns: [column("1\u202e")],
  indexes: [{ name: "i", unique: false, primary: false, method: "btree", definition: "2\u202e" }],
  foreign_keys: [
    {
      name: "3\u202e",
      columns: ["4\u202e"],
      references: { schema: "sales\u202e", table: "2026.orders\u202e", columns: ["5\u202e"] },
      on_update: "no action",
      on_delete: "cascade",
    },
  ],
};
const html = renderToStaticMarkup(<Structure table={TABLE} />);

it("marks what is not seen in every name and definition", () => {
  expect(html).not.toContain("\u202e");
  // A column and its type, an index, a key with its column, and a table with its schema and its column.
  expect(html.match(/>U\+202E</g)).toHaveLength(8);
});

it("leads to the table that a key references", () => {
  expect(html).toContain(`href="#/tables/${encodeURIComponent('sales\u202e."2026.orders\u202e"')}"`);
});
