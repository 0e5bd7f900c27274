import { renderToStaticMarkup } from "react-dom/server";
import { beforeEach, expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });
vi.stubGlobal("addEventListener", () => undefined);

const { store } = await import("../api/store.ts");
const { NONE, withInsert } = await import("./edits.ts");
const { changesOf, unsaved } = await import("./unsaved.ts");
const { UnsavedElsewhere } = await import("./UnsavedElsewhere.tsx");

const owner = { organization: "org_1", database: "main", schema: "public", table: "items" };
const other = { ...owner, database: "staging" };
const changes = () => store(changesOf(withInsert(NONE, new Map())));
const source = { schema: "public", name: "items", columns: [] };
const rest = { source, filters: [], sort: null, pages: [], loaded: undefined };

beforeEach(() => unsaved.set([owner, other].map((each) => ({ owner: each, changes: changes(), ...rest }))));

const texts = (shown: typeof owner | undefined) =>
  renderToStaticMarkup(<UnsavedElsewhere shown={shown} open={() => undefined} />).match(/\d [^>]*not saved/g);

it("names what is kept of all tables but the one that is shown", () => {
  const [one, two] = ["1 change in main: public.items, not saved", "1 change in staging: public.items, not saved"];
  expect(texts(undefined)).toEqual([one, two]);
  expect(texts(owner)).toEqual([two]);
  unsaved.set([]);
  expect(texts(owner)).toBeNull();
});
