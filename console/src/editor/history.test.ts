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
vi.stubGlobal("addEventListener", nothing);
vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: nothing });
vi.stubGlobal("localStorage", {
  getItem: (key: string) => kept.get(key) ?? null,
  setItem: (key: string, value: string) => void kept.set(key, value),
});

const { session } = await import("../api/session.ts");
const { forgetHistories, historyOf } = await import("./history.ts");
const { ranOf, wordsOf } = await import("./ran.ts");
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
