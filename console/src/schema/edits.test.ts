import { expect, it } from "vitest";
import type { Row } from "../api/data.ts";
import { countOf, editsOf, NONE, toggledDelete, withInsert, withoutInsert, withUpdate } from "./edits.ts";

const first: Row = [1, "a"];
const second: Row = [2, "b"];

it("holds a change by its row, with all changed cells of it", () => {
  const once = withUpdate(NONE, first, "title", "x");
  const edits = editsOf(withUpdate(withUpdate(once, second, "title", "y"), first, "note", null));
  expect(edits.updates).toEqual([
    { row: first, changed: { title: "x", note: null } },
    { row: second, changed: { title: "y" } },
  ]);
  expect(edits.updates[0]?.row).toBe(first);
  expect(countOf(editsOf(once))).toBe(1);
});

it("changes no cell of a row that is deleted, until the row is kept", () => {
  const deleted = toggledDelete(withUpdate(NONE, first, "title", "x"), first);
  expect(editsOf(deleted)).toEqual({ updates: [], deletes: [first], inserts: [] });
  expect(editsOf(toggledDelete(deleted, first))).toEqual({
    updates: [{ row: first, changed: { title: "x" } }],
    deletes: [],
    inserts: [],
  });
});

it("takes back one of two equal new rows", () => {
  const both = withInsert(withInsert(NONE, { id: 1 }), { id: 1 });
  expect(editsOf(withoutInsert(both, 0)).inserts).toEqual([{ id: 1 }]);
  expect(countOf(editsOf(both))).toBe(2);
});
