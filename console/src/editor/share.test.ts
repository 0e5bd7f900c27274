import { expect, it } from "vitest";
import { fragmentOf, sharedIn } from "./share.ts";

const SQL = "delete from orders -- all of “them”\nwhere id = '1%2' and a != (b) * 😀 -- é";

it("a link opens as what was shared", () => {
  for (const sql of [SQL, "", "select 1", "\u202e\0", "#?&=%"]) expect(sharedIn(fragmentOf(sql))).toBe(sql);
  expect(sharedIn(fragmentOf("half \ud800"))).toBe("half \ufffd");
});

it("a link that was cut off anywhere, or changed, opens nothing", () => {
  const whole = fragmentOf(SQL);
  for (let end = "#/query?".length; end < whole.length; end += 1) expect(sharedIn(whole.slice(0, end))).toBeNull();
  expect(sharedIn(whole.replace("orders", "others"))).toBeNull();
  expect(sharedIn(`${whole} `)).toBeNull();
  expect(sharedIn("#/query?sql=select%201")).toBeNull();
});

it("other addresses are no links", () => {
  for (const each of ["", "#/query", "#/tables/public.a", "#/"]) expect(sharedIn(each)).toBeUndefined();
});

it("a link ends in nothing that a program takes for punctuation", () => {
  expect(fragmentOf("select f('a')!.~*")).toMatch(/^[#/?&=%\w-]*$/);
});
