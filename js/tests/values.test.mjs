import assert from "node:assert/strict";
import { test } from "node:test";
import { newTable, open } from "./service.mjs";

const db = open();
const one = async (text, params, options) =>
  (await db.query(`select ${text} as v`, params, { rowFormat: "array", ...options })).rows[0][0];

test("values of every kind of type arrive as documented", async () => {
  const expected = [
    ["true", true],
    ["1::int2", 1],
    ["(-2147483648)::int4", -2147483648],
    ["1.5::float8", 1.5],
    ["'NaN'::float8", "NaN"],
    ["9007199254740991::int8", 9007199254740991],
    ["1.10::numeric", "1.10"],
    ["'a\"\\é😀'::text", 'a"\\é😀'],
    ["'2026-11-14 22:15:31.244383+00'::timestamptz", "2026-11-14T22:15:31.244383Z"],
    ["'2026-11-14'::date", "2026-11-14"],
    ["'1 year 2 days'::interval", "P1Y2D"],
    ["'{\"a\": [1, null]}'::jsonb", { a: [1, null] }],
    ["null::int8", null],
    ["null::bytea", null],
    ["'\\x00ff'::bytea", Uint8Array.of(0, 255)],
    ["array['\\x61'::bytea, null]", [Uint8Array.of(97), null]],
    [
      "array[[1, 2], [3, 4]]::int8[]",
      [
        [1, 2],
        [3, 4],
      ],
    ],
    ["array[1.10, null]", ["1.10", null]],
    ["'{}'::int8[]", []],
  ];
  for (const [text, value] of expected) assert.deepEqual(await one(text), value, text);
});

test("int8 and numeric are returned as you choose", async () => {
  const big = "9223372036854775807";
  await assert.rejects(one(`${big}::int8`), { code: "unsafe_integer", outcome: undefined });
  assert.equal(await one(`${big}::int8`, [], { int8: "bigint" }), 9223372036854775807n);
  assert.equal(await one(`${big}::int8`, [], { int8: "string" }), big);
  assert.deepEqual(await one(`array[${big}, null]`, [], { int8: "bigint" }), [9223372036854775807n, null]);
  assert.equal(await one("0.30::numeric", [], { numeric: "number" }), 0.3);
  assert.ok(Number.isNaN(await one("'NaN'::numeric", [], { numeric: "number" })));
  const exact = open({ int8: "bigint", numeric: "number" });
  assert.deepEqual(await exact.sql`select 1::int8 as a, 2.5 as b, 3 as c`, [{ a: 1n, b: 2.5, c: 3 }]);
  assert.deepEqual((await exact.transaction(["select 1::int8 as a"])).results[0].rows, [{ a: 1n }]);
});

test("a value that a number can't hold does not hide that a write was committed", async (t) => {
  const table = await newTable(t, db, "n int8");
  await assert.rejects(db.query(`insert into ${table} values (9007199254740993) returning n`), {
    code: "unsafe_integer",
    outcome: "committed",
  });
  assert.deepEqual(await db.query(`select n from ${table}`, [], { int8: "bigint" }).then(({ rows }) => rows), [
    { n: 9007199254740993n },
  ]);
});

test("parameters arrive with every digit and byte", async () => {
  const cases = [
    ["$1::int8", 9223372036854775807n, "9223372036854775807"],
    ["$1::numeric", "0.1000000000000000055", "0.1000000000000000055"],
    ["$1::numeric", 12345678901234567890n, "12345678901234567890"],
    ["$1::float8", Number.NEGATIVE_INFINITY, "-Infinity"],
    ["$1::bytea", Uint8Array.of(0, 255, 97), Uint8Array.of(0, 255, 97)],
    ["$1::bytea", Buffer.from("ü"), new Uint8Array(Buffer.from("ü"))],
    ["$1::timestamptz", new Date("2026-11-14T22:15:31.244Z"), "2026-11-14T22:15:31.244Z"],
    ["$1::int8[]", [1n, null, 2], ["1", null, "2"]],
    ["$1::jsonb", { a: ["x", 1.5, null] }, { a: ["x", 1.5, null] }],
    ["$1::jsonb", "text", "text"],
    ["$1::jsonb::text", { n: 9223372036854775807n }, '{"n": 9223372036854775807}'],
    ["$1::text[]", ['a"', "{}", null], ['a"', "{}", null]],
    ["$1::bool", false, false],
    ["$1::text", null, null],
    ["$1::text", 'n1" \\u0000n1 "\\u0000n1"', 'n1" \\u0000n1 "\\u0000n1"'],
  ];
  for (const [text, sent, expected] of cases)
    assert.deepEqual(await one(text, [sent], { int8: "string" }), expected, text);
});

test("what cannot be sent is refused before it is sent", async () => {
  await assert.rejects(db.query("select $1::int", [undefined]), { name: "TypeError", message: /Value 0 is undefined/ });
  const invalid = { toJSON: () => null };
  for (const value of [
    new Date("?"),
    [new Date("?")],
    { at: new Date("?") },
    () => 1,
    Symbol("x"),
    [Symbol.iterator],
    invalid,
  ])
    await assert.rejects(db.query("select $1::text", [value]), {
      name: "TypeError",
      message: /^Value \w+ is .*invalid/,
    });
  assert.deepEqual(await one("$1::jsonb", [{ a: undefined, f: () => 1, n: null, d: [null] }]), { n: null, d: [null] });
  await assert.rejects(db.query("select $1::text", ["\0n1"]), { name: "TypeError", message: /NUL/ });
  await assert.rejects(db.query("select $1::text", ["n\0"]), { code: "null_character" });
});

test("columns of the same name keep their values", async () => {
  assert.deepEqual((await db.query("select 1::int8 as a, 2::int8 as a", [], { int8: "bigint" })).rows, [
    { a: 1n, a_1: 2n },
  ]);
  assert.deepEqual(Object.keys((await db.query('select 1 as "__proto__"')).rows[0]), ["__proto__"]);
});
