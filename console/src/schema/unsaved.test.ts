import { afterEach, beforeEach, expect, it, vi } from "vitest";

const listeners: Record<string, (event: Event) => void> = {};
vi.stubGlobal("addEventListener", (name: string, listener: (event: Event) => void) => {
  listeners[name] = listener;
});
vi.stubGlobal(
  "BroadcastChannel",
  class {
    postMessage = () => undefined;
    addEventListener = () => undefined;
  },
);
vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: () => undefined, removeItem: () => undefined });

const { end, ended, expire, keep } = await import("../api/session.ts");
const { store } = await import("../api/store.ts");
const { renamed } = await import("../app/databases.ts");
const { NONE, toggledDelete, withInsert, withUpdate } = await import("./edits.ts");
const { isSmall, changesOf, unsaved, keepAtEnd, unsavedOf, unsavedText, release, updateSent, isTooLate } = await import(
  "./unsaved.ts"
);

const signIn = (organization: string, leftMs = 3_600_000) =>
  keep({
    id: "ses_1",
    token: "t",
    expiresAt: new Date(Date.now() + leftMs).toISOString(),
    organization: { id: organization },
  } as unknown as Parameters<typeof keep>[0]);

const row = [1, "a"];
const owner = { organization: "org_1", database: "main", schema: "public", table: "t" };
const made = (pending = withInsert(withUpdate(NONE, row, "title", "x"), new Map([["title", "new"]]))) => ({
  owner,
  changes: store(changesOf(pending)),
  source: { schema: "public", name: "t", columns: [] },
  filters: [],
  sort: null,
  pages: [],
  loaded: undefined,
});
const asks = () => {
  const event = new Event("beforeunload", { cancelable: true });
  listeners.beforeunload?.(event);
  return event.defaultPrevented;
};

/** What was changed is kept when the session expires. */
const expired = (found = made()) => {
  signIn("org_1", -1);
  expire();
  keepAtEnd(found);
  return found;
};

beforeEach(() => {
  end("forgotten");
  ended.set("");
  unsaved.set([]);
});

afterEach(() => {
  vi.useRealTimers();
});

it("gives changes back to one who signs in again to the same organization, with their key", () => {
  const found = expired();
  expect(asks()).toBe(true);
  signIn("org_1");
  const back = unsavedOf(owner);
  expect(back).toBe(found);
  expect(back?.changes.get().pending.updates.get(row)).toEqual(new Map([["title", "x"]]));
  expect(unsavedOf({ ...owner, database: "other" })).toBeUndefined();
  expect(unsavedOf({ ...owner, table: "u" })).toBeUndefined();
  release(owner);
  expect([unsavedOf(owner), asks()]).toEqual([undefined, false]);
});

it("keeps them as well when the service refuses the session, and those of each table", () => {
  signIn("org_1");
  end("refused");
  keepAtEnd(made());
  keepAtEnd({ ...made(), owner: { ...owner, table: "u" } });
  const again = made();
  keepAtEnd(again);
  expect(unsaved.get()).toHaveLength(2);
  expect(unsavedOf(owner)).toBe(again);
});

it("gives no value to another organization, nor back to the first one after it", () => {
  expired();
  signIn("org_2");
  expect(unsaved.get()).toEqual([]);
  end("refused");
  signIn("org_1");
  expect(unsavedOf(owner)).toBeUndefined();
});

it("keeps nothing that one has left, or has signed out of", () => {
  signIn("org_1");
  keepAtEnd(made());
  end("signed out");
  keepAtEnd(made());
  expect(unsaved.get()).toEqual([]);
  expired();
  ended.set("forgotten");
  expect(unsaved.get()).toEqual([]);
  // Their table was not shown in the session that ends now.
  expired();
  signIn("org_1");
  expect(unsaved.get()).toHaveLength(1);
  end("signed out");
  expect(unsaved.get()).toEqual([]);
});

