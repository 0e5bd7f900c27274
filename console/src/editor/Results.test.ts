import { expect, it } from "vitest";
import { stateOf } from "./Results.tsx";
import type { Run } from "./run.ts";

const cancelled = (mode: Run["mode"], outcome: Run["outcome"] = null) =>
  stateOf({ mode, outcome, endedAt: 1, isEnding: false, wasCancelled: true } as Run);

it("says of a rehearsal that it was one, and not that it only read", () => {
  expect(cancelled("statement")).toContain("It only read");
  for (const mode of ["rehearsal", "explain"] as const) {
    expect(cancelled(mode)).toContain("never committed");
    expect(cancelled(mode)).not.toContain("only read");
  }
  expect(cancelled("statement", "committed")).toContain("It took effect");
});
