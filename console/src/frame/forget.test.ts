import { expect, it, vi } from "vitest";

class Kept {
  readonly #all = new Map<string, string>();
  get length() {
    return this.#all.size;
  }
  key = (index: number) => [...this.#all.keys()][index] ?? null;
  getItem = (key: string) => this.#all.get(key) ?? null;
  setItem = (key: string, value: string) => void this.#all.set(key, value);
  removeItem = (key: string) => void this.#all.delete(key);
  clear = () => this.#all.clear();
}

let hear: () => void = () => undefined;
const posted: string[] = [];
vi.stubGlobal(
  "BroadcastChannel",
  class {
    readonly #name: string;
    constructor(name: string) {
      this.#name = name;
    }
    postMessage = () => void posted.push(this.#name);
    addEventListener = (_: string, listener: typeof hear) => {
      if (this.#name === "plainsql.forget") hear = listener;
    };
  },
);
vi.stubGlobal("localStorage", new Kept());
vi.stubGlobal("sessionStorage", new Kept());
vi.stubGlobal("addEventListener", () => undefined);
vi.stubGlobal("location", { hash: "#/tables/public.secrets", pathname: "/console" });
vi.stubGlobal("history", {
  replaceState: (_: unknown, __: string, address: string) => {
    location.hash = address.includes("#") ? address.slice(address.indexOf("#")) : "";
  },
});

const { draftsOf } = await import("../editor/drafts.ts");
const { historyOf } = await import("../editor/history.ts");
const { ended } = await import("../api/session.ts");
const { forgetAll, storedIn } = await import("./forget.ts");

const ran = (sql: string) => ({
  at: 1,
  sql,
  database: "main",
  statements: 1,
  end: "done" as const,
  rows: 1,
  affected: 0,
  hasMore: false,
  ms: 1,
});

const work = () => {
  const [drafts, history] = [draftsOf("org"), historyOf("org")];
  drafts.change(drafts.active.get(), { sql: "select 'secret'" });
  drafts.close(drafts.add("select 'closed'").id);
  drafts.add();
  historyOf("another").save("mine", "select 'saved'");
  history.add(ran("select 'secret'"));
  localStorage.setItem("plainsql.theme", "dark");
  localStorage.setItem("plainsql.split", "50");
  localStorage.setItem("other.program", "select 'theirs'");
  sessionStorage.setItem("plainsql.database.org", "main");
  return { drafts, history };
};

const stored = () =>
  [localStorage, sessionStorage].map((each) => Array.from({ length: each.length }, (_, i) => each.key(i)));
const LEFT = [["plainsql.theme", "plainsql.split", "other.program"], []];

it("counts what is lost, without empty tabs", () => {
  work();
  expect(storedIn(localStorage)).toEqual({ open: 1, closed: 1, ran: 1, saved: 1 });
});

it.each(["here", "in another tab"])("leaves nothing but how the page looks, told %s", (where) => {
  posted.length = 0;
  work();
  if (where === "here") forgetAll();
  else hear();
  expect(stored()).toEqual(LEFT);
  expect([ended.get(), location.hash]).toEqual(["forgotten", ""]);
  expect(posted).toEqual(where === "here" ? ["plainsql.forget"] : []);
});

it("stores nothing of what ends later, and begins anew", () => {
  const { drafts, history } = work();
  forgetAll();
  drafts.change(drafts.active.get(), { sql: "select 'typed'" });
  drafts.add("select 'shared'");
  drafts.hear(null);
  history.add(ran("select 'late'"));
  expect(history.save("late", "select 'late'")).toBe(false);
  expect(stored()).toEqual(LEFT);
  expect(
    draftsOf("org")
      .all.get()
      .map(({ sql }) => sql),
  ).toEqual([""]);
  expect(historyOf("org").ran.get()).toEqual([]);
});
