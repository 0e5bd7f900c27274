import { expect, it, vi } from "vitest";

vi.stubGlobal("location", { hash: "" });
let arrive: () => void = () => undefined;
vi.stubGlobal("addEventListener", (event: string, listener: () => void) => {
  if (event === "hashchange") arrive = listener;
});

const { addressOf, idOf, labelOf } = await import("./relations.ts");
const { go, place } = await import("./place.ts");

const AMBIGUOUS = [
  ["sales", "2026.orders"],
  ["sales.2026", "orders"],
  ["public", "sales.orders"],
  ["sales", "orders"],
  ['"sales', 'orders"'],
  ["sales", '"orders"'],
  ['a"."b', "c"],
  ["a", 'b"."c'],
].map(([schema = "", name = ""]) => ({ schema, name }));

it("has an id, a label and an address for each relation", () => {
  for (const of of [idOf, labelOf, addressOf]) {
    expect(new Set(AMBIGUOUS.map(of)).size).toBe(AMBIGUOUS.length);
  }
});

it("keeps names without dots and quotes as they are, and so the links to them", () => {
  expect(idOf({ schema: "sales", name: "Größe & Preis" })).toBe("sales.Größe & Preis");
  expect(labelOf({ schema: "public", name: "orders" })).toBe("orders");
  expect(addressOf({ schema: "public", name: "orders" })).toBe("#/tables/public.orders");
});

it.each([...AMBIGUOUS, { schema: "a/b?c#d", name: "50%" }])("finds its way back from an address: %o", (relation) => {
  go("tables", idOf(relation));
  location.hash = `#${location.hash}`;
  expect(location.hash).toBe(addressOf(relation));
  arrive();
  expect(place.get()).toEqual({ page: "tables", rest: idOf(relation) });
});
