import { expect, it } from "vitest";
import type { Row } from "../api/data.ts";
import { cellText, DEFAULT } from "../results/cells.ts";
import { countOf, editsOf, NONE, shownOf, toggledDelete, withInsert, withoutInsert, withUpdate } from "./edits.ts";

const first: Row = [1, "a"];
const second: Row = [2, "b"];

it("holds a change by its row, with all changed cells of it", () => {
  const once = withUpdate(NONE, first, "title", "x");
  const edits = editsOf(withUpdate(withUpdate(once, second, "title", "y"), first, "note", null));
  expect(edits.updates).toEqual([
    {
      row: first,
      changed: new Map<string, unknown>([
        ["title", "x"],
        ["note", null],
      ]),
    },
    { row: second, changed: new Map([["title", "y"]]) },
  ]);
  expect(edits.updates[0]?.row).toBe(first);
  expect(countOf(editsOf(once))).toBe(1);
});

it("changes no cell of a row that is deleted, until the row is kept", () => {
  const deleted = toggledDelete(withUpdate(NONE, first, "title", "x"), first);
  expect(editsOf(deleted)).toEqual({ updates: [], deletes: [first], inserts: [] });
  expect(editsOf(toggledDelete(deleted, first))).toEqual({
    updates: [{ row: first, changed: new Map([["title", "x"]]) }],
    deletes: [],
    inserts: [],
  });
});

it("takes back one of two equal new rows", () => {
  const one = new Map([["id", 1]]);
  const both = withInsert(withInsert(NONE, one), new Map(one));
  expect(editsOf(withoutInsert(both, 0)).inserts).toEqual([one]);
  expect(countOf(editsOf(both))).toBe(2);
});

it("takes every name of a column for a name", () => {
  const edits = editsOf(withUpdate(withUpdate(NONE, first, "__proto__", "x"), first, "constructor", "y"));
  expect([...(edits.updates[0]?.changed ?? [])]).toEqual([
    ["__proto__", "x"],
    ["constructor", "y"],
  ]);
});

it("shows what a new row does not give as its default, and a cell that becomes NULL as NULL", () => {
  const pending = withInsert(withUpdate(NONE, second, "title", null), new Map([["title", "new"]]));
  expect(shownOf([first, second], pending, ["id", "title"])).toEqual([
    [1, "a"],
    [2, null],
    [DEFAULT, "new"],
  ]);
  expect(cellText(DEFAULT, "int8")).toBe("DEFAULT");
});
