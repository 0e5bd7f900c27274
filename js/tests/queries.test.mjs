import assert from "node:assert/strict";
import { test } from "node:test";
import { connect, identifier, PlainSQLError, ref, sql } from "plainsql";
import { key, newTable, open, url } from "./service.mjs";

const db = open();

test("the tag sends values as parameters and returns the rows", async () => {
  const name = "milk'; drop table notes; --";
  assert.deepEqual(await db.sql`select ${1}::int as id, ${name} as name`, [{ id: 1, name }]);
});

test("statements are made of parts, whose parameters are counted anew", async () => {
  const condition = sql`n > ${2} and n < ${5}`;
  const both = sql`select n from ${identifier("pg_catalog", "generate_series")}(1, ${9}) n where ${condition} or n = ${8}`;
  assert.equal(both.sql, 'select n from "pg_catalog"."generate_series"(1, $1) n where n > $2 and n < $3 or n = $4');
  assert.deepEqual(both.params, [9, 2, 5, 8]);
  assert.deepEqual((await db.query(both)).rows, [{ n: 3 }, { n: 4 }, { n: 8 }]);
  const nested = sql`${sql`${sql`a = ${1}`}${sql` or b = ${2}`}`}`;
  assert.deepEqual([nested.sql, nested.params], ["a = $1 or b = $2", [1, 2]]);
  assert.equal(identifier('a"b').sql, '"a""b"');
});

test("a result says what was done", async (t) => {
  const table = await newTable(t, db, "id int primary key, body text");
  const written = await db.query(`insert into ${table} values ($1, $2), (2, null) returning id`, [1, "milk"]);
  assert.deepEqual(written.rows, [{ id: 1 }, { id: 2 }]);
  assert.equal(written.command, "INSERT");
  assert.deepEqual([written.affectedRows, written.rowCount, written.isReplayed], [2, 2, false]);
  assert.match(written.requestId, /^req_/);
  const read = await db.query(`select * from ${table} order by id`, [], { maxRows: 1 });
  assert.deepEqual([read.columns, read.types, read.truncated], [["id", "body"], ["int4", "text"], true]);
  const arrays = await db.query(`select id, id from ${table}`, [], { rowFormat: "array" });
  assert.deepEqual(arrays.rows, [
    [1, 1],
    [2, 2],
  ]);
  const { notices } = await db.query(`drop table if exists ${table}_none`);
  assert.equal(notices[0].severity, "NOTICE");
});

test("an error has PostgreSQL's code, its SQLSTATE, the position and the outcome", async () => {
  const failure = {
    name: "PlainSQLError",
    code: "undefined_table",
    sqlstate: "42P01",
    position: 15,
    outcome: "rolled_back",
    retryable: false,
    status: 200,
  };
  await assert.rejects(db.sql`select * from js_nowhere`, (error) => {
    assert.ok(error instanceof PlainSQLError && error instanceof Error);
    assert.match(error.requestId, /^req_/);
    return Object.entries(failure).every(([name, value]) => error[name] === value);
  });
  await assert.rejects(open({ key: `${key.slice(0, -1)}!` }).sql`select 1`, { code: "unauthenticated", status: 401 });
});

test("a write behind a SELECT is found out and done once", async (t) => {
  const table = await newTable(t, db, "n int");
  for (const n of [1, 2])
    await db.query(`with new as (insert into ${table} values ($1) returning n) select n from new`, [n]);
  assert.deepEqual(await db.query(`select n from ${table}`).then(({ rows }) => rows), [{ n: 1 }, { n: 2 }]);
});

test("a statement that cannot run in a transaction runs, too", async (t) => {
  const table = await newTable(t, db, "n int");
  assert.equal((await db.query(`vacuum ${table}`)).command, "VACUUM");
});

