import { beforeEach, expect, it, vi } from "vitest";

const sent = vi.hoisted(() => ({ run: vi.fn(), runTransaction: vi.fn(), outcomeOf: vi.fn() }));
let keys = 0;
const newKey = () => {
  keys += 1;
  return `key ${keys}`;
};
vi.mock("../api/data.ts", () => ({ ...sent, newKey, rehearse: vi.fn() }));
const nothing = () => undefined;
const kept = new Map<string, string>();
let room = Number.POSITIVE_INFINITY;
vi.stubGlobal("addEventListener", nothing);
vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: nothing });
vi.stubGlobal("localStorage", {
  getItem: (key: string) => kept.get(key) ?? null,
  setItem: (key: string, value: string) => {
    if (value.length > room) throw new Error("QuotaExceededError");
    kept.set(key, value);
  },
});

const { session } = await import("../api/session.ts");
const { forgetHistories, historyOf } = await import("./history.ts");
const { cutText, isCut, ranOf, wordsOf } = await import("./ran.ts");
const { start } = await import("./running.ts");
const { statementsOf } = await import("./statements.ts");

session.set({ organization: { id: "org" } } as never);

const begin = (sql: string, mode: "statement" | "transaction" = "statement") => {
  const statements = statementsOf(sql).map((found) => ({ found, params: [] }));
  return start({ draft: newKey(), mode, database: "main", text: sql, statements }, (run) =>
    historyOf("org").add(ranOf(run, [sql])),
  );
};

/** What a page finds that is loaded now. */
const reloaded = () => {
  forgetHistories();
  return historyOf("org");
};

const ANSWER = { columns: [], types: [], rows: [], command: "INSERT", affectedRows: 1, notices: [] };

beforeEach(() => {
  kept.clear();
  room = Number.POSITIVE_INFINITY;
  forgetHistories();
  for (const each of Object.values(sent)) each.mockReset();
});

it("has a write, with its key, before it is sent", async () => {
  sent.run.mockImplementation(async (_, { idempotencyKey }) => {
    const [entry, ...others] = JSON.parse(kept.get("plainsql.history.org") ?? "[]");
    expect(others).toEqual([]);
    expect(entry).toMatchObject({
      sql: "insert into t values (1)",
      end: "sent",
      effect: "unknown",
      key: idempotencyKey,
    });
    return ANSWER;
  });
  await begin("insert into t values (1)");
  expect(sent.run).toHaveBeenCalledTimes(1);
  expect(reloaded().ran.get().map(wordsOf)).toEqual(["Done, 1 row affected"]);
});

it("keeps a read only when it has ended", async () => {
  sent.run.mockImplementation(async () => {
    expect(kept.size).toBe(0);
    return ANSWER;
  });
  await begin("select 1");
  expect(reloaded().ran.get()).toHaveLength(1);
});

it.each(["committed", "not_executed"])(
  "asks by its key what became of a write whose page went away: %s",
  async (outcome) => {
    sent.runTransaction.mockReturnValue(new Promise(nothing));
    void begin("delete from t; delete from u", "transaction");
    const history = reloaded();
    const [entry] = history.ran.get();
    if (!entry?.key) throw new Error("There is no key.");
    expect(wordsOf(entry)).toBe("Outcome unknown: no response");
    expect(sent.runTransaction.mock.calls[0]?.[1]).toMatchObject({ idempotencyKey: entry.key });
    sent.outcomeOf.mockRejectedValueOnce(new Error("no response"));
    expect(await history.ask(entry)).toBe("unknown");
    expect(history.ran.get()).toEqual([entry]);
    sent.outcomeOf.mockResolvedValueOnce("in_progress").mockResolvedValueOnce(outcome);
    expect(await history.ask(entry)).toBe(outcome);
    expect(sent.outcomeOf.mock.calls.at(-1)?.slice(0, 2)).toEqual([entry.key, "main"]);
    const words = { committed: "No response, but committed", not_executed: "No response, not executed" };
    expect(reloaded().ran.get().map(wordsOf)).toEqual([words[outcome as keyof typeof words]]);
  },
);

const ranOfLength = (length: number, id: string) => ({
  id,
  at: 1,
  sql: id.padEnd(length, "x"),
  database: "main",
  statements: 1,
  end: "done" as const,
  rows: 0,
  affected: 1,
  hasMore: false,
  ms: 1,
});

it("keeps SQL whole, and says of what is too long that it is cut", () => {
  const history = historyOf("org");
  const lengths = [19_999, 20_000, 600_000, 400_001, 1_000_001];
  for (const length of lengths) history.add(ranOfLength(length, `${length} `));
  history.add(ranOfLength(10, "last"));
  const ran = () => reloaded().ran.get();
  const found = () => ran().map((each) => [each.sql.length, isCut(each)]);
  const cut = [1_000, true];
  expect(found()).toEqual([[10, false], cut, [400_001, false], cut, [20_000, false], [19_999, false]]);
  expect(ran()[1] && cutText(ran()[1] as never)).toContain("Only the first 1,000 of 1,000,001 characters were kept");
  for (const length of lengths.slice(1, 3)) historyOf("org").add(ranOfLength(length, "again "));
  expect(found().slice(0, 1)).toEqual([[600_000, false]]);
  historyOf("org").add(ranOfLength(400_000, "more"));
  historyOf("org").add(ranOfLength(20_000, "most"));
  expect(found().slice(0, 3)).toEqual([[20_000, false], [400_000, false], cut]);
});

it("keeps each entry with its key, and cuts long texts, where the browser stores little more", () => {
  room = 60_000;
  const lengths = [10, 30_000, 19_999, 1_000_000];
  for (const length of lengths) historyOf("org").add({ ...ranOfLength(length, `${length} `), key: `key ${length}` });
  const ran = reloaded().ran.get();
  expect(ran.map(({ key, sql, length }) => [key, sql.length, length])).toEqual([
    ["key 1000000", 1_000, 1_000_000],
    ["key 19999", 19_999, undefined],
    ["key 30000", 1_000, 30_000],
    ["key 10", 10, undefined],
  ]);
  expect(ran.map(isCut)).toEqual([true, false, true, false]);
  // Then the older ones go.
  room = 2_000;
  historyOf("org").add(ranOfLength(1_000_000, "last"));
  expect(reloaded().ran.get().map(isCut)).toEqual([true]);
});

it("takes what an older version has cut for no whole text", () => {
  const old = [20_000, 19_999].map((length) => ranOfLength(length, `${length}`));
  kept.set("plainsql.history.org", JSON.stringify(old));
  const history = reloaded();
  history.add(ranOfLength(10, "last"));
  expect(history.ran.get().map(isCut)).toEqual([false, true, false]);
  expect(cutText(history.ran.get()[1] as never)).toContain("Only the first 20,000 characters were kept");
});

it("says that saving would replace another query", () => {
  const history = historyOf("org");
  history.save("mine", "select 1");
  const replaced = [
    ["mine", "select 1"],
    ["mine", "select 2"],
    ["other", "select 2"],
  ].map(([name = "", sql = ""]) => history.replaces(name, sql));
  expect(replaced).toEqual([false, true, false]);
});
