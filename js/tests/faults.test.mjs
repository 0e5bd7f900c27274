import assert from "node:assert/strict";
import { test } from "node:test";
import { identifier } from "plainsql";
import { faulty } from "./faulty.mjs";
import { newTable, open } from "./service.mjs";

test("an event that can't be read breaks the stream, and a comment doesn't", async (t) => {
  let event = ": ping";
  const url = await faulty(t, async ({ pass }) => {
    const response = await pass();
    const text = (await response.text()).replace("event: done", `${event}\n\nevent: done`);
    return new Response(text, { headers: response.headers });
  });
  const read = async () => {
    let count = 0;
    for await (const _ of open({ url }).stream("select n from generate_series(1, 3) n")) count += 1;
    return count;
  };
  assert.equal(await read(), 3);
  for (event of ["event: row", 'data: {"n":4}', "event: row\ndata: {", "x"])
    await assert.rejects(read(), { name: "PlainSQLError", code: "stream_broken" }, event);
});

/** The service, but it says of each write, once it is done, that it doesn't know what became of it. */
const forgetful = (test, status, code) =>
  faulty(test, async ({ headers, pass }) => {
    const response = await pass();
    if (!headers["idempotency-key"]) return response;
    const error = { code, message: "The connection was lost.", outcome: "unknown", retryable: false };
    return Response.json({ success: false, request_id: "req_1", error }, { status });
  });

for (const [status, code] of [
  [503, "connection_lost"],
  [500, "internal_error"],
]) {
  test(`if the service answers ${code} to a write, the client finds out what became of it`, async (t) => {
    const table = await newTable(t, open(), "n int primary key");
    const db = open({ url: await forgetful(t, status, code), timeoutMs: 300 });
    const insert = (options) => db.query(`insert into ${table} values (1)`, [], options);
    const failure = await insert().catch((error) => error);
    assert.deepEqual(
      [failure.code, failure.outcome, failure.status, failure.requestId],
      [code, "committed", status, "req_1"],
    );
    assert.equal(await open().outcome(failure.idempotencyKey), "committed");
    assert.deepEqual(await open().sql`select n from ${identifier(table)}`, [{ n: 1 }]);
    // This one fails in the service: it has no record.
    const idempotencyKey = `${table}-2`;
    await assert.rejects(insert({ idempotencyKey }), { code, outcome: "unknown", idempotencyKey });
  });
}
