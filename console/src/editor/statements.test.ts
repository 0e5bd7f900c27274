import { describe, expect, it } from "vitest";
import { offsetOf, statementAt, statementsOf } from "./statements.ts";

const texts = (text: string) => statementsOf(text).map((each) => each.sql);

describe("statementsOf", () => {
  it.each([
    ["", []],
    ["-- only a comment\n;;", []],
    ["select 1; select 2", ["select 1", "select 2"]],
    ["select ';' ; select \";\"", ["select ';'", 'select ";"']],
    ["select 'it''s;' ; select 2", ["select 'it''s;'", "select 2"]],
    ["select e'\\';' ; select 2", ["select e'\\';'", "select 2"]],
    ["select $$;$$ ; select $a$ $$; $a$", ["select $$;$$", "select $a$ $$; $a$"]],
    ["select /* ; /* ; */ ; */ 1; select 2", ["select /* ; /* ; */ ; */ 1", "select 2"]],
    ["select 1 -- ;\n+ 1; select 2", ["select 1 -- ;\n+ 1", "select 2"]],
    [
      "create rule r as on insert to t do (delete from t; delete from u); select 1",
      ["create rule r as on insert to t do (delete from t; delete from u)", "select 1"],
    ],
    [
      "create function f() returns int begin atomic select case when true then 1 end; select 2; end; select 3",
      ["create function f() returns int begin atomic select case when true then 1 end; select 2; end", "select 3"],
    ],
    ["-- why\nselect 1;\n-- next\nselect 2", ["-- why\nselect 1", "-- next\nselect 2"]],
    ["select 'not closed; select 2", ["select 'not closed; select 2"]],
    ["select '😀'; select 2", ["select '😀'", "select 2"]],
  ])("%j", (text, expected) => {
    expect(texts(text)).toEqual(expected);
  });

  it("counts parameters outside of strings", () => {
    const [found] = statementsOf("select $2, '$9', $a$ $7 $a$, x$5 /* $8 */");
    expect(found?.params).toBe(2);
  });
});

describe("statementAt", () => {
  const text = "select 1;\n\nselect 2; -- done\nselect 3";
  it.each([
    [0, "select 1"],
    [9, "select 1"],
    [11, "select 2"],
    [20, "select 2"],
    [30, "select 3"],
    [10, "select 2"],
  ])("at %i", (cursor, expected) => {
    expect(statementAt(text, cursor)?.sql).toContain(expected);
  });
});

describe("offsetOf", () => {
  it("counts characters, not UTF-16 units", () => {
    const text = "select '😀', nope";
    expect(text.slice(offsetOf(text, 13))).toBe("nope");
  });
});
