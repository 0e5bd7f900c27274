import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

const kept = new Map<string, string>();
const storage = {
  get length() {
    return kept.size;
  },
  key: (index: number) => [...kept.keys()][index] ?? null,
  getItem: (key: string) => kept.get(key) ?? null,
  setItem: (key: string, value: string) => void kept.set(key, value),
  removeItem: (key: string) => void kept.delete(key),
  clear: () => kept.clear(),
};
vi.stubGlobal("sessionStorage", storage);
vi.stubGlobal("localStorage", storage);
vi.stubGlobal("addEventListener", () => undefined);

const { Drafts } = await import("./drafts.ts");
const { Tabs } = await import("./Tabs.tsx");

it("marks what is not seen in the names of tabs", () => {
  const drafts = new Drafts("org");
  drafts.add("select 1", "a\u202eb");
  const html = renderToStaticMarkup(<Tabs drafts={drafts} />);
  expect(html).toContain(">U+202E<");
  expect(html).not.toContain("\u202e");
});
