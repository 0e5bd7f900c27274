import { type ErrorFields, PlainSQLError } from "plainsql";
import { beforeEach, expect, it, vi } from "vitest";

const sent = vi.hoisted(() => ({ run: vi.fn(), runTransaction: vi.fn(), rehearse: vi.fn(), outcomeOf: vi.fn() }));
vi.mock("../api/data.ts", () => ({ ...sent, newKey: () => String(Math.random()) }));
vi.stubGlobal("addEventListener", () => undefined);
const nothing = () => undefined;
vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: nothing, removeItem: nothing });

const { CsvImport, currentImport } = await import("./importing.ts");
const { end, keep } = await import("../api/session.ts");

const TEXT = `id\n${Array.from({ length: 7_000 }, (_, i) => `${i}\n`).join("")}`;
const newImport = (file = new File([TEXT], "a.csv")) => {
  const columns = [{ index: 0, name: "id", type: "bigint" }];
  return new CsvImport({
    file,
    database: "",
    reading: { delimiter: ",", hasHeader: true, width: 1, columns, isEmptyText: false },
    target: { schema: "public", name: "t", isNew: false, columns, key: null },
  });
};

const failure = (code: string, outcome?: ErrorFields["outcome"], sqlstate?: string) =>
  new PlainSQLError({ code, message: code, outcome, sqlstate });
const LOST = failure("network_error", "unknown");
const stateOf = (made: InstanceType<typeof CsvImport>) => made.shown.get().state;
const keys = () => sent.run.mock.calls.map(([, { idempotencyKey }]) => idempotencyKey);

beforeEach(() => {
  for (const each of Object.values(sent)) each.mockReset();
});

it("knows which rows are in doubt, and keeps the doubt while attempts don't run", async () => {
  const made = newImport();
  sent.run.mockResolvedValueOnce({}).mockResolvedValueOnce({}).mockRejectedValueOnce(LOST);
  await made.go();
  const doubt = { of: "batch", rows: [5001, 7000], lines: [5002, 7001] };
  expect(stateOf(made)).toMatchObject({ kind: "failed", doubt });
  expect(made.shown.get().rows).toBe(5000);
  sent.run.mockRejectedValueOnce(failure("rate_limited", "not_executed"));
  await made.go();
  expect(stateOf(made)).toMatchObject({ kind: "failed", doubt });
  sent.run.mockResolvedValueOnce({});
  await made.go();
  expect(stateOf(made)).toEqual({ kind: "done" });
  const [, , ...third] = keys();
  expect(new Set(third).size).toBe(1);
});

it("is in no doubt if the attempt was rolled back, or was the first and did not run", async () => {
  for (const error of [failure("disk_full", "rolled_back"), failure("rate_limited", "not_executed")]) {
    const made = newImport();
    sent.run.mockReset().mockResolvedValueOnce({}).mockRejectedValueOnce(error);
    await made.go();
    expect(stateOf(made)).toMatchObject({ kind: "failed", doubt: undefined });
  }
});

it("goes on if only the response was lost", async () => {
  const made = newImport();
  sent.run.mockRejectedValueOnce(failure("network_error", "committed")).mockResolvedValue({});
  sent.runTransaction.mockRejectedValueOnce(failure("network_error", "committed"));
  await made.go();
  expect(stateOf(made)).toEqual({ kind: "done" });
  expect(made.shown.get().rows).toBe(7000);
});

it("asks whether it had finished if there is nothing to discard", async () => {
  for (const [outcome, kind] of [
    ["committed", "done"],
    ["not_executed", "undone"],
  ] as const) {
    const made = newImport();
    sent.run.mockReset().mockResolvedValue({});
    sent.runTransaction.mockRejectedValueOnce(LOST);
    await made.go();
    expect(stateOf(made)).toMatchObject({ kind: "failed", doubt: { of: "finish" } });
    sent.run.mockRejectedValueOnce(failure("undefined_table", "rolled_back", "42P01"));
    sent.outcomeOf.mockResolvedValueOnce(outcome);
    await made.undo();
    expect(stateOf(made)).toEqual({ kind });
  }
});

it("does not know whether the staging table is gone if the response to that was lost", async () => {
  const made = newImport();
  sent.run.mockRejectedValueOnce(LOST);
  await made.go();
  expect(stateOf(made)).toMatchObject({ doubt: { of: "create" } });
  sent.run.mockRejectedValueOnce(LOST);
  await made.undo();
  expect(stateOf(made)).toMatchObject({ kind: "failed", doubt: { of: "drop" } });
  sent.run.mockRejectedValueOnce(failure("undefined_table", "rolled_back", "42P01"));
  await made.undo();
  expect(stateOf(made)).toEqual({ kind: "undone" });
});

/** A file that is overwritten, or whose drive vanishes, while it is read. */
const vanishing = (): File => {
  const file = new File([TEXT], "a.csv");
  let parts = 0;
  file.stream = () =>
    new ReadableStream({
      pull: (controller) => {
        parts += 1;
        if (parts > 1) controller.error(new DOMException("gone", "NotReadableError"));
        else controller.enqueue(new TextEncoder().encode(TEXT.slice(0, 30_000)));
      },
    });
  return file;
};

