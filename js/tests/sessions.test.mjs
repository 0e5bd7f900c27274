import assert from "node:assert/strict";
import { test } from "node:test";
import { connect } from "plainsql";
import { createSession, endSession, refreshSession } from "plainsql/sessions";
import { open, refusal, url } from "./service.mjs";

const db = open();

test("a session has the rights that it was given, can be extended, and ended", async () => {
  const session = await createSession(db, { scopes: ["read"], database: "main" });
  assert.match(session.token, /^svc_s_/);
  assert.deepEqual([session.scopes, session.database], [["read"], "main"]);
  const page = connect({ url, session: session.token });
  assert.deepEqual(await page.sql`select 1 as one`, [{ one: 1 }]);
  await assert.rejects(page.sql`create table js_none (n int)`, { code: "read_only_sql_transaction" });
  const refreshed = await refreshSession(page);
  assert.ok(Date.parse(refreshed.expiresAt) > Date.parse(session.expiresAt));
  await endSession(page);
  const { code, status, outcome } = await refusal(page);
  assert.deepEqual({ code, status, outcome }, { code: "unauthenticated", status: 401, outcome: "not_executed" });
});

test("when its session has ended, a page gets the next one, and its calls do not notice", async () => {
  const tokens = [];
  const source = async () => {
    const { token } = await createSession(db, { scopes: ["write"], expiresInSeconds: 900 });
    tokens.push(token);
    return token;
  };
  const page = connect({ url, session: source });
  assert.deepEqual(await Promise.all([page.sql`select 1 as n`, page.sql`select 2 as n`]), [[{ n: 1 }], [{ n: 2 }]]);
  assert.equal(tokens.length, 1);
  const first = connect({ url, session: tokens[0] });
  await endSession(first);
  assert.equal((await refusal(first)).status, 401);
  const queries = [1, 2, 3].map((n) => page.query("select $1::int as n", [n]));
  assert.deepEqual(
    (await Promise.all(queries)).map(({ rows }) => rows[0].n),
    [1, 2, 3],
  );
  assert.equal(tokens.length, 2);
});

test("a source that fails is asked again, and one whose tokens are refused is not asked for ever", async () => {
  let calls = 0;
  const failing = connect({ url, session: () => Promise.reject(new Error(`no session ${++calls}`)) });
  await assert.rejects(failing.sql`select 1`, /no session 1/);
  await assert.rejects(failing.sql`select 1`, /no session 2/);
  calls = 0;
  const refused = connect({ url, session: () => `svc_s_${++calls}` });
  await assert.rejects(refused.sql`select 1`, { code: "unauthenticated" });
  assert.equal(calls, 2);
});

test("a source that hangs keeps no call longer than its time or its signal, and is asked again after a timeout", async () => {
  let calls = 0;
  const { token } = await createSession(db, { scopes: ["read"] });
  const page = connect({ url, session: () => (++calls === 1 ? new Promise(() => {}) : token) });
  const abortion = new AbortController();
  const reason = new Error("enough");
  const aborted = assert.rejects(page.query("select 1", [], { signal: abortion.signal }), reason);
  abortion.abort(reason);
  await aborted;
  assert.equal(calls, 1);
  // Five seconds after its time, as if the service were silent.
  const late = page.query("select 1", [], { timeoutMs: 1 });
  await assert.rejects(late, {
    code: "network_error",
    outcome: "not_executed",
    message: "No response from session(): timeout.",
  });
  assert.equal(calls, 1);
  assert.deepEqual(await page.sql`select 1 as one`, [{ one: 1 }]);
  assert.equal(calls, 2);
});
