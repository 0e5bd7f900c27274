import { renderToStaticMarkup } from "react-dom/server";
import { expect, it } from "vitest";
import { Grid } from "./Grid.tsx";
import { rowsInMemory } from "./rows.ts";

const head = (sortOf?: (column: number) => "ascending" | "descending" | "none") => {
  const some = { columns: ["a", "b\u202e"], types: ["int4", "t\u2066"], rows: rowsInMemory([[1, 2]]) };
  return renderToStaticMarkup(<Grid {...some} label="Rows" {...(sortOf && { sortOf })} />);
};
const sorts = (html: string) => html.match(/aria-sort="\w+"/g) ?? [];

it("says by which column its rows are sorted", () => {
  expect(sorts(head((column) => (column === 1 ? "descending" : "none")))).toEqual([
    'aria-sort="none"',
    'aria-sort="descending"',
  ]);
});

it("says nothing of it where rows can't be sorted", () => {
  expect(sorts(head())).toEqual([]);
});

it("marks what is not seen in names and types", () => {
  const html = head();
  expect(html).not.toMatch(/[\u202e\u2066]/);
  expect(html.match(/>U\+(202E|2066)</g)).toHaveLength(2);
});