it("keeps nothing where nothing was changed, but what is typed for a new row", () => {
  expired(made(NONE));
  expect(unsaved.get()).toEqual([]);
  const typing = made(NONE);
  typing.changes.update((last) => ({ ...last, typed: new Map([["title", "half a ti"]]) }));
  expired(typing);
  expect(unsavedOf(owner)?.changes.get().typed.get("title")).toBe("half a ti");
  keepAtEnd({ ...made(), owner: { ...owner, database: "", table: "a.b" } });
  expect(unsavedText(unsaved.get())).toBe(
    'a new row in main: public.t, not saved; 2 changes in the default database: public."a.b", not saved',
  );
});

it("says that it is unknown whether changes were saved that were on their way, until a response comes", () => {
  const sent = made();
  sent.changes.update((last) => ({ ...last, isBusy: true }));
  const { idempotencyKey } = sent.changes.get();
  expired(sent);
  expect(unsavedOf(owner)?.changes.get()).toMatchObject({ isInDoubt: true, idempotencyKey });
  expect(unsavedText(unsaved.get())).toBe("2 changes in main: public.t, perhaps saved");
  const seen: string[] = [];
  unsaved.follow(() => seen.push(unsavedText(unsaved.get())));
  updateSent(sent.changes, idempotencyKey, (last) => ({ ...last, isInDoubt: false }));
  sent.changes.set(changesOf(NONE, 1));
  expect([unsavedOf(owner), asks()]).toEqual([undefined, false]);
  expect(seen).toEqual(["2 changes in main: public.t, not saved", ""]);
});

it("follows a database that is renamed, and a late response follows as well", () => {
  const found = expired();
  keepAtEnd({ ...made(), owner: { ...owner, database: "other" } });
  signIn("org_1");
  renamed("main", "store");
  expect([unsavedOf(owner), unsavedOf({ ...owner, database: "store" })]).toEqual([undefined, found]);
  expect(unsavedText(unsaved.get())).toContain("2 changes in store: public.t, not saved; 2 changes in other:");
  found.changes.set(changesOf(NONE, 1));
  expect(unsaved.get().map((each) => each.owner.database)).toEqual(["other"]);
});

it("lets a late response change nothing but what it belongs to", () => {
  const { changes } = made();
  const { idempotencyKey } = changes.get();
  changes.set(changesOf(withUpdate(NONE, row, "title", "another")));
  const others = changes.get();
  const isInDoubt = (sent: typeof others) => ({ ...sent, isInDoubt: true });
  expect(updateSent(changes, idempotencyKey, () => changesOf(NONE, 1))).toBe(false);
  expect(updateSent(changes, idempotencyKey, isInDoubt)).toBe(false);
  expect(changes.get()).toBe(others);
  expect(updateSent(changes, others.idempotencyKey, isInDoubt)).toBe(true);
  expect(changes.get()).toEqual(isInDoubt(others));
});

it("does not let changes in doubt be sent again when the service may have forgotten their key", () => {
  vi.useFakeTimers();
  const sent = { ...changesOf(NONE), isInDoubt: true, sentAt: Date.now() };
  vi.advanceTimersByTime(23 * 3_600_000);
  expect(isTooLate(sent)).toBe(false);
  vi.advanceTimersByTime(3_600_000);
  expect([isTooLate(sent), isTooLate({ ...sent, isInDoubt: false })]).toEqual([true, false]);
});

it("lets one discard a single change unasked, but no new row, and nothing in doubt", () => {
  const one = withUpdate(NONE, row, "title", "x");
  const ofOneRow = withUpdate(one, row, "data", "a long text");
  const small = [NONE, one, withUpdate(one, row, "title", "y"), toggledDelete(NONE, row)];
  expect(small.map((each) => isSmall(changesOf(each)))).toEqual([true, true, true, true]);
  const large = [ofOneRow, toggledDelete(ofOneRow, row), withUpdate(one, [2, "b"], "title", "y")];
  const all = [...large, withInsert(NONE, new Map())];
  expect(all.map((each) => isSmall(changesOf(each)))).toEqual([false, false, false, false]);
  expect(isSmall({ ...changesOf(one), isInDoubt: true })).toBe(false);
});
