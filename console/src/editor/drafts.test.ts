import { expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });

const { Drafts } = await import("./drafts.ts");

class FakeStorage {
  readonly kept = new Map<string, string>();
  isFull = false;
  /** How many characters it has room for. */
  room = Number.POSITIVE_INFINITY;
  get length() {
    return this.kept.size;
  }
  key = (index: number) => [...this.kept.keys()][index] ?? null;
  getItem = (key: string) => this.kept.get(key) ?? null;
  setItem = (key: string, value: string) => {
    const others = [...this.kept].filter(([each]) => each !== key).map(([each, text]) => each.length + text.length);
    const used = others.reduce((all, size) => all + size, key.length + value.length);
    if (this.isFull || used > this.room) throw new Error("QuotaExceededError");
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

it("has parameters of its own text only, which come back with it", () => {
  const found = drafts("org", new FakeStorage());
  const id = found.active.get();
  const parameters = [{ kind: "text" as const, text: "42" }];
  const now = (sql: string) => {
    found.change(id, { sql });
    return found.open[0]?.parameters;
  };
  found.change(id, { sql: "delete from t where id = $1" });
  found.change(id, { parameters });
  expect(now("delete from u where id = $1")).toEqual(parameters);
  expect([now(" "), now(""), now("delete from u where id = $1")]).toEqual([[], [], parameters]);
  expect([now(""), now("d"), now("delete from v where id = $1")]).toEqual([[], [], []]);
  expect([now(""), now("delete from u where id = $1")]).toEqual([[], []]);
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

const ranOf = (storage: FakeStorage) => JSON.parse(storage.getItem("plainsql.history.org") ?? "[]") as number[];

it("drops the history, and then what was closed first, before it keeps what is typed in the page only", () => {
  const storage = new FakeStorage();
  const found = drafts("org", storage);
  const typed = found.open[0]?.id ?? "";
  const now = vi.spyOn(Date, "now").mockReturnValueOnce(0);
  for (const [i, sql] of ["select 'a'", "select 'b'"].entries()) {
    const { id } = found.add(sql.padEnd(1000), sql);
    now.mockReturnValue(1000 + i);
    found.close(id);
  }
  now.mockRestore();
  storage.setItem("plainsql.history.org", JSON.stringify(Array(1000).fill(1)));
  storage.room = 5000;
  const type = (characters: number) => {
    found.change(typed, { sql: "x".repeat(characters) });
    return [found.isFull.get(), ranOf(storage).length, found.closed.map(({ title }) => title)];
  };
  const closed = ["select 'b'", "select 'a'"];
  expect(type(100)).toEqual([false, 1000, closed]);
  expect(type(1500)).toEqual([false, 500, closed]);
  expect(type(3000)).toEqual([false, 0, ["select 'b'"]]);
  expect(type(4700)).toEqual([false, 0, []]);
  expect(drafts("org", storage).open.map(({ sql }) => sql.length)).toEqual([4700]);
  expect(type(6000)).toEqual([true, 0, []]);
});

it("stores what it could not when a large tab is closed", () => {
  const storage = new FakeStorage();
  const found = drafts("org", storage);
  const typed = found.open[0]?.id ?? "";
  const large = found.add("y".repeat(4000));
  storage.room = 5000;
  found.change(typed, { sql: "x".repeat(2000) });
  expect(found.isFull.get()).toBe(true);
  found.close(large.id);
  expect(found.isFull.get()).toBe(false);
  expect(drafts("org", storage).open.map(({ sql }) => sql.length)).toEqual([2000]);
});
