import { expect, it } from "vitest";
import { type Column, type Described, pageOf, readable, statementsFor, typedValue } from "./statements.ts";

const column = (name: string, type: string, more: Partial<Column> = {}): Column => ({
  name,
  type,
  nullable: false,
  default: null,
  primary_key: false,
  ...more,
});
const notes: Described = {
  schema: "public",
  name: "Notes",
  columns: [
    column("id", "bigint", { primary_key: true }),
    column("body", "text", { nullable: true }),
    column("at", "date"),
  ],
  types: ["int8", "text", "date"],
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
  // Rows with the same value, or none, have an order, too.
  expect(sql).toContain("order by body, id\nlimit 201\noffset 200");
});

it("orders rows without a key by their place, where they have one", () => {
  const columns = [column("body", "text", { nullable: true })];
  const orderOf = (
    kind: "table" | "partitioned_table" | "view",
    sort: { column: string; isDescending: boolean } | null,
  ) =>
    /order by .*/.exec(
      pageOf({ schema: "public", name: "t", columns, kind }, { filters: [], sort }, { kind: "offset", rows: 200 }).sql,
    )?.[0];
  expect(orderOf("table", null)).toBe("order by ctid");
  expect(orderOf("table", { column: "body", isDescending: true })).toBe("order by body desc, ctid");
  expect(orderOf("partitioned_table", null)).toBe("order by tableoid, ctid");
  expect(orderOf("view", null)).toBeUndefined();
});

it("shows the values of parameters, and leaves names that look like one", () => {
  const columns = [column("id", "integer", { primary_key: true }), column("cost$1", "text"), column("$2", "text")];
  const source = { schema: "public", name: "$1", columns, types: ["int4", "text", "text"] };
  const [statement] = statementsFor(source, {
    updates: [
      {
        row: [7, "a", "b"],
        changed: new Map([
          ["cost$1", "x"],
          ["$2", "y $1"],
        ]),
      },
    ],
    deletes: [],
    inserts: [],
  });
  expect(readable(statement as never)).toBe(
    `update public."$1" set "cost$1" = 'x', "$2" = 'y $1' where id = '7' and "cost$1" = 'a' and "$2" = 'b'`,
  );
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
    updates: [
      {
        row,
        changed: new Map([
          ["body", "it's"],
          ["at", "2026-02-02"],
        ]),
      },
    ],
    deletes: [["8", "y", "2026-01-01"]],
    inserts: [new Map([["body", "new"]]), new Map()],
  };
  const statements = statementsFor(notes, edits);
  expect(statements.map(({ sql }) => sql)).toEqual([
    'delete from public."Notes" where id = $1 and body = $2 and at = $3',
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

it("compares each type with what was read of it", () => {
  const cells: [string, string, unknown, string][] = [
    ["real", "float4", 0.1, "c = $2"],
    ["bytea", "bytea", "AP8=", "c = $2"],
    ["time without time zone", "time", "10:00:00", "c = $2"],
    ["inet", "inet", "10.0.0.1", "c = $2"],
    ["text[]", "text[]", ["a"], "c = $2"],
    ["mood", "mood", "sad", "format('%s', c) = $2"],
    ["interval", "interval", "1 mon", "format('%s', c) = $2"],
    ["point", "point", "(1,2)", "format('%s', c) = $2"],
    // A domain is read as its base type.
    ["digest", "bytea", "AP8=", "c = $2"],
    ["jsonb", "jsonb", '{"a": 1.10}', "c::text = $2"],
    ["json", "json", "[1]", "btrim(translate(c::text, E'\\n\\r', '  '), E' \\t') = $2"],
    ["jsonb", "jsonb", null, "coalesce(c::text, 'null') = 'null'"],
    ["mood", "mood", null, "c is null"],
    ["json[]", "json[]", ["1"], ""],
    ["point[]", "point[]", ["(1,2)"], ""],
  ];
  for (const [declared, read, value, condition] of cells) {
    const columns = [column("id", "integer", { primary_key: true }), column("c", declared)];
    const source = { schema: "public", name: "t", columns, types: ["int4", read] };
    const [statement] = statementsFor(source, { updates: [], deletes: [[1, value]], inserts: [] });
    expect(statement?.sql).toBe(`delete from public.t where id = $1${condition && ` and ${condition}`}`);
    expect(statement?.params).toEqual(condition.includes("$2") ? [1, value] : [1]);
  }
});

it("sends JSON as text, with every digit of its numbers", () => {
  const column = { nullable: true, default: null, primary_key: false };
  const id = { ...column, name: "id", type: "jsonb", primary_key: true };
  const all = { ...column, name: "all", type: "json[]" };
  const docs = { schema: "public", name: "docs", columns: [id, all], types: ["jsonb", "json[]"] };
  const edits = {
    updates: [{ row: ["1.10", null], changed: new Map([["all", ["2.10"]]]) }],
    deletes: [],
    inserts: [new Map([["id", "3"]])],
  };
  const statements = statementsFor(docs, edits);
  expect(statements.map(({ sql }) => sql)).toEqual([
    'update public.docs set "all" = $1::text[]::json[] where id = $2::text::jsonb and "all" is null',
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
