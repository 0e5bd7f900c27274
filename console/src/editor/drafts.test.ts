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

it("keeps what is typed, each tab on its own", () => {
  const storage = new FakeStorage();
  const here = new Drafts("org", storage);
  const [first] = here.open;
  here.change(first?.id ?? "", { sql: "select 1" });
  const there = new Drafts("org", storage);
  const second = there.add("select 2");
  here.hear(null);
  expect(here.open.map((draft) => draft.sql)).toEqual(["select 1", "select 2"]);
  there.change(second.id, { sql: "select 3" });
  here.change(first?.id ?? "", { sql: "select 0" });
  expect(new Drafts("org", storage).open.map((draft) => draft.sql)).toEqual(["select 0", "select 3"]);
  expect(new Drafts("another", storage).open.map((draft) => draft.sql)).toEqual([""]);
});

it("opens a closed tab again", () => {
  const drafts = new Drafts("org", new FakeStorage());
  const draft = drafts.add("select 1", "Mine");
  drafts.close(draft.id);
  expect(drafts.closed.map((each) => each.title)).toEqual(["Mine"]);
  drafts.reopen(draft.id);
  expect(drafts.active.get()).toBe(draft.id);
  expect(drafts.open.at(-1)?.sql).toBe("select 1");
});

it("always has a tab, and says when the storage is full", () => {
  const storage = new FakeStorage();
  const drafts = new Drafts("org", storage);
  for (const { id } of drafts.open) drafts.close(id);
  expect(drafts.open).toHaveLength(1);
  storage.isFull = true;
  drafts.change(drafts.active.get(), { sql: "select 1" });
  expect([drafts.isFull.get(), drafts.open[0]?.sql]).toEqual([true, "select 1"]);
});
