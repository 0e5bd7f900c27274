import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

const storage = { length: 0, key: () => null, getItem: () => null, setItem: () => undefined };
vi.stubGlobal("sessionStorage", storage);
vi.stubGlobal("localStorage", storage);
vi.stubGlobal("addEventListener", () => undefined);
vi.stubGlobal("location", { hash: "", pathname: "/console" });
vi.stubGlobal("document", { documentElement: { dataset: {} } });

const { ended } = await import("../api/session.ts");
const { store } = await import("../api/store.ts");
const { NONE } = await import("../schema/edits.ts");
const { changesOf, unsaved } = await import("../schema/unsaved.ts");
const { SignIn } = await import("./SignIn.tsx");

const FORGET = "Forget what is kept in this browser";

it("names a row that was typed and not added, and offers to forget it, though nothing is stored", () => {
  ended.set("expired");
  expect(renderToStaticMarkup(<SignIn />)).not.toContain(FORGET);
  const changes = store(changesOf(NONE));
  changes.update((last) => ({ ...last, typed: new Map([["title", "half"]]) }));
  const owner = { organization: "org_1", database: "main", schema: "public", table: "items" };
  const source = { schema: "public", name: "items", columns: [] };
  unsaved.set([{ owner, changes, source, filters: [], sort: null, pages: [], loaded: undefined }]);
  const html = renderToStaticMarkup(<SignIn />);
  expect(html).toContain("Kept in this tab: a new row in main: public.items, not saved. Sign in to the same");
  expect(html).toContain(FORGET);
});
