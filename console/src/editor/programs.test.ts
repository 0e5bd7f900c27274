import { expect, it } from "vitest";
import { type Language, programFor } from "./programs.ts";

const LANGUAGES: readonly Language[] = ["curl", "Python", "JavaScript"];
// What a link may hold: what a shell expands, what ends a quotation, and what a terminal hides or turns round.
const SQL = [
  "select 'it''s', \"name\", $1 -- \\' \\\\ \\u0041 \\d+",
  "$(reboot) `reboot` $HOME !! !1 ; reboot & # %",
  '"""; reboot',
  "\u001b[2K\u001b[1A\u009b2J\u0007\b\u007f\t\r\n\0",
  "\u202e\u2066\u200b\ufeff\u3164\u2800\u00ad\u{e0041} \u05d0 \u00fc \u{1f600} \ud800",
].join("\n");
const PARAMS = ["'$(reboot)`\u202e\n!", null, true, 1.5, { "a'\u{1f600}": ["!", false] }];
const URL = "https://localhost:8400";

const program = (language: Language, database = "it's $(reboot)"): string =>
  programFor(language, { sql: SQL, params: PARAMS }, URL, database);

it("a program is printable, and holds nothing that a shell would expand", () => {
  for (const language of LANGUAGES) {
    const text = program(language);
    expect(text).toMatch(/^[\x20-\x7e\n]*$/);
    // The only ones are the program's own.
    expect(text.replace("$PLAINSQL_KEY", "")).not.toMatch(/[$`!]/);
    expect(text).not.toMatch(/^\s*["']/m);
  }
});

it("the body of curl is one word in single quotes", () => {
  const found = /^curl -sS 'https:\/\/localhost:8400\/v1\/query' \\\n {2}-H "[^"]*" \\\n {2}--json '([^']*)'\n$/.exec(
    program("curl"),
  );
  expect(found?.[1]).not.toContain("\\\\");
  expect(JSON.parse(found?.[1] ?? "")).toEqual({ sql: SQL, params: PARAMS, database: "it's $(reboot)" });
});

it("JavaScript reads the SQL and the parameters as they were", () => {
  const [, query = ""] = /db\.query\((.*)\);\n/.exec(program("JavaScript")) ?? [];
  expect(JSON.parse(`[${query}]`)).toEqual([SQL, PARAMS]);
  expect(program("JavaScript")).toContain('database: "it\\u0027s \\u0024(reboot)"');
});

it("Python has one escape for each character, and its own constants", () => {
  const text = program("Python", "");
  expect(text).toContain("\\U0001f600 \\ud800");
  expect(text).toContain('None, True, 1.5, {"a\\u0027\\U0001f600": ["\\u0021", False]}');
  expect(text).not.toContain("database");
});
