import { describe, expect, it } from "vitest";
import { distinct, literal, quoteName, written } from "./formats.ts";

const shape = { columns: ["id", "a,b", "data"], types: ["int8", "text", "jsonb"], table: ["t"] };
const rows = [
  ["9007199254740993", 'say "hi"\nthere', '{"a":1.10}'],
  [null, "", '[1,"x"]'],
];

describe("written", () => {
  it("writes CSV in which NULL and an empty text differ", () => {
    expect(written("CSV", shape, rows)).toBe(
      'id,"a,b",data\r\n9007199254740993,"say ""hi""\nthere","{""a"":1.10}"\r\n,"","[1,""x""]"\r\n',
    );
  });

  it("writes CSV for a spreadsheet, which takes no value for a formula", () => {
    const columns = ["=a", "n", "text"];
    const values = ["=1+1", "+1", "-1", "@a", "\ta", "\ra", "a=", "", null].map((text) => [text, "-1.5", "a"]);
    const wanted = { columns, types: ["text", "numeric", "text"], table: ["t"] };
    expect(written("CSV for spreadsheets", wanted, values).split("\r\n").slice(0, -1)).toEqual([
      "'=a,n,text",
      "'=1+1,-1.5,a",
      "'+1,-1.5,a",
      "'-1,-1.5,a",
      "'@a,-1.5,a",
      "'\ta,-1.5,a",
      `"'\ra",-1.5,a`,
      "a=,-1.5,a",
      '"",-1.5,a',
      ",-1.5,a",
    ]);
    expect(written("CSV", wanted, values)).toContain("\r\n=1+1,-1.5,a\r\n");
  });

  it("writes the bytes of an array", () => {
    const bytes = { columns: ["b"], types: ["bytea[]"], table: ["t"] };
    expect(JSON.parse(written("JSON", bytes, [[[new Uint8Array([1]), null]]]))).toEqual([{ b: ["\\x01", null] }]);
    expect(written("CSV", bytes, [[["AQ=="]]])).toBe('b\r\n"[""\\\\x01""]"\r\n');
  });

  it("writes JSON with every digit", () => {
    const text = written("JSON", shape, rows);
    expect(text).toContain('"id": 9007199254740993');
    expect(text).toContain('"data": {"a":1.10}');
    expect(JSON.parse(text)).toHaveLength(2);
  });

  it("writes Markdown that can't be taken for markup", () => {
    expect(written("Markdown", { columns: ["a"], types: ["text"], table: ["t"] }, [["<b>|*"]])).toBe(
      "| a |\n|---|\n| \\<b\\>\\|\\* |\n",
    );
  });

  it("writes one INSERT", () => {
    expect(written("INSERT", shape, rows)).toBe(
      'INSERT INTO t (id, "a,b", data) VALUES\n' +
        "  (9007199254740993, 'say \"hi\"\nthere', '{\"a\":1.10}'),\n  (NULL, '', '[1,\"x\"]');\n",
    );
  });

  it("writes SQL in which no name is more than a name", () => {
    const names = { columns: ["x) VALUES (1); --"], types: ["text"], table: ["s", 't"; drop table u; --'] };
    expect(written("INSERT", names, [["a"]])).toBe(
      'INSERT INTO s."t""; drop table u; --" ("x) VALUES (1); --") VALUES\n  (\'a\');\n',
    );
  });

  it("writes nothing but the head for no rows", () => {
    expect(written("INSERT", shape, [])).toBe("");
    expect(JSON.parse(written("JSON", shape, []))).toEqual([]);
  });
});

describe("literal", () => {
  it.each([
    [null, "text", "NULL"],
    [true, "bool", "true"],
    [true, "jsonb", "'true'"],
    ["1.50", "numeric", "1.50"],
    ["NaN", "numeric", "'NaN'"],
    ["it's", "text", "'it''s'"],
    ["a\\b", "text", "E'a\\\\b'"],
    [["a", null, 'q"'], "text[]", 'E\'{"a",NULL,"q\\\\""}\''],
    ["AQI=", "bytea", "E'\\\\x0102'"],
    [["AQI=", null], "bytea[]", "E'{\"\\\\\\\\x0102\",NULL}'"],
    [[[new Uint8Array([1, 255])]], "bytea[]", "E'{{\"\\\\\\\\x01ff\"}}'"],
  ])("%j as %s", (value, type, expected) => {
    expect(literal(value, type)).toBe(expected);
  });
});

it("quotes names that need it", () => {
  expect(["id", "Id", "user", 'a"b'].map(quoteName)).toEqual(["id", '"Id"', '"user"', '"a""b"']);
  expect(distinct(["a", "a", "b", "a"])).toEqual(["a", "a_1", "b", "a_2"]);
});
