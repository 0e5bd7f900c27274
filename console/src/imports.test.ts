/// <reference types="vite/client" />
import { expect, it } from "vitest";

/** The folders. Each may import from itself and from those before it; Biome finds cycles within one. */
const FOLDERS = ["api", "app", "results", "explain", "editor", "import", "schema", "admin", "frame"];

const files = import.meta.glob<string>(["./*/**/*.ts", "./*/**/*.tsx", "!./**/*.test.*"], {
  query: "?raw",
  import: "default",
  eager: true,
});

const folderOf = (path: string): string => path.split("/")[1] ?? "";

/** The other folders that a file imports from, at once or when needed, values or types. */
const importedBy = (path: string, text: string): string[] =>
  [...text.matchAll(/(?:from|import|URL)[ (]*"(\.{1,2}\/[^"]+)"/g)]
    .map(([, to = ""]) => folderOf(`.${new URL(to, `file://${path.slice(1)}`).pathname}`))
    .filter((folder) => folder !== folderOf(path));

it("imports from the folders below only", () => {
  const found = Object.entries(files).flatMap(([path, text]) =>
    importedBy(path, text)
      .filter((folder) => FOLDERS.indexOf(folder) > FOLDERS.indexOf(folderOf(path)))
      .map((folder) => `${path} imports from ${folder}`),
  );
  expect(found).toEqual([]);
});

it("knows all folders, and finds each way to import", () => {
  expect(new Set(Object.keys(files).map(folderOf))).toEqual(new Set(FOLDERS));
  const text = 'import { a } from "../api/a.ts"; import "../app/b.css"; await import("../editor/c.ts"); from "./d.ts"';
  expect(importedBy("./schema/e.ts", text)).toEqual(["api", "app", "editor"]);
  const deep =
    'import { a } from "../../frame/deep/a.ts"; import { b } from "../b.ts"; import { c } from "../deep/c.ts"';
  expect(importedBy("./schema/deep/e.ts", deep)).toEqual(["frame"]);
});
