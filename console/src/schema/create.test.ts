import { PlainSQLError } from "plainsql";
import { expect, it } from "vitest";
import { createStatement, faultsOf, fieldOf, type NewColumn, type NewTable } from "./create.ts";

const column = (name: string, type: string, more: Partial<NewColumn> = {}): NewColumn => ({
  name,
  type,
  isNotNull: false,
  default: "",
  isKey: false,
  ...more,
});
const table: NewTable = {
  schema: "public",
  name: "Häuser 🏠",
  columns: [
    column("id", "bigint", { isKey: true, isNotNull: true, default: "generated always as identity" }),
    column("title", " text ", { isNotNull: true, default: "'x'" }),
    column("at", "timestamptz", { default: "nown()" }),
  ],
};

it("quotes names, and takes types and defaults as they are", () => {
  expect(createStatement(table).sql).toBe(
    `create table public."Häuser 🏠" (
  id bigint generated always as identity,
  title text not null default 'x',
  at timestamptz default nown(),
  primary key (id)
)`,
  );
  expect(createStatement({ ...table, name: 'a"; drop', columns: [] }).sql).toBe('create table public."a""; drop" (\n)');
});

it("finds empty and repeated names", () => {
  expect(faultsOf(table)).toEqual({});
  const columns = [column("a", "text"), column("a", " "), column("", "text")];
  expect(faultsOf({ schema: "public", name: "", columns })).toEqual({
    name: "The table needs a name.",
    "1.name": "There are two columns a.",
    "1.type": "The column needs a type.",
    "2.name": "The column needs a name.",
  });
});

it("leads an error to its field", () => {
  const created = createStatement(table);
  const of = (fields: object) => fieldOf(new PlainSQLError({ code: "x", message: "", ...fields }), created, table);
  // In characters, of which the house is one.
  expect(of({ position: [...created.sql].join("").indexOf("nown()") })).toBe("2.default");
  expect(of({ position: [...created.sql.slice(0, created.sql.indexOf("timestamptz"))].length + 1 })).toBe("2.type");
  expect(of({ sqlstate: "42P07" })).toBe("name");
  expect(of({ sqlstate: "3F000", position: 14 })).toBe("schema");
  expect(of({ message: 'column "title" is of type text but default expression is of type date' })).toBe("1.default");
  expect(of({ message: "permission denied" })).toBeUndefined();
  expect(fieldOf(new Error("x"), created, table)).toBeUndefined();
});
