import { PlainSQLError } from "plainsql";
import { expect, it } from "vitest";
import { ranOf, wordsOf } from "./ran.ts";
import type { Mode, Run, Shown } from "./run.ts";

const result = (rows: number, affectedRows = 0, others: Partial<Shown> = {}): Shown =>
  ({ columns: rows ? ["a"] : [], rows: { count: rows }, affectedRows, truncated: false, ...others }) as Shown;

const run = (mode: Mode, results: Shown[], others: Partial<Run> = {}): Run =>
  ({
    mode,
    results,
    database: "main",
    startedAt: 100,
    endedAt: 142,
    failed: null,
    wasCancelled: false,
    outcome: null,
    ...others,
  }) as Run;

const failed = (code: string, outcome?: PlainSQLError["outcome"], idempotencyKey?: string) => ({
  failed: { message: "", sql: "", error: new PlainSQLError({ code, message: "", outcome, idempotencyKey }) },
});

const words = (mode: Mode, results: Shown[], others?: Partial<Run>, statements = ["a"]) =>
  wordsOf(ranOf(run(mode, results, others), statements));

it("says how many rows a statement returned and affected", () => {
  expect(words("statement", [result(1)])).toBe("Done, 1 row");
  expect(words("statement", [result(0)])).toBe("Done, 0 rows");
  expect(words("statement", [result(0, 3)])).toBe("Done, 3 rows affected");
  expect(words("statement", [result(1000, 0, { truncated: true })])).toBe("Done, 1,000 rows and more");
  expect(words("transaction", [result(2, 2), result(5)], {}, ["a", "b"])).toBe(
    "Done, 2 statements, 7 rows, 2 rows affected",
  );
  expect(words("rehearsal", [result(0, 2)])).toBe("Rehearsed and rolled back, 2 rows affected");
  expect(words("explain", [result(1)])).toBe("Explained and rolled back");
});

it("says why it failed, and what became of its work", () => {
  expect(words("statement", [], failed("division_by_zero", "rolled_back"))).toBe(
    "Failed: division_by_zero, rolled back",
  );
  expect(words("statement", [], failed("syntax_error"))).toBe("Failed: syntax_error");
  expect(words("statement", [], failed("network_error", "committed"))).toBe("Failed: network_error, but committed");
  expect(words("stream", [result(40)], failed("stream_broken"))).toBe("Failed: stream_broken, after 40 rows");
  expect(words("statement", [], { failed: { message: "", sql: "" } })).toBe("Failed");
});

it("says what became of what was cancelled", () => {
  const cancelled = (outcome: Run["outcome"]) => words("statement", [], { wasCancelled: true, outcome });
  expect([null, "committed", "rolled_back", "not_executed", "unknown"].map((each) => cancelled(each as never))).toEqual(
    [
      "Cancelled",
      "Cancelled, but committed",
      "Cancelled, rolled back",
      "Cancelled, not executed",
      "Outcome unknown: cancelled",
    ],
  );
});

it("says that an outcome is unknown, and keeps the key to ask by", () => {
  const lost = ranOf(run("statement", [], failed("network_error", "unknown", "the key")), ["insert"]);
  expect([wordsOf(lost), lost.key, lost.ms]).toEqual(["Outcome unknown: connection lost", "the key", 42]);
  expect(words("statement", [], failed("deadline_exceeded", "unknown"))).toBe("Outcome unknown: deadline_exceeded");
  const known = ranOf(run("statement", [], failed("division_by_zero", "rolled_back", "the key")), ["insert"]);
  expect(known.key).toBeUndefined();
});