it("imports nothing of a file that can't be read to its end, however often one continues", async () => {
  const made = newImport(vanishing());
  sent.run.mockResolvedValue({});
  for (let i = 0; i < 2; i += 1) {
    await made.go();
    expect(stateOf(made)).toMatchObject({ kind: "failed", fault: { canContinue: false }, doubt: undefined });
    expect((stateOf(made) as { fault: { message: string } }).fault.message).toMatch(/can't be read further.*gone$/);
  }
  expect(made.shown.get().rows).toBe(5000);
  expect(sent.runTransaction).not.toHaveBeenCalled();
});

it("says that nothing was imported if the finish had failed and the discard is repeated", async () => {
  const made = newImport();
  sent.run.mockResolvedValue({});
  sent.runTransaction.mockRejectedValueOnce(failure("unique_violation", "rolled_back"));
  await made.go();
  expect(stateOf(made)).toMatchObject({ kind: "failed", doubt: undefined });
  sent.run
    .mockReset()
    .mockRejectedValueOnce(LOST)
    .mockRejectedValue(failure("undefined_table", "rolled_back", "42P01"));
  await made.undo();
  expect(stateOf(made)).toMatchObject({ kind: "failed", doubt: { of: "drop" } });
  sent.outcomeOf.mockRejectedValue(LOST);
  await made.undo();
  expect(stateOf(made)).toEqual({ kind: "undone" });
});

it("takes no record for no import only as long as the service keeps records", async () => {
  const made = newImport();
  sent.run.mockResolvedValue({});
  sent.runTransaction.mockRejectedValueOnce(LOST);
  await made.go();
  vi.useFakeTimers({ now: Date.now() + 24 * 3_600_000, toFake: ["Date"] });
  sent.run.mockRejectedValueOnce(failure("undefined_table", "rolled_back", "42P01"));
  sent.outcomeOf.mockResolvedValueOnce("not_executed");
  await made.undo();
  vi.useRealTimers();
  expect(stateOf(made)).toMatchObject({ kind: "failed", doubt: { of: "finish" } });
});

const signIn = (organization: string) =>
  keep({
    token: "t",
    id: `session of ${organization}`,
    expiresAt: new Date(Date.now() + 3_600_000).toISOString(),
    scopes: [],
    database: null,
    defaultDatabase: null,
    organization: { id: organization, name: organization, tier: "free" },
    dataUrl: "",
    controlUrl: "",
    version: "",
    ownKey: null,
  });

/** Never answers, until it is aborted. */
const untilAborted = (_: unknown, { signal }: { signal: AbortSignal }) =>
  new Promise((_, reject) => signal.addEventListener("abort", () => reject(new DOMException("", "AbortError"))));

const begun = () => {
  signIn("one");
  const made = newImport();
  currentImport.set(made);
  return { made, going: made.go() };
};

it("keeps an import that was stopped by the end of the session, for its organization", async () => {
  sent.run.mockResolvedValueOnce({}).mockImplementationOnce(untilAborted).mockResolvedValue({});
  sent.runTransaction.mockResolvedValue({});
  const { made, going } = begun();
  await vi.waitFor(() => expect(sent.run).toHaveBeenCalledTimes(2));
  end("refused");
  await going;
  expect(currentImport.get()).toBeUndefined();
  signIn("another");
  expect(currentImport.get()).toBeUndefined();
  end("signed out");
  signIn("one");
  expect(currentImport.get()).toBe(made);
  expect(stateOf(made)).toMatchObject({ kind: "stopped", why: "session", doubt: { of: "batch", rows: [1, 5000] } });
  await made.go();
  expect(stateOf(made)).toEqual({ kind: "done" });
  const [, first, again] = keys();
  expect(again).toBe(first);
});

it("is stopped, and has not failed, if the service refuses the session", async () => {
  sent.run.mockImplementationOnce(async () => {
    end("refused");
    throw failure("unauthorized", "not_executed");
  });
  const { made, going } = begun();
  await going;
  expect(stateOf(made)).toEqual({ kind: "stopped", why: "session", doubt: undefined });
});

it("asks what became of the finish when someone has signed in again", async () => {
  sent.run.mockResolvedValue({});
  for (const [outcome, state] of [
    ["committed", { kind: "done" }],
    ["not_executed", { kind: "stopped", why: "session", doubt: undefined }],
    ["unknown", { kind: "stopped", why: "session", doubt: { of: "finish" } }],
  ] as const) {
    sent.runTransaction.mockReset().mockImplementationOnce(untilAborted);
    const { made, going } = begun();
    await vi.waitFor(() => expect(sent.runTransaction).toHaveBeenCalled());
    sent.outcomeOf.mockRejectedValueOnce(new Error("There is no session."));
    end("expired");
    await going;
    expect(stateOf(made)).toEqual({ kind: "stopped", why: "session", doubt: { of: "finish" } });
    sent.outcomeOf.mockReset().mockResolvedValueOnce(outcome);
    signIn("one");
    await vi.waitFor(() => expect(sent.outcomeOf).toHaveBeenCalled());
    await vi.waitFor(() => expect(stateOf(made)).toEqual(state));
    currentImport.set(undefined);
  }
});

it("keeps nothing of it if one forgets what is kept here", async () => {
  sent.run.mockImplementation(untilAborted);
  const { going } = begun();
  end("forgotten");
  await going;
  signIn("one");
  expect(currentImport.get()).toBeUndefined();
  end("signed out");
});
