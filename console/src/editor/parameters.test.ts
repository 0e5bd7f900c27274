import { expect, it } from "vitest";
import { COUNT_MAX, valuesOf } from "./parameters.ts";

it("makes values of what is typed", () => {
  const typed = [
    { kind: "text", text: "'; drop table t; --" },
    { kind: "json", text: '{"a": [1, null]}' },
    { kind: "null", text: "not sent" },
  ] as const;
  expect(valuesOf(typed, 4)).toEqual(["'; drop table t; --", { a: [1, null] }, null, ""]);
  expect(() => valuesOf([{ kind: "json", text: "{" }], 1)).toThrow("$1");
});

it("refuses more than it has fields for, whatever the text says", () => {
  expect(() => valuesOf([], COUNT_MAX + 1)).toThrow(`${COUNT_MAX}`);
});
