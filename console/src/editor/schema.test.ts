import { CompletionContext } from "@codemirror/autocomplete";
import { PostgreSQL, sql } from "@codemirror/lang-sql";
import { EditorState } from "@codemirror/state";
import { expect, it, vi } from "vitest";
import type { Table } from "../api/data.ts";

vi.stubGlobal("navigator", { platform: "" });

const { completeName } = await import("./codemirror.ts");
const { namesOf } = await import("./schema.ts");

const HOSTILE = 'orders_2025"; drop table users; --';

const table = (schema: string, name: string, columns: string[] = ["id"]): Table =>
  ({ schema, name, kind: "table", columns: columns.map((each) => ({ name: each, type: "text" })) }) as Table;

const TABLES = [
  table("public", HOSTILE),
  table("public", "Orders", ["Total", "id"]),
  table("public", "user"),
  table("public", "people"),
  table("public", "v1.2"),
  table("My schema", "a"),
  table("__proto__", "error"),
  table("self", "self", ["self"]),
];

const completionAt = (text: string) => {
  const state = EditorState.create({ doc: text, extensions: sql({ dialect: PostgreSQL }) });
  return completeName(namesOf(TABLES), new CompletionContext(state, text.length, true));
};

/** What is inserted for each label, at the end of a text. */
const completed = async (text: string): Promise<Map<string, unknown>> => {
  const found = await completionAt(text);
  return new Map((found?.options ?? []).map(({ label, apply }) => [label, apply ?? label]));
};

it("inserts the names of tables and schemas as names, whatever they are", async () => {
  const all = await completed("select * from ");
  expect([HOSTILE, "Orders", "user", "people", "v1.2", "My schema"].map((name) => all.get(name))).toEqual([
    `"orders_2025""; drop table users; --"`,
    '"Orders"',
    '"user"',
    "people",
    '"v1.2"',
    '"My schema"',
  ]);
  expect(all.has("v1")).toBe(false);
});

it("keeps a name in one piece after a quote that was typed", async () => {
  const all = await completed('select * from "or');
  expect([`"${HOSTILE}"`, '"Orders"', '"people"'].map((label) => all.get(label))).toEqual([
    `"orders_2025""; drop table users; --"`,
    '"Orders"',
    '"people"',
  ]);
});

it("completes the columns of a table, also of one that a script would take for its own", async () => {
  expect([...(await completed('select "Orders".'))]).toEqual([
    ["Total", '"Total"'],
    ["id", "id"],
  ]);
  expect([...(await completed("select self.self."))]).toEqual([["self", "self"]]);
  expect([...(await completed('select "__proto__".'))]).toEqual([["error", "error"]]);
  expect(Object.hasOwn(Object.prototype, "error")).toBe(false);
});

it("completes a word from its start, also if it is a type", async () => {
  const typed = async (text: string) => text.slice((await completionAt(text))?.from);
  for (const word of ["bool", "date", "peo", "Ord"]) expect(await typed(`select ${word}`)).toBe(word);
  expect(await typed("select ")).toBe("");
  expect(await typed("select * from people.")).toBe("");
});
