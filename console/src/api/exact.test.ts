import { expect, it } from "vitest";
import { indented, isJson, partsOf, rowOf, withTexts } from "./exact.ts";

const VALUE = '{ "a" : 1.10, "n": [12345678901234567890, 1e400], "t": "],\\"}\\\\" , "a": 2}';

it("knows the types whose values are JSON", () => {
  expect(["json", "jsonb", "jsonb[]", "text", "numeric", undefined].map(isJson)).toEqual([
    true,
    true,
    true,
    false,
    false,
    false,
  ]);
});

it("divides arrays and objects, whatever is in their strings", () => {
  expect(partsOf(`[1, ${VALUE} ,null, "a,b", []]`)).toEqual(["1", VALUE, "null", '"a,b"', "[]"]);
  expect(partsOf("[ ]")).toEqual([]);
  expect(() => partsOf('["a')).toThrow(SyntaxError);
});

it("keeps a JSON value of a row as it came", () => {
  const types = ["int8", "jsonb", "json", "jsonb[]", "text"];
  expect(rowOf(`["9007199254740993",${VALUE},null,[1.10,null],"[1.10]"]`, types)).toEqual([
    "9007199254740993",
    VALUE,
    null,
    "[1.10,null]",
    "[1.10]",
  ]);
});

it("keeps them in a response, and changes nothing else of it", () => {
  const result = (types: string, rows: string) => `{"columns":["a","b"],"types":${types},"rows":${rows}}`;
  const one = result('["int4","json"]', `[[1,${VALUE}], [2 ,"text"]]`);
  expect(JSON.parse(withTexts(one)).rows).toEqual([
    [1, VALUE],
    [2, '"text"'],
  ]);
  const both = `{"success":true,"results":[${one},${result('["int4","text"]', '[[1,"a"]]')}],"notices":[]}`;
  const parsed = JSON.parse(withTexts(both));
  expect(parsed.results[0].rows[0][1]).toBe(VALUE);
  expect(parsed.results[1].rows).toEqual([[1, "a"]]);
  expect([parsed.success, parsed.notices]).toEqual([true, []]);
  const other = '{"error": {"message": "\\"types\\":[\\"json\\"]"}}';
  expect(withTexts(other)).toBe(other);
});

it("indents JSON without reading its numbers", () => {
  expect(indented('{"a":1.10,"b":[ 12345678901234567890,{}],"c":[]}')).toBe(
    '{\n  "a": 1.10,\n  "b": [\n    12345678901234567890,\n    {}\n  ],\n  "c": []\n}',
  );
  expect(indented("1.10")).toBe("1.10");
});
