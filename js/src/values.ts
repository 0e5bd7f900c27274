/** Values between JavaScript and JSON: exact numbers, bytes and parameters. */

import { type Outcome, PlainSQLError } from "./errors.js";

/** How numbers that a double cannot hold are returned. */
export interface Numbers {
  /**
   * How `int8` is returned. `"number"` (the default) fails with `unsafe_integer` if a value is beyond 2^53, rather than
   * return another one.
   */
  int8?: "number" | "bigint" | "string" | undefined;
  /** How `numeric` is returned: exactly, as a string (the default), or as the nearest `number`. */
  numeric?: "string" | "number" | undefined;
}

/** What turns the JSON values of a type into JavaScript's; undefined if they are the same. */
export const decoder = (
  type: string,
  { int8 = "number", numeric }: Numbers,
  outcome?: Outcome,
): ((value: unknown) => unknown) | undefined => {
  const scalars: Record<string, ((text: string) => unknown) | undefined> = {
    bytea: bytes,
    numeric: numeric === "number" ? Number : undefined,
    int8: { number: (text: string) => safe(text, outcome), bigint: BigInt, string: undefined }[int8],
  };
  const scalar = scalars[type.replace(/(\[\])+$/, "")];
  const decode = (value: unknown): unknown =>
    Array.isArray(value) ? (value as unknown[]).map(decode) : value === null ? null : scalar?.(value as string);
  return scalar && decode;
};

const safe = (text: string, outcome: Outcome | undefined): number => {
  const value = Number(text);
  if (Number.isSafeInteger(value)) return value;
  throw new PlainSQLError({
    code: "unsafe_integer",
    message: `A number can't hold ${text}. Pass int8: "bigint" or "string".`,
    outcome,
  });
};

const bytes = (text: string): Uint8Array => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));

const base64 = (value: Uint8Array): string => {
  let text = "";
  for (const byte of value) text += String.fromCharCode(byte);
  return btoa(text);
};

// PostgreSQL's text has no NUL, so no other string begins with it.
const MARK = "\u0000n";

/** JSON with every digit of `bigint`, bytes as base64, and the numbers that JSON lacks as strings. */
export const toJson = (content: unknown): string =>
  JSON.stringify(content, function (this: Record<string, unknown>, name, value: unknown) {
    // Before `toJSON`, which Buffer and Date have.
    const given = this[name];
    if (given instanceof Uint8Array) return base64(given);
    if (typeof value === "bigint") return `${MARK}${value}`;
    if (typeof value === "number" && !Number.isFinite(value)) return `${value}`;
    // JSON has null for an invalid Date, and in arrays for what is undefined, a function or a symbol.
    const isNull = value === null ? given !== null : Array.isArray(this) && /un|sy/.test(typeof value);
    if (isNull || (given as string | null)?.[0] === "\0") {
      throw new TypeError(`Value ${name} is undefined, invalid, or has NUL.`);
    }
    return value;
  }).replace(/"\\u0000n(-?\d+)"/g, "$1");
