import { describe, expect, it } from "vitest";
import { offsetOf, paramCountOf, statementAt, statementsOf, tableOf } from "./statements.ts";

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

  it("takes no number for a parameter that PostgreSQL would not", () => {
    expect(paramCountOf(statementsOf("select $99999999999, $9999999, $65536"))).toBe(0);
    expect(paramCountOf(statementsOf("select $65535; select $1"))).toBe(65_535);
  });

  it("bears a text of very many statements", () => {
    const [found] = statementsOf("select $3");
    expect(paramCountOf(Array.from({ length: 200_000 }, () => found as NonNullable<typeof found>))).toBe(3);
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
    [10, "select 1"],
  ])("at %i", (cursor, expected) => {
    expect(statementAt(text, cursor)?.sql).toContain(expected);
  });
});

describe("statementAt, where a mistake would delete", () => {
  const at = (marked: string) => statementAt(marked.replace("|", ""), marked.indexOf("|"))?.sql;
  it.each([
    ["delete from a where id = 1; -- remove it|\ndelete from b", "delete from a where id = 1"],
    ["delete from a where id = 1; /* remove it */ |\ndelete from b", "delete from a where id = 1"],
    ["delete from a where id = 1;\n|\ndelete from b", "delete from a where id = 1"],
    ["delete from a;\n-- next|\ndelete from b", "-- next\ndelete from b"],
    ["delete from a; delete| from b", "delete from b"],
    ["delete from a;| delete from b", "delete from a"],
    ["|\n\ndelete from a", "delete from a"],
    ["|", undefined],
  ])("%j", (marked, expected) => {
    expect(at(marked)).toBe(expected);
  });
});

describe("tableOf", () => {
  it.each([
    ["select * from Orders o", ["orders"]],
    ['select * from "my;table" where true', ["my;table"]],
    ['select * from public."a ""b"" (c" limit 1', ["public", 'a "b" (c']],
    ["insert into s.t (a) values (1) returning *", ["s", "t"]],
    ["select 'from x', 1", ["results"]],
    ["select n from generate_series(1, 2) n", ["results"]],
    ["select * from (select 1) t", ["results"]],
    ['select * from "not closed', ["results"]],
    ["select 1", ["results"]],
  ])("%s", (text, expected) => {
    expect(tableOf(text)).toEqual(expected);
  });
});

describe("offsetOf", () => {
  it("counts characters, not UTF-16 units", () => {
    const text = "select '😀', nope";
    expect(text.slice(offsetOf(text, 13))).toBe("nope");
  });
});
