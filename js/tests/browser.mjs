// Uses the client in a page of another origin, in Chromium, with a session that ends in between. Prints what the page
// saw as JSON. Argument: the page's address.
import { build } from "esbuild";
import { connect } from "plainsql";
import { createSession, endSession } from "plainsql/sessions";
import { chromium } from "playwright-core";
import { open, refusal, url } from "./service.mjs";

const { outputFiles } = await build({
  entryPoints: ["dist/index.js"],
  bundle: true,
  format: "esm",
  minify: true,
  write: false,
});
const db = open();
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
try {
  // The authority is the service's own. Node's tests verify it.
  const page = await browser.newPage({ ignoreHTTPSErrors: true });
  const tokens = [];
  await page.exposeFunction("getSession", async () => {
    const { token } = await createSession(db, { scopes: ["write"], database: "main", expiresInSeconds: 900 });
    tokens.push(token);
    return token;
  });
  await page.exposeFunction("endSession", async () => {
    const ended = connect({ url, session: tokens.at(-1) });
    await endSession(ended);
    await refusal(ended);
  });
  await page.goto(process.argv[2]);
  const source = `data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`;
  console.log(JSON.stringify({ ...(await page.evaluate(useClient, { source, url })), sessions: tokens.length }));
} finally {
  await browser.close();
}

async function useClient({ source, url }) {
  const { connect, ref, sql } = await import(source);
  const db = connect({ url, session: window.getSession, int8: "bigint" });
  const seen = { origin: location.origin };
  seen.first = await db.sql`select ${"milk"} as body, ${Uint8Array.of(1, 2)}::bytea = '\\x0102' as same`;
  const [{ big }] = await db.sql`select 9007199254740993 as big`;
  seen.big = String(big);
  await db.query("create table if not exists js_page (id int generated always as identity, body text)");
  const { results } = await db.transaction([
    sql`insert into js_page (body) values ('x') returning id`,
    sql`select body from js_page where id = ${ref(0, "id")}`.expecting({ rowCount: 1 }),
  ]);
  seen.body = results[1].rows[0].body;
  await db.query("drop table js_page");
  await window.endSession();
  seen.afterSession = await db.sql`select 1 as one`;
  const failure = await db.sql`select * from js_nowhere`.catch((error) => error);
  seen.error = { name: failure.name, code: failure.code, position: failure.position, outcome: failure.outcome };
  seen.rows = [];
  for await (const { n } of db.stream(
    "select n, case when n > 2 then pg_sleep(600)::text end from generate_series(1, 9) n",
  )) {
    seen.rows.push(n);
    break;
  }
  while ((await db.sql`select 1 from pg_stat_activity where wait_event = 'PgSleep'`).length);
  const unreachable = connect({ url: "http://127.0.0.1:1", key: "x", timeoutMs: 200 });
  seen.unreachable = await unreachable.sql`insert into t values (1)`.catch(({ code, outcome }) => ({ code, outcome }));
  return seen;
}
