import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });
vi.stubGlobal("addEventListener", () => undefined);

const { Choices } = await import("./ImportForm.tsx");
const { sampleOfFile } = await import("./sample.ts");

it("marks what is not seen in the header and the first values of a file", async () => {
  const sample = await sampleOfFile(new File(["head\u202e,other\nvalue\u2066,1\n"], "file.csv"));
  const html = renderToStaticMarkup(<Choices sample={sample} database="main" tables={[]} schemas={["public"]} />);
  // What is typed into is as it is.
  const shown = html.replaceAll(/ value="[^"]*"/g, "");
  expect(shown).not.toMatch(/[\u202e\u2066]/);
  expect(shown.match(/U\+202E|U\+2066/g)).toEqual(["U+202E", "U+202E", "U+2066"]);
});

it("offers a table for each of those whose names are the same without quotes", async () => {
  const sample = await sampleOfFile(new File(["a\n1\n"], "file.csv"));
  const tables = [
    { schema: "sales", name: "2026.orders", kind: "table" as const },
    { schema: "sales.2026", name: "orders", kind: "table" as const },
  ];
  const html = renderToStaticMarkup(<Choices sample={sample} database="main" tables={tables} schemas={["public"]} />);
  const values = html.match(/<option value="(?:sales|&quot;sales)[^>]*>/g);
  expect(new Set(values).size).toBe(2);
});
