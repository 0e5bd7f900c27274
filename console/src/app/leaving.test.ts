import { beforeEach, expect, it, vi } from "vitest";

const listeners: Record<string, (event: Event) => void> = {};
const browser = {
  location: { hash: "#/tables/public.a", pathname: "/console" },
  history: {
    replaceState: (_: unknown, __: string, hash: string) => {
      browser.location.hash = hash;
    },
  },
};
vi.stubGlobal("location", browser.location);
vi.stubGlobal("history", browser.history);
vi.stubGlobal("addEventListener", (name: string, listener: (event: Event) => void) => {
  listeners[name] = listener;
});

const { answer, asked, holdUnsaved, mayLeave } = await import("./leaving.ts");
const { place } = await import("./place.ts");

const open = (hash: string) => {
  browser.location.hash = hash;
  listeners.hashchange?.(new Event("hashchange"));
};
const fires = () => {
  const event = new Event("beforeunload", { cancelable: true });
  listeners.beforeunload?.(event);
  return event.defaultPrevented;
};

let release: () => void = () => undefined;
beforeEach(() => {
  release();
  answer(false);
  open("#/tables/public.a");
});

it("leaves without a question what has nothing to lose", () => {
  open("#/query");
  expect([place.get().page, asked.get(), fires()]).toEqual(["query", undefined, false]);
});

it("stays where it is until one says to leave", () => {
  release = holdUnsaved();
  open("#/tables/public.b");
  expect([place.get().rest, fires()]).toEqual(["public.a", true]);
  answer(false);
  expect([place.get().rest, browser.location.hash, asked.get()]).toEqual(["public.a", "#/tables/public.a", undefined]);
  open("#/query");
  answer(true);
  expect([place.get().page, browser.location.hash]).toEqual(["query", "#/query"]);
});

it("needs no question on the way back", () => {
  release = holdUnsaved();
  open("#/query");
  expect(asked.get()).toBeDefined();
  open("#/tables/public.a");
  expect(asked.get()).toBeUndefined();
});

it("asks once, however often one wants to leave, and goes where one wanted last", () => {
  release = holdUnsaved();
  const done: string[] = [];
  mayLeave(
    () => done.push("one"),
    () => done.push("not one"),
  );
  mayLeave(() => done.push("two"));
  answer(false);
  expect(done).toEqual(["not one"]);
  open("#/query");
  open("#/keys");
  answer(true);
  expect([place.get().page, browser.location.hash]).toEqual(["keys", "#/keys"]);
  release();
  mayLeave(() => done.push("three"));
  expect(done.at(-1)).toBe("three");
});

it("asks about what is not shown where that would be lost, too", () => {
  const done: string[] = [];
  const signOut = () => mayLeave(() => done.push("signed out"), undefined, "1 change in main: public.b");
  signOut();
  expect([done, asked.get()?.others]).toEqual([[], "1 change in main: public.b"]);
  answer(false);
  signOut();
  answer(true);
  expect(done).toEqual(["signed out"]);
});