test("with the same idempotency key, a write is done once and its response returned again", async (t) => {
  const table = await newTable(t, db, "n int");
  const idempotencyKey = `${table}-1`;
  const again = () => db.query(`insert into ${table} values (1)`, [], { idempotencyKey });
  assert.equal((await again()).isReplayed, false);
  assert.equal((await again()).isReplayed, true);
  assert.equal(await db.outcome(idempotencyKey), "committed");
  assert.equal(await db.outcome(`${table}-2`), "not_executed");
  assert.deepEqual(await db.query(`select n from ${table}`).then(({ rows }) => rows), [{ n: 1 }]);
});

test("a transaction takes effect as a whole, with references and expectations", async (t) => {
  const orders = await newTable(t, db, "id bigint generated always as identity, name text");
  const items = await newTable(t, db, "order_id bigint, name text");
  const { results, attempts, affectedRows, id } = await db.transaction([
    `insert into ${orders} (name) values ('first') returning id`,
    { sql: `insert into ${items} values ($1, $2)`, params: [ref(0, "id"), "milk"], expect: { affectedRows: 1 } },
    sql`select order_id from ${identifier(items)} where order_id = ${ref(0, "id")}`.expecting({ rowCount: 1 }),
  ]);
  assert.deepEqual(results[2].rows, [{ order_id: 1 }]);
  assert.deepEqual([attempts, affectedRows], [1, 2]);
  assert.match(id, /^txn_/);
  const failing = db.transaction([
    `insert into ${orders} (name) values ('second')`,
    sql`delete from ${identifier(items)} where name = ${"eggs"}`.expecting({ affectedRows: 1 }),
  ]);
  await assert.rejects(failing, { code: "expectation_failed", statementIndex: 1, outcome: "rolled_back" });
  assert.deepEqual(await db.query(`select count(*) from ${orders}`).then(({ rows }) => rows), [{ count: 1 }]);
  await assert.rejects(db.transaction([`delete from ${items}`], { readOnly: true }), {
    code: "read_only_sql_transaction",
  });
});

test("a connection URL has the key and the database", async () => {
  const { host, protocol } = new URL(url);
  const text = `plainsql://k:${key}@${host}/main${protocol === "http:" ? "?tls=false" : ""}`;
  assert.equal(connect(text).url, url);
  assert.deepEqual(await connect(text).sql`select 1 as one`, [{ one: 1 }]);
  await assert.rejects(connect(text.replace("/main", "/nowhere")).sql`select 1`, { code: "database_not_found" });
});

test("settings that would show or lack the key are refused, without showing it", () => {
  const refused = (settings, message) => assert.throws(() => connect(settings), { code: "invalid_settings", message });
  refused({ url: "http://db.example", key }, /TLS/);
  refused(`plainsql://k:${key}@db.example/main?tls=false`, /TLS/);
  refused({ url }, /key or a session/);
  refused({ url, key, session: "x" }, /key or a session/);
  refused({ url: `${key}:`, key }, /^The URL must be https:\/\/host:port or plainsql:\/\/k:KEY@host:port\/database.$/);
  connect({ url: "http://db.example", key, insecure: true });
  connect({ url: "http://127.0.0.1:1", key });
});

test("a truncated result is an error, unless you asked for it", async () => {
  await assert.rejects(db.sql`select n from generate_series(1, 100001) n`, {
    code: "result_truncated",
    outcome: undefined,
  });
});

test("a statement with the hint for streams is refused by query", async () => {
  await assert.rejects(db.sql`/*+ STREAM */ select 1 as one`, { code: "unexpected_response" });
});

test("an aborted call ends at once with the reason of the signal", async () => {
  const abortion = new AbortController();
  const reason = new Error("enough");
  const call = db.query("select pg_sleep(60)", [], { signal: abortion.signal });
  setTimeout(() => abortion.abort(reason), 100);
  await assert.rejects(call, reason);
  await assert.rejects(db.query("select 1", [], { signal: AbortSignal.abort(reason) }), reason);
});
