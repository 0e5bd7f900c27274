import assert from "node:assert/strict";
import { subscribe } from "node:diagnostics_channel";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { sql } from "plainsql";
import { newTable, open } from "./service.mjs";

const db = open();
const rowsMax = Number(process.env.PLAINSQL_TEST_JS_STREAM_ROWS ?? 30_000);
const withinMs = Number(process.env.CANCELLED_WITHIN_MS ?? 1_000);

/** Waits until no statement of ours sleeps in the engine; how long that took. */
async function engineIsFree() {
  const began = performance.now();
  while ((await db.sql`select 1 from pg_stat_activity where wait_event = 'PgSleep'`).length) {
    assert.ok(performance.now() - began < 30_000, "the statement still runs");
    await sleep(20);
  }
  return performance.now() - began;
}

async function engineSleeps() {
  while (!(await db.sql`select 1 from pg_stat_activity where wait_event = 'PgSleep'`).length) await sleep(5);
}

// Its first row is there at once, and its third one never.
const slow = "select n, case when n > 2 then pg_sleep(600)::text end from generate_series(1, 1000) n";

test("rows come one by one, decoded, and the end has the counts", async () => {
  const stream = db.stream(
    sql`select n::int8 as n, ${"é😀\u2028\u2029\n\n"}::text as t, n::numeric as d from generate_series(1, 1000) n`,
    { int8: "bigint" },
  );
  let count = 0;
  for (;;) {
    const { done, value } = await stream.next();
    if (done) {
      assert.deepEqual([value.rowCount, value.truncated], [1000, false]);
      break;
    }
    count += 1;
    assert.deepEqual(value, { n: BigInt(count), t: "é😀\u2028\u2029\n\n", d: String(count) });
  }
  assert.equal(count, 1000);
  assert.deepEqual((await Array.fromAsync?.(db.stream("select 1 as a where false"))) ?? [], []);
  for await (const row of db.stream("select $1::int, 2", [1], { rowFormat: "array", maxRows: 1 }))
    assert.deepEqual(row, [1, 2]);
});

test("calls that follow one another share a connection, also after streams that were read to their end", async () => {
  await db.sql`select 1`;
  let connections = 0;
  subscribe("undici:client:connected", () => {
    connections += 1;
  });
  for (let round = 0; round < 5; round += 1) {
    for await (const _ of db.stream("select n from generate_series(1, 100) n"));
    await db.sql`select 1`;
  }
  assert.ok(connections <= 1, `${connections} connections`);
});

test("a write is streamed, and done once", async (t) => {
  const table = await newTable(t, db, "n int");
  const seen = [];
  for await (const { n } of db.stream(`insert into ${table} select n from generate_series(1, 3) n returning n`))
    seen.push(n);
  assert.deepEqual(seen, [1, 2, 3]);
  assert.deepEqual(await db.query(`select count(*) from ${table}`).then(({ rows }) => rows), [{ count: 3 }]);
});

test("an error before the first row and one after it are both thrown", async () => {
  const errors = [
    ["select * from js_nowhere", 0],
    ["select 10 / (300 - n) as q from generate_series(1, 1000) n", 200],
  ];
  for (const [text, atLeast] of errors) {
    let count = 0;
    const read = async () => {
      for await (const _ of db.stream(text)) count += 1;
    };
    await assert.rejects(read(), (error) => /^(42P01|22012)$/.test(error.sqlstate) && error.name === "PlainSQLError");
    assert.ok(count >= atLeast, count);
  }
});

test("a loop that is left cancels the statement", async () => {
  for await (const { n } of db.stream(slow)) {
    assert.equal(n, 1);
    break;
  }
  const tookMs = await engineIsFree();
  console.log(`measured: cancelled by break within ${Math.round(tookMs)} ms`);
  assert.ok(tookMs < withinMs, tookMs);
});

test("a signal cancels the statement of a stream and of a query, and its reason is thrown", async () => {
  const read = async (signal) => {
    for await (const _ of db.stream(slow, [], { signal }));
  };
  for (const run of [read, (signal) => db.query("select pg_sleep(600)", [], { signal })]) {
    const abortion = new AbortController();
    const reason = new Error("enough");
    const call = assert.rejects(run(abortion.signal), reason);
    await engineSleeps();
    abortion.abort(reason);
    await call;
    const tookMs = await engineIsFree();
    console.log(`measured: cancelled by signal within ${Math.round(tookMs)} ms`);
    assert.ok(tookMs < withinMs, tookMs);
  }
});

test("many rows take no more memory than few, and a reader that waits stops the sender", async () => {
  const used = () => {
    globalThis.gc();
    // Array buffers are counted in `external`.
    const { heapUsed, external } = process.memoryUsage();
    return (heapUsed + external) / 1e6;
  };
  const began = performance.now();
  let count = 0;
  let first = 0;
  let most = 0;
  for await (const _ of db.stream(sql`select n, repeat('x', 500) as t from generate_series(1, ${rowsMax}) n`)) {
    count += 1;
    if (count === 10_000) {
      first = used();
      // What is not read now must not be collected here.
      await sleep(500);
      const ahead = used() - first;
      console.log(`measured: ${ahead.toFixed(1)} MB more after a pause`);
      assert.ok(ahead < 2.5, `${ahead} MB were read while nobody asked for rows`);
    }
    if (count % 10_000 === 0) most = Math.max(most, used());
  }
  console.log(
    `measured: ${count} rows in ${Math.round(performance.now() - began)} ms, ${(most - first).toFixed(1)} MB more than at first`,
  );
  assert.equal(count, rowsMax);
  // In the gate, all rows together have 15 MB; in full size, 500 MB.
  assert.ok(most - first < (rowsMax > 100_000 ? 32 : 10), `${first} MB, then ${most} MB`);
});
