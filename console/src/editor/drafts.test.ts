import { expect, it } from "vitest";
import { Drafts } from "./drafts.ts";

class FakeStorage {
  readonly kept = new Map<string, string>();
  isFull = false;
  get length() {
    return this.kept.size;
  }
  key = (index: number) => [...this.kept.keys()][index] ?? null;
  getItem = (key: string) => this.kept.get(key) ?? null;
  setItem = (key: string, value: string) => {
    if (this.isFull) throw new Error("QuotaExceededError");
    this.kept.set(key, value);
  };
  removeItem = (key: string) => void this.kept.delete(key);
  clear = () => this.kept.clear();
}

const drafts = (organization: string, storage: Storage, tab: Storage = new FakeStorage()) =>
  new Drafts(organization, storage, tab);

it("keeps what is typed, each tab on its own", () => {
  const storage = new FakeStorage();
  const here = drafts("org", storage);
  const [first] = here.open;
  here.change(first?.id ?? "", { sql: "select 1" });
  const there = drafts("org", storage);
  const second = there.add("select 2");
  here.hear(null);
  expect(here.open.map((draft) => draft.sql)).toEqual(["select 1", "select 2"]);
  there.change(second.id, { sql: "select 3" });
  here.change(first?.id ?? "", { sql: "select 0" });
  expect(drafts("org", storage).open.map((draft) => draft.sql)).toEqual(["select 0", "select 3"]);
  expect(drafts("another", storage).open.map((draft) => draft.sql)).toEqual([""]);
});

it("opens a closed tab again", () => {
  const found = drafts("org", new FakeStorage());
  const draft = found.add("select 1", "Mine");
  found.close(draft.id);
  expect(found.closed.map((each) => each.title)).toEqual(["Mine"]);
  found.reopen(draft.id);
  expect(found.active.get()).toBe(draft.id);
  expect(found.open.at(-1)?.sql).toBe("select 1");
});

it("always has a tab, and says when the storage is full", () => {
  const storage = new FakeStorage();
  const found = drafts("org", storage);
  for (const { id } of found.open) found.close(id);
  expect(found.open).toHaveLength(1);
  storage.isFull = true;
  found.change(found.active.get(), { sql: "select 1" });
  expect([found.isFull.get(), found.open[0]?.sql]).toEqual([true, "select 1"]);
});

it("loses nothing that could not be stored when another window writes", () => {
  const storage = new FakeStorage();
  const here = drafts("org", storage);
  const [first] = here.open;
  here.change(first?.id ?? "", { sql: "select 1" });
  storage.isFull = true;
  here.change(first?.id ?? "", { sql: "select 1, 'typed later'" });
  const unstored = here.add("select 'never stored'");
  here.hear(null);
  expect(here.open.map(({ sql }) => sql)).toEqual(["select 1, 'typed later'", "select 'never stored'"]);
  storage.isFull = false;
  here.change(unstored.id, { sql: "select 'now stored'" });
  expect(here.isFull.get()).toBe(true);
  here.change(first?.id ?? "", { sql: "select 2" });
  expect(here.isFull.get()).toBe(false);
  expect(drafts("org", storage).open.map(({ sql }) => sql)).toEqual(["select 2", "select 'now stored'"]);
});

it("shows the same tab after a reload, each window its own", () => {
  const [storage, tab] = [new FakeStorage(), new FakeStorage()];
  const here = drafts("org", storage, tab);
  const first = here.open[0]?.id ?? "";
  here.add("select 2");
  here.active.set(first);
  expect(drafts("org", storage, tab).active.get()).toBe(first);
  expect(drafts("org", storage).active.get()).not.toBe(first);
});
