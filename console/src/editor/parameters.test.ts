import { expect, it } from "vitest";
import { COUNT_MAX, inexactIn, valuesOf } from "./parameters.ts";

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

it("sends every digit of a number, or nothing", () => {
  expect(valuesOf([{ kind: "number", text: " 9007199254740993 " }], 1)).toEqual(["9007199254740993"]);
  expect(() => valuesOf([{ kind: "number", text: "1; drop" }], 1)).toThrow("$1 is not a number");
  expect(() => valuesOf([{ kind: "json", text: '{"id": 9007199254740993}' }], 1)).toThrow("9007199254740993");
  const kept = ["9007199254740992", "0.1", "-1.5e300", "1000000000000000000", '"9007199254740993"', "100.0", "0.30"];
  expect(kept.map(inexactIn)).toEqual(kept.map(() => undefined));
  expect(inexactIn("[0.1234567890123456789]")).toBe("0.1234567890123456789");
});
