import { expect, it } from "vitest";
import { keyText, matchingTables, readSchema, schemaQuery, shortType } from "./diagram.ts";

// As the service answers: JSON is its text.
const ROWS = [
  ["11", "public", "customers", 3, 3, 2, '[["id","bigint",true],["name","text",false]]', null],
  [
    "12",
    "sales",
    "orders",
    3,
    3,
    45,
    '[["id","bigint",true],["customer","bigint",false],["parent","bigint",false]]',
    '[["orders_customer","11","public","customers","c","a",["customer"],["id"]],' +
      '["orders_parent","12","sales","orders","a","a",["parent"],["id"]],' +
      '["orders_gone","99","old","things","n","r",["a","b"],["x","y"]]]',
  ],
  ["13", "public", "<b>loose</b>", 3, 3, 0, null, null],
];
const { tables, tableCount, keyCount } = readSchema(ROWS);

it("reads tables, columns and keys", () => {
  expect([tableCount, keyCount]).toEqual([3, 3]);
  expect(tables[0]).toEqual({
    id: "11",
    schema: "public",
    name: "customers",
    columns: [
      { name: "id", type: "bigint", isPrimary: true },
      { name: "name", type: "text", isPrimary: false },
    ],
    others: 0,
    keys: [],
  });
  expect(tables[1]?.others).toBe(42);
  expect(tables[1]?.keys[2]).toEqual({
    name: "orders_gone",
    columns: ["a", "b"],
    references: { id: "99", schema: "old", name: "things", columns: ["x", "y"] },
    onDelete: "set null",
    onUpdate: "restrict",
  });
  expect(tables[2]).toMatchObject({ name: "<b>loose</b>", columns: [], keys: [] });
});

it("reads a database without tables", () => {
  expect(readSchema([])).toEqual({ tables: [], tableCount: 0, keyCount: 0 });
});

it("sends the text as a parameter", () => {
  const { sql, params } = schemaQuery("'; drop table x");
  expect(params).toEqual(["'; drop table x"]);
  expect(sql).not.toContain("drop table");
});

it("says a key in words", () => {
  const [, orders] = tables;
  expect(orders?.keys.map((key) => keyText(orders, key))).toEqual([
    "sales.orders (customer) references customers (id)",
    "sales.orders (parent) references sales.orders (id)",
    "sales.orders (a, b) references old.things (x, y)",
  ]);
});

it("shortens types", () => {
  const long = [
    "timestamp with time zone",
    "timestamp(3) without time zone[]",
    "character varying(80)",
    "integer",
    "times",
  ];
  expect(long.map(shortType)).toEqual(["timestamptz", "timestamp(3)[]", "varchar(80)", "integer", "times"]);
});

it("finds tables by name, and those one key away", () => {
  const found = (text: string) => {
    const { tables: all, matched } = matchingTables(tables, text);
    return all.map(({ id, name }) => (matched.has(id) ? name : `(${name})`));
  };
  expect(found("")).toEqual(["customers", "orders", "<b>loose</b>"]);
  expect(found(" CUST")).toEqual(["customers", "(orders)"]);
  expect(found("sales.")).toEqual(["(customers)", "orders"]);
  expect(found("<b>")).toEqual(["<b>loose</b>"]);
  expect(found("nothing")).toEqual([]);
});
