import { PlainSQLError } from "plainsql";
import { beforeEach, expect, it, vi } from "vitest";

const sent = vi.hoisted(() => ({
  run: vi.fn(),
  runTransaction: vi.fn(),
  outcomeOf: vi.fn(),
  streams: [] as { isRead: boolean }[],
  end: (_: object) => undefined as unknown,
  closed: 0,
}));
vi.mock("../api/data.ts", () => ({ ...sent, newKey: () => "the key", rehearse: vi.fn() }));
vi.mock("../api/requests.ts", () => ({
  textOf: String,
  wasAborted: (error: unknown) => (error as Error).name === "AbortError",
}));
vi.mock("../results/stream.ts", () => ({
  StreamedRows: class {
    columns = [];
    state = { kind: "waiting" };
    constructor(_: unknown, __: string, isRead: boolean) {
      sent.streams.push({ isRead });
    }
    get isRunning() {
      return this.state.kind === "waiting";
    }
    follow = (listener: () => void) => {
      sent.end = (state) => {
        this.state = state as typeof this.state;
        listener();
      };
    };
    close = () => {
      sent.closed += 1;
    };
    cancel = () => undefined;
  },
}));

const { forgetAllRuns, isRunning, runs, start } = await import("./running.ts");
const { statementsOf } = await import("./statements.ts");

const ANSWER = { columns: [], types: [], rows: [], command: "INSERT", affectedRows: 1, notices: [] };

const wanted = (sql: string, mode: "statement" | "transaction" | "stream" = "statement") => ({
  draft: "a",
  mode,
  database: "",
  text: sql,
  statements: statementsOf(sql).map((found) => ({ found, params: [] })),
});

/** Never answers, until it is aborted. */
const untilAborted = (...all: unknown[]) =>
  new Promise((_, reject) => {
    const { signal } = all.at(-1) as { signal: AbortSignal };
    signal.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
  });

beforeEach(() => {
  forgetAllRuns();
  for (const each of [sent.run, sent.runTransaction, sent.outcomeOf]) each.mockReset();
  sent.streams.length = 0;
});

const cancelled = async (sql: string, mode: "statement" | "transaction" = "statement") => {
  sent.run.mockImplementation(untilAborted);
  sent.runTransaction.mockImplementation(untilAborted);
  const done = start(wanted(sql, mode), () => undefined);
  runs.get().a?.abort();
  return done;
};

it("sends nothing while the tab's last run has not ended", async () => {
  sent.run.mockResolvedValue(ANSWER);
  const first = start(wanted("insert into t values (1)"), () => undefined);
  expect(isRunning("a")).toBe(true);
  expect(await start(wanted("insert into t values (1)"), () => undefined)).toBeUndefined();
  expect((await first)?.results).toHaveLength(1);
  expect(sent.run).toHaveBeenCalledTimes(1);
  await start(wanted("insert into t values (2)"), () => undefined);
  expect(sent.run).toHaveBeenCalledTimes(2);
});

it.each(["committed", "not_executed"])("asks what became of a write that was cancelled: %s", async (outcome) => {
  sent.outcomeOf.mockResolvedValueOnce("in_progress").mockResolvedValueOnce(outcome);
  const run = await cancelled("delete from t");
  expect(run).toMatchObject({ wasCancelled: true, outcome, idempotencyKey: "the key" });
  expect(sent.run.mock.calls[0]?.[1]).toMatchObject({ idempotencyKey: "the key" });
});

it("says that the outcome is unknown if no answer comes", async () => {
  sent.outcomeOf.mockRejectedValue(new Error("no response"));
  expect(await cancelled("delete from t; delete from u", "transaction")).toMatchObject({ outcome: "unknown" });
});

it("has nothing to ask after a read", async () => {
  expect(await cancelled("select 1")).toMatchObject({ wasCancelled: true, outcome: null });
  expect(sent.run.mock.calls[0]?.[1]).toMatchObject({ readOnly: true });
  expect(sent.outcomeOf).not.toHaveBeenCalled();
});

it("knows that a read whose response was lost has changed nothing, and not so of a write", async () => {
  const lost = () => new PlainSQLError({ code: "network_error", message: "", outcome: "unknown" });
  sent.run.mockRejectedValueOnce(lost()).mockRejectedValueOnce(lost());
  const read = await start(wanted("select 1"), () => undefined);
  const write = await start(wanted("delete from t"), () => undefined);
  expect([read, write].map((run) => run?.failed?.error?.outcome)).toEqual([undefined, "unknown"]);
});

it("sends a read that writes with a key, and what can't be in a transaction without", async () => {
  sent.run.mockRejectedValueOnce(new PlainSQLError({ code: "read_only_sql_transaction", message: "" }));
  sent.run.mockResolvedValueOnce(ANSWER);
  await start(wanted("select nextval('s')"), () => undefined);
  sent.run.mockRejectedValueOnce(new PlainSQLError({ code: "active_sql_transaction", message: "" }));
  sent.run.mockResolvedValueOnce(ANSWER);
  await start(wanted("vacuum t"), () => undefined);
  const keys = sent.run.mock.calls.map(([, { idempotencyKey }]) => idempotencyKey);
  expect(keys).toEqual([undefined, "the key", "the key", undefined]);
});

it.each([
  { kind: "failed", error: new PlainSQLError({ code: "syntax_error", message: "" }) },
  { kind: "stopped", why: "cancelled" },
])("leaves no worker of a stream that ends before its columns: $kind", async (state) => {
  const run = start(wanted("select 1", "stream"), () => undefined);
  sent.closed = 0;
  sent.end(state);
  expect(await run).toMatchObject({ results: [], wasCancelled: state.kind === "stopped" });
  expect(sent.closed).toBe(1);
});

it("keeps the notices of a transaction that belong to none of its statements", async () => {
  const notices = [{ severity: "NOTICE", message: "deferred" }];
  sent.runTransaction.mockResolvedValue({ answers: [ANSWER, ANSWER], attempts: 1, notices });
  expect(await start(wanted("delete from t; delete from u", "transaction"), () => undefined)).toMatchObject({
    notices,
  });
});

it("reads a truncated result again without the right to change anything", () => {
  void start({ ...wanted("select f()", "stream"), isRead: true }, () => undefined);
  expect(sent.streams).toEqual([{ isRead: true }]);
});
