import { expect, it } from "vitest";
import { type Column, pageOf, readable, type Source, statementsFor, typedValue } from "./statements.ts";

const column = (name: string, type: string, more: Partial<Column> = {}): Column => ({
  name,
  type,
  nullable: false,
  default: null,
  primary_key: false,
  ...more,
});
const notes: Source = {
  schema: "public",
  name: "Notes",
  columns: [
    column("id", "bigint", { primary_key: true }),
    column("body", "text", { nullable: true }),
    column("at", "date"),
  ],
};

it("pages by the key", () => {
  const view = { filters: [], sort: null };
  expect(pageOf(notes, view, { kind: "start" }).sql).toBe(
    'select id, body, at\nfrom public."Notes"\norder by id\nlimit 201',
  );
  const next = pageOf(
    notes,
    { filters: [], sort: { column: "at", isDescending: true } },
    {
      kind: "after",
      row: ["7", "x", "2026-01-01"],
    },
  );
  expect(next.sql).toContain("where (at, id) < ($1, $2)\norder by at desc, id desc");
  expect(next.params).toEqual(["2026-01-01", "7"]);
});

it("counts rows where a column may be null", () => {
  const sort = { column: "body", isDescending: false };
  const { sql } = pageOf(notes, { filters: [], sort }, { kind: "offset", rows: 200 });
  expect(sql).toContain("order by body\nlimit 201\noffset 200");
});

it("filters by values, never by SQL", () => {
  const filters = [
    { column: "body", operator: "contains", value: "50%'; --" },
    { column: "at", operator: "is not null", value: "" },
  ] as const;
  const { sql, params } = pageOf(notes, { filters, sort: null }, { kind: "start" });
  expect(sql).toContain("where body::text ilike $1 and at is not null");
  expect(params).toEqual(["%50\\%'; --%"]);
});

it("changes one row with each statement, unless another user changed it", () => {
  const row = ["7", null, "2026-01-01"];
  const edits = {
    updates: [{ row, changed: { body: "it's", at: "2026-02-02" } }],
    deletes: [["8", "y", "2026-01-01"]],
    inserts: [{ body: "new" }, {}],
  };
  const statements = statementsFor(notes, edits);
  expect(statements.map(({ sql }) => sql)).toEqual([
    'delete from public."Notes" where id = $1',
    'update public."Notes" set body = $1, at = $2 where id = $3 and body is null and at = $4',
    'insert into public."Notes" (body) values ($1)',
    'insert into public."Notes" default values',
  ]);
  expect(statements.every(({ expect: expected }) => expected?.affectedRows === 1)).toBe(true);
  expect(statements[1]?.params).toEqual(["it's", "2026-02-02", "7", "2026-01-01"]);
  expect(readable(statements[1] as never)).toBe(
    "update public.\"Notes\" set body = 'it''s', at = '2026-02-02' where id = '7' and body is null and at = '2026-01-01'",
  );
});

it("sends JSON as text, with every digit of its numbers", () => {
  const column = { nullable: true, default: null, primary_key: false };
  const id = { ...column, name: "id", type: "jsonb", primary_key: true };
  const docs = { schema: "public", name: "docs", columns: [id, { ...column, name: "all", type: "json[]" }] };
  const edits = { updates: [{ row: ["1.10", null], changed: { all: ["2.10"] } }], deletes: [], inserts: [{ id: "3" }] };
  const statements = statementsFor(docs, edits);
  expect(statements.map(({ sql }) => sql)).toEqual([
    'update public.docs set "all" = $1::text[]::json[] where id = $2::text::jsonb',
    "insert into public.docs (id) values ($1::text::jsonb)",
  ]);
  expect(statements[0]?.params).toEqual([["2.10"], "1.10"]);
  expect(readable(statements[0] as never)).toContain("'{\"2.10\"}'::text[]");
});

it("reads JSON where a column holds it", () => {
  expect(typedValue('{"a": 1.10}', "jsonb")).toBe('{"a": 1.10}');
  expect(typedValue('[{"a": 1.10}, null]', "jsonb[]")).toEqual(['{"a": 1.10}', null]);
  expect(typedValue("[1]", "integer[]")).toEqual([1]);
  expect(typedValue("[1]", "text")).toBe("[1]");
  expect(() => typedValue("{", "json")).toThrow();
});
