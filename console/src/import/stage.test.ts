import { expect, it } from "vitest";
import { type Batch, batchesOf, type Reading } from "./batches.ts";
import { firstFailing, isText, newStage, Stage, type Target } from "./stage.ts";

const target: Target = {
  schema: "public",
  name: "Sales",
  isNew: false,
  columns: [
    { index: 0, name: "id", type: "bigint" },
    { index: 2, name: "Title", type: "character varying(3)" },
    { index: 1, name: "bits", type: "bit(3)" },
  ],
  key: null,
};
const rows = [
  { line: 2, values: ["1", "a", null] },
  { line: 3, values: ["2", null, "101"] },
];

it("stores rows with their lines, and cuts no text", () => {
  const { sql, params } = new Stage(target, "s").insert(rows);
  expect(sql).toBe(
    'insert into public.s (id, "Title", bits, plainsql_line) select c0::bigint, c1, c2::bit varying, line' +
      " from unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) as r(c0, c1, c2, line)",
  );
  expect(params).toEqual([
    ["1", "2"],
    ["a", null],
    [null, "101"],
    [2, 3],
  ]);
  expect(newStage()).toMatch(/^plainsql_import_[0-9a-f]{12}$/);
});

it("copies all rows or none, if each is there once", () => {
  const stage = new Stage(target, "s");
  expect(stage.finish(2)).toEqual([
    { sql: "select 1 from public.s having count(*) = $1::bigint", params: [2], expect: { rowCount: 1 } },
    {
      sql: 'insert into public."Sales" (id, "Title", bits) select id, "Title", bits from public.s order by plainsql_line',
      params: [],
    },
    { sql: "drop table public.s", params: [] },
  ]);
});

it("makes the staging table the new table", () => {
  const stage = new Stage({ ...target, isNew: true, key: "id" }, "s");
  expect(stage.create().sql).toBe(
    'create table public.s (id bigint, "Title" character varying(3), bits bit(3), plainsql_line bigint)',
  );
  expect(
    stage
      .finish(2)
      .slice(1)
      .map(({ sql }) => sql),
  ).toEqual([
    "alter table public.s drop column plainsql_line",
    'alter table public.s rename to "Sales"',
    'alter table public."Sales" add primary key (id)',
  ]);
});

it("says how one looks whether rows are stored, and whether the import has finished", () => {
  const stage = new Stage({ ...target, schema: "It's" }, "s");
  expect(stage.lookForRows([2, 9])).toBe(`select count(*) from "It's".s where plainsql_line between 2 and 9`);
  expect(stage.lookForEnd()).toBe(`select to_regclass('"It''s".s') is null as finished`);
});

it("knows which types have an empty text", () => {
  expect(["text", "citext", "varchar(3)", '"char"', "text[]", "jsonb", "textual"].map(isText)).toEqual([
    true,
    true,
    true,
    true,
    false,
    false,
    false,
  ]);
});

it.each([1, 2, 7, 1000])("finds the first failing of %d rows", async (count) => {
  for (const bad of new Set([1, Math.ceil(count / 2), count])) {
    let asked = 0;
    const fails = async (n: number) => {
      asked += 1;
      return n >= bad;
    };
    expect(await firstFailing(count, fails)).toBe(bad);
    expect(asked).toBeLessThanOrEqual(10);
  }
});

const reading: Reading = { delimiter: ",", hasHeader: true, width: 3, columns: target.columns, isEmptyText: false };
const collect = async (text: string, more: Partial<Reading> = {}) => {
  const found: Batch[] = [];
  for await (const batch of batchesOf(new Blob([text]), { ...reading, ...more })) found.push(batch);
  return found;
};

it("makes rows of the columns, with NULL where a field is empty", async () => {
  const [batch] = await collect('id,bits,title\n1,,\n\n"2","",""\n');
  expect(batch?.rows).toEqual([
    { line: 2, values: ["1", null, null] },
    { line: 4, values: ["2", "", null] },
  ]);
  const [other] = await collect("1,,\n", { hasHeader: false, isEmptyText: true });
  expect(other?.rows).toEqual([{ line: 1, values: ["1", "", null] }]);
  await expect(collect("a,b,c\n1,2\n")).rejects.toThrow("The record has 2 fields, but the first one has 3.");
});

it("makes batches of limited size, in order, and none twice", async () => {
  const text = `a,b,c\n${Array.from({ length: 12_000 }, (_, i) => `${i},x,${"y".repeat(60)}\n`).join("")}`;
  const batches = await collect(text);
  expect(batches.length).toBeGreaterThan(2);
  expect(batches.flatMap((batch) => batch.rows.map(({ values }) => Number(values[0])))).toEqual(
    Array.from({ length: 12_000 }, (_, i) => i),
  );
  expect(batches.at(-1)?.bytes).toBe(text.length);
});
