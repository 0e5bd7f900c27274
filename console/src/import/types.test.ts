import { expect, it } from "vitest";
import { typeOf } from "./types.ts";

it.each([
  [["1", "-20", null, ""], "bigint"],
  [["9223372036854775807"], "bigint"],
  [["9223372036854775808"], "numeric"],
  [["1", "2.50", "-.5", "1e3"], "numeric"],
  [["01234", "99999"], "text"],
  [["-", "."], "text"],
  [["true", "FALSE", "t"], "boolean"],
  [["2026-02-28"], "date"],
  [["2026-02-28", "2026-02-30"], "text"],
  [["2026-01-01 12:00+01", "2026-01-01T12:00:00.5Z"], "timestamptz"],
  [["2026-01-01 12:00"], "timestamp"],
  [["2026-01-01 12:00", "2026-01-01 12:00Z"], "text"],
  [["2026-01-01 24:30Z"], "text"],
  [["01A1F2CD-8F74-F434-FAC6-10F8410213CB"], "uuid"],
  [['{"a": [1]}', "[]"], "jsonb"],
  [["{a}"], "text"],
  [[null, ""], "text"],
  [[], "text"],
])("%j is %s", (values, type) => {
  expect(typeOf(values)).toBe(type);
});
