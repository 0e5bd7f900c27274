// Sign-in, the frame and the query page, as a person uses them.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import {
  cells,
  control,
  copied,
  dataUrl,
  hasCells,
  isTaken,
  key,
  look,
  more,
  openBrowser,
  openPage,
  passTime,
  quoted,
  run,
  signIn,
  sql,
  typeSql,
  until,
} from "./browser.mjs";

let browser;
let page;
before(async () => {
  browser = await openBrowser();
  await sql("drop table if exists console_people");
  await sql(
    "create table console_people (id int generated always as identity primary key, name text, born date, notes jsonb)",
  );
  await sql(
    "insert into console_people (name, born, notes) select 'Person ' || n, date '1970-01-01' + n * 37, jsonb_build_object('n', n)" +
      " from generate_series(1, 200) n",
  );
});
after(async () => {
  await browser.close();
  await sql("drop table console_people");
});

test("one signs in with a key, which is not kept", async () => {
  page = await openPage(browser);
  await page.getByLabel("API key").fill("svc_k_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").waitFor();
  assert.deepEqual(await look(page, "sign-in"), []);
  await signIn(page);
  await page.waitForFunction(() => document.querySelector("select.database")?.value === "main");
  const stored = await page.evaluate(() => JSON.stringify([{ ...sessionStorage }, { ...localStorage }]));
  assert.ok(stored.includes("svc_s_"));
  assert.ok(!stored.includes(key));
  assert.ok(!(await page.evaluate(() => JSON.stringify({ ...localStorage }))).includes("svc_s_"));
});

test("a statement is run, and its rows are shown", async () => {
  await run(page, "select id, name, born, notes from console_people order by id");
  await page.getByRole("gridcell", { name: "Person 1", exact: true }).waitFor();
  assert.deepEqual((await cells(page)).slice(0, 4), ["1", "Person 1", "1970-02-07", '{"n": 1}']);
  assert.match(await page.locator(".summary").innerText(), /^SELECT · 200 rows · .* in PostgreSQL/);
  assert.deepEqual(await look(page, "query"), []);
});

test("a write runs once, though its keys are pressed again and held", async () => {
  await typeSql(page, "insert into console_people (name) select 'Twice ' || pg_sleep(1)::text");
  await page.keyboard.down("Control");
  for (let i = 0; i < 4; i += 1) await page.keyboard.down("Enter");
  await page.keyboard.up("Enter");
  await page.keyboard.press("Enter");
  await page.keyboard.up("Control");
  await page.getByText("Still running. Cancel it first.").waitFor();
  await page.getByText("1 row affected").first().waitFor();
  const written = "from console_people where name like 'Twice%'";
  assert.equal((await sql(`select count(*)::int as n ${written}`))[0].n, 1);
  await sql(`delete ${written}`);
});

test("a write that is cancelled says what became of it", async () => {
  await run(page, "insert into console_people (name) select 'Never ' || pg_sleep(60)::text");
  await page.getByText("Running…").waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByText("The service has no record that it took effect.").waitFor();
  assert.deepEqual(await sql("select 1 from console_people where name like 'Never%'"), []);
});

test("a link with a text that no page can bear leaves the console usable", async () => {
  await typeSql(page, "select $99999999999, $9999999");
  const link = await copied(page, () => more(page, "Copy link"));
  const shared = await page.context().newPage();
  await shared.goto(link);
  await signIn(shared);
  await shared.getByText("$9999999").first().waitFor();
  assert.equal(
    await shared
      .locator(".results")
      .innerText()
      .then((text) => text.startsWith("Results appear here")),
    true,
  );
  await shared.getByRole("button", { name: "Close tab" }).click();
  await shared.close();
});

test("a link that was cut off says so, opens nothing, and stays in the address", async () => {
  await typeSql(page, "delete from console_people where name = 'nobody'");
  const link = await copied(page, () => more(page, "Copy link"));
  const cut = link.slice(0, link.indexOf("where"));
  const shared = await page.context().newPage();
  await shared.goto(cut);
  await signIn(shared);
  await shared.getByText("This link is incomplete").waitFor();
  assert.equal(shared.url(), cut);
  assert.equal(await shared.getByRole("tab", { name: "Shared" }).count(), 0);
  await shared.evaluate((hash) => {
    location.hash = hash;
  }, new URL(link).hash);
  await shared.getByRole("tab", { name: "Shared" }).waitFor();
  await shared.getByLabel("SQL", { exact: true }).getByText("nobody").waitFor();
  assert.equal(await shared.getByText("This link is incomplete").count(), 0);
  assert.equal(new URL(shared.url()).hash, "#/query");
  await shared.getByRole("button", { name: "Close tab" }).click();
  await shared.close();
});

test("a copied program runs its SQL, and a shell runs nothing of it", async () => {
  const folder = mkdtempSync(join(tmpdir(), "console-"));
  const text = '\'"\\ $(touch made) `touch made` !! \u001b[2J\u202e\u2066\u{1f600}\n"; touch made\n';
  const trusted = process.env.NODE_EXTRA_CA_CERTS;
  const env = { ...process.env, PLAINSQL_KEY: key, CURL_CA_BUNDLE: trusted, SSL_CERT_FILE: trusted, HISTFILE: "" };
  const execute = (program, options, input) =>
    execFileSync(program, options, { cwd: folder, env, input, encoding: "utf8", stdio: ["pipe", "pipe", "ignore"] });
  await typeSql(page, `select ${quoted(text)} as text`);
  const curl = await copied(page, () => more(page, "Copy as curl"));
  const bash = ["--norc", "-o", "history", "-o", "histexpand"];
  assert.equal(JSON.parse(execute("bash", bash, curl)).rows[0].text, text);
  const python = await copied(page, () => more(page, "Copy as Python"));
  const asJson = python.replace("print(row)", "print(__import__('json').dumps(row['text']))");
  assert.equal(JSON.parse(execute(process.env.PLAINSQL_TEST_PYTHON, ["-"], asJson)), text);
  // In a shell, these are no programs. ImageMagick has a command "import".
  for (const program of [python, await copied(page, () => more(page, "Copy as JavaScript"))]) {
    assert.match(program, /^[ -~\n]*$/);
    assert.throws(() => execute("bash", bash, program.replaceAll(/^import os$/gm, "")));
  }
  assert.deepEqual(readdirSync(folder), []);
  rmSync(folder, { recursive: true });
});

test("numbers keep every digit, inside JSON, too", async () => {
  const json = '{"many": 12345678901234567890.10, "small": [1.10, 1e400]}';
  await run(
    page,
    `select 9223372036854775807 as whole, 12345678901234567890.123456789012345678901234567890 as exact,` +
      ` ${quoted(json)}::json as json, '[1.10]'::jsonb as jsonb, array['1.10'::jsonb] as all_json`,
  );
  const shown = [
    "9223372036854775807",
    "12345678901234567890.123456789012345678901234567890",
    json,
    "[1.10]",
    "[1.10]",
  ];
  await page.getByRole("gridcell", { name: shown[0] }).waitFor();
  await hasCells(page, shown);
  await page.getByRole("gridcell").nth(2).dblclick();
  const pretty = await page.locator(".cell-view pre").innerText();
  assert.equal(pretty, '{\n  "many": 12345678901234567890.10,\n  "small": [\n    1.10,\n    1e400\n  ]\n}');
  await page.getByRole("button", { name: "Close", exact: true }).click();
  await page.getByLabel("SQL", { exact: true }).focus();
  await page.keyboard.press("Alt+Enter");
  await page.locator(".summary[data-state=done]", { hasText: "1 row" }).waitFor();
  await hasCells(page, shown);
});

test("an error puts the caret where it is", async () => {
  await run(page, "select 1;\nselect '😀', nothing_here from console_people");
  const alert = page.getByRole("alert");
  await alert.waitFor();
  assert.match(await alert.innerText(), /column "nothing_here" does not exist/);
  assert.equal(await page.locator(".cm-failed").innerText(), "nothing_here");
  assert.deepEqual(await look(page, "error"), []);
});

test("what is typed while the formatter is being loaded is kept", async () => {
  const slow = await openPage(browser);
  await signIn(slow);
  let resume = () => undefined;
  const held = new Promise((resolve) => {
    resume = resolve;
  });
  await slow.route("**/console/format-*.js", async (route) => {
    await held;
    await route.continue();
  });
  await typeSql(slow, "select 1,2");
  const asked = slow.waitForRequest("**/console/format-*.js");
  await slow.keyboard.press("Control+Shift+F");
  const url = (await asked).url();
  await slow.keyboard.insertText(", 3 as typed_on");
  resume();
  // What waits for the module longer has it before.
  await slow.evaluate((name) => import(name).then(() => undefined), url);
  const text = slow.getByLabel("SQL", { exact: true });
  assert.equal((await text.innerText()).trim(), "select 1,2, 3 as typed_on");
  await slow.keyboard.press("Control+Shift+F");
  await text.getByText(/^\s*2,$/).waitFor();
  assert.match(await text.innerText(), /3 as typed_on/);
  assert.deepEqual(slow.complaints, []);
  await slow.context().close();
});

test("no list of completions opens over a menu", async () => {
  const other = await openPage(browser);
  await other.clock.install();
  await signIn(other);
  const list = other.locator(".cm-tooltip-autocomplete");
  const type = () => typeSql(other, "select 1 as one order by 1 desc");
  // It opens, and has what it offers: from now on, nothing but time is between a key and the list.
  await type();
  await other.clock.runFor(1_000);
  await list.waitFor();
  await other.keyboard.press("Escape");
  // From here on, time passes only when it is told to.
  await other.clock.pauseAt((await other.evaluate("Date.now()")) + 1_000);
  await type();
  await other.getByRole("button", { name: "More" }).click();
  await other.getByRole("menu").waitFor();
  await other.clock.runFor(60_000);
  assert.equal(await list.count(), 0);
  await other.context().close();
});

test("a name is completed as a name, whatever it is, and so are PostgreSQL's functions and one's own", async () => {
  const hostile = '"console_hostile""; drop table console_people; --"';
  await sql(`drop table if exists ${hostile}`);
  await sql("create or replace function console_is_admin() returns bool language sql as 'select true'");
  // What the console has created, it completes.
  await run(page, `create table ${hostile} (id int)`);
  await page.getByText("CREATE TABLE", { exact: true }).first().waitFor();
  const list = page.locator(".cm-tooltip-autocomplete");
  const offered = async (text, label) => {
    await typeSql(page, text);
    await page.keyboard.press("Control+Space");
    const found = list.locator(".cm-completionLabel").filter({ hasText: label });
    await found
      .first()
      .waitFor()
      .catch(async (error) => {
        const typed = await page.getByLabel("SQL", { exact: true }).innerText();
        throw new Error(`${label} not offered after ${typed}, but ${await list.allInnerTexts()}`, { cause: error });
      });
  };
  for (const name of ["date_bin", "timezone", "age", "scale", "sin", "min", "console_is_admin"]) {
    await offered(`select ${name}`, new RegExp(`^${name}$`));
  }
  await offered("select bool", "bool_and");
  assert.equal(await list.getByText("boolin", { exact: true }).count(), 0);
  for (const start of ["console_host", '"console_host']) {
    await offered(`select * from ${start}`, "console_hostile");
    await list.getByText("console_hostile").click();
    const text = await page.getByLabel("SQL", { exact: true }).innerText();
    assert.equal(text.trim(), `select * from ${hostile}`);
  }
  await sql(`drop table ${hostile}`);
  await sql("drop function console_is_admin()");
});

test("all statements are one transaction with a result each", async () => {
  await typeSql(
    page,
    "insert into console_people (name) values ('New') returning name;\nselect count(*) from console_people",
  );
  await page.keyboard.press("Control+Shift+Enter");
  await page.getByRole("tab", { name: "2 SELECT" }).click();
  await hasCells(page, ["201"]);
  await typeSql(page, "delete from console_people where name = 'New';\nselect 1 / 0");
  await page.keyboard.press("Control+Shift+Enter");
  await page.getByText("division by zero").waitFor();
  assert.match(await page.getByRole("alert").innerText(), /statement 2[\s\S]*rolled back/);
  assert.equal((await sql("select 1 from console_people where name = 'New'")).length, 1);
});

test("what is rehearsed does not happen", async () => {
  await typeSql(page, "delete from console_people returning id");
  await more(page, /Rehearse/);
  await page.getByText("Rehearsed: everything was rolled back").waitFor();
  assert.match(await page.locator(".summary").innerText(), /201 rows affected/);
  assert.equal((await sql("select count(*)::int as n from console_people"))[0].n, 201);
});

test("parameters are values, never SQL", async () => {
  await typeSql(page, "select $1::text as text, $2::int + 1 as more");
  await page.getByLabel("Value of $1").fill("'; drop table console_people; --");
  await page.getByLabel("Value of $2").fill("41");
  await page.getByLabel("SQL", { exact: true }).focus();
  await page.keyboard.press("Control+Enter");
  await page.getByRole("gridcell", { name: "42", exact: true }).waitFor();
  await hasCells(page, ["'; drop table console_people; --", "42"]);
});

test("a result of more rows than are shown says so, and all of it can be streamed", async () => {
  await run(page, "select n, 'row ' || n as text from generate_series(1, 5000) n");
  await page.getByText("1,000 rows shown, and there are more.").waitFor();
  await page.getByRole("button", { name: "Stream all" }).click();
  await page.locator(".summary[data-state=done]", { hasText: "5,000 rows" }).waitFor();
  await page.getByRole("grid").focus();
  await page.keyboard.press("Control+ArrowDown");
  await page.getByRole("gridcell", { name: "row 5000", exact: true }).waitFor();
});

test("a copy and a chart have a limit of bytes, and say so", async () => {
  await typeSql(page, "select n, repeat('x', 400000) as large from generate_series(1, 60) n");
  await page.keyboard.press("Alt+Enter");
  await page.locator(".summary[data-state=done]", { hasText: "60 rows" }).waitFor();
  const text = await copied(page, async () => {
    await page.getByRole("button", { name: "Copy", exact: true }).click();
    await page.getByRole("menuitem", { name: "CSV", exact: true }).click();
    await page.getByText("Copied the first 39 of 60 rows: a copy has at most 50,000 rows or 16.0 MB.").waitFor();
  });
  assert.equal(text.trimEnd().split("\n").length, 40);
  await page.getByRole("button", { name: "Chart" }).click();
  await page.getByText("Of 60 rows, the first 39: a chart has at most 20,000 rows or 16.0 MB.").waitFor();
});

test("a stream of large rows is stopped at a number of bytes, and an export streams all of it", async () => {
  // The same with less to send: the bound of the page is 256 MB.
  await page.evaluate(() => {
    const NativeWorker = window.Worker;
    window.Worker = class extends NativeWorker {
      postMessage(message) {
        const { request } = message;
        super.postMessage(request ? { ...message, request: { ...request, maxBytes: 8e6 } } : message);
      }
    };
  });
  await typeSql(page, "select n, repeat('x', 400000) as large from generate_series(1, 60) n");
  await page.keyboard.press("Alt+Enter");
  await page.locator(".summary[data-state=stopped]").waitFor();
  const note = await page.getByText(/^Stopped at \d+ rows \/ /).innerText();
  assert.match(note, /^Stopped at (1\d|2\d) rows \/ \S+ MB, .* Export streams all rows to a file\.$/);
  assert.equal((await cells(page))[1].length, 301);
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export" }).click();
  await page.getByRole("menuitem", { name: "CSV", exact: true }).click();
  const lines = readFileSync(await (await download).path(), "utf8")
    .trimEnd()
    .split("\r\n");
  assert.equal(lines.length, 61);
  assert.deepEqual([lines[0], lines[60]], ["n,large", `60,${"x".repeat(400000)}`]);
  await page.getByText("60 rows exported.").waitFor();
  await page.reload();
});

test("results are copied in each format", async () => {
  await run(page, "select 1 as id, 'a,b' as text");
  await page.getByRole("gridcell", { name: "a,b" }).waitFor();
  for (const [format, expected] of [
    ["CSV", 'id,text\r\n1,"a,b"\r\n'],
    ["CSV for spreadsheets", 'id,text\r\n1,"a,b"\r\n'],
    ["JSON", '[\n  {"id": 1, "text": "a,b"}\n]\n'],
    ["Markdown", "| id | text |\n|---:|---|\n| 1 | a,b |\n"],
    ["INSERT", "INSERT INTO results (id, text) VALUES\n  (1, 'a,b');\n"],
  ]) {
    await page.getByRole("button", { name: "Copy", exact: false }).first().click();
    await page.getByRole("menuitem", { name: format, exact: true }).click();
    await page.waitForFunction(async (text) => (await navigator.clipboard.readText()) === text, expected);
  }
});

test("a write whose page went away is in the history, which asks what became of it", async () => {
  let store = () => undefined;
  const stored = new Promise((resolve) => {
    store = resolve;
  });
  await page.route(`${dataUrl}/v1/query`, async (route) => {
    if (!route.request().postDataJSON().sql.startsWith("insert")) return route.continue();
    // It takes effect, but is never answered.
    store(await route.fetch());
  });
  await run(page, "insert into console_people (name) values ('reloaded')");
  await stored;
  await page.getByRole("button", { name: "History" }).click();
  const entry = page.getByRole("listitem").filter({ hasText: "'reloaded'" });
  await entry.getByText("Running").waitFor();
  await page.reload();
  await page.unroute(`${dataUrl}/v1/query`);
  await page.getByRole("button", { name: "History" }).click();
  await entry.getByText("Outcome unknown: no response").waitFor();
  assert.deepEqual(await look(page, "history-unknown"), []);
  await entry.getByRole("button", { name: "Ask again" }).click();
  await entry.getByText("No response, but committed").waitFor();
  assert.equal(await entry.getByRole("button", { name: "Ask again" }).count(), 0);
  await page.getByRole("button", { name: "Close the history" }).click();
  await sql("delete from console_people where name = 'reloaded'");
});

test("a saved query is not replaced by another one without a question", async () => {
  const asked = [];
  const answer = (dialog) => {
    asked.push(dialog.type());
    return dialog.type() === "prompt" ? dialog.accept("kept name") : dialog.dismiss();
  };
  page.on("dialog", answer);
  for (const text of ["select 'saved first'", "select 'saved second'"]) {
    await typeSql(page, text);
    await more(page, "Save query…");
  }
  page.off("dialog", answer);
  assert.deepEqual(asked, ["prompt", "prompt", "confirm"]);
  await page.getByRole("button", { name: "History" }).click();
  await page.getByRole("tab", { name: "Saved" }).click();
  await page.getByRole("listitem").filter({ hasText: "kept name" }).getByText("select 'saved first'").waitFor();
  await page.getByRole("button", { name: "Delete kept name" }).click();
  await page.getByRole("tab", { name: "Run", exact: true }).click();
  await page.getByRole("button", { name: "Close the history" }).click();
});

test("what is typed survives a reload, and a closed tab can be opened again", async () => {
  await typeSql(page, "select 'precious'");
  await page.reload();
  await page.getByText("'precious'").waitFor();
  await page.getByRole("button", { name: "New tab" }).click();
  await typeSql(page, "select 'closed one'");
  await page.getByRole("button", { name: "Close tab" }).click();
  await page.getByText("'precious'").waitFor();
  await page.getByRole("button", { name: "History" }).click();
  await page.getByRole("tab", { name: "Closed" }).click();
  await page.getByRole("button", { name: /closed one/ }).click();
  await page.getByLabel("SQL", { exact: true }).getByText("'closed one'").waitFor();
  await page.getByRole("tab", { name: "Run", exact: true }).click();
  assert.deepEqual(await look(page, "history"), []);
  await page.getByRole("button", { name: "Close the history" }).click();
});

test("what is typed in one window is shown in another, which stores nothing of its own accord", async () => {
  const other = await page.context().newPage();
  await other.addInitScript(() => {
    globalThis.written = [];
    const { setItem } = Storage.prototype;
    Storage.prototype.setItem = function (key, value) {
      globalThis.written.push(key);
      setItem.call(this, key, value);
    };
  });
  await other.goto(page.url());
  await signIn(other);
  const title = await page.getByRole("tab", { selected: true }).innerText();
  await other.getByRole("tab", { name: title }).click();
  for (const text of ["select 'typed in one window'", "select 'and shown in another'"]) {
    await typeSql(page, text);
    await other.getByLabel("SQL", { exact: true }).getByText(text).waitFor();
  }
  const drafts = await other.evaluate(() => globalThis.written.filter((key) => key.startsWith("plainsql.draft.")));
  assert.deepEqual(drafts, []);
  await other.close();
});

test("the history says in words what became of each statement, and how long it took", async () => {
  const other = await openPage(browser);
  await signIn(other);
  await other.getByRole("button", { name: "History" }).click();
  const entry = other.getByRole("complementary", { name: "History" }).getByRole("listitem").first();
  const has = (words) => entry.getByText(words).waitFor();
  // Before the databases are listed, it would run in the default without its name.
  await other.waitForFunction(() => document.querySelector("select.database")?.value === "main");
  await run(other, "select id from console_people order by id limit 3");
  await has(/^Done, 3 rows · [\d.]+ (µs|ms|s) · main · just now$/);
  await run(other, "update console_people set born = born where id <= 2");
  await has(/^Done, 2 rows affected ·/);
  await run(other, "select n from generate_series(1, 2000) n");
  await has(/^Done, 1,000 rows and more ·/);
  await typeSql(other, "delete from console_people where id = 1;\nselect 1 / 0");
  await other.keyboard.press("Control+Shift+Enter");
  await has(/^Failed: division_by_zero, rolled back ·/);
  await typeSql(other, "delete from console_people");
  await more(other, /Rehearse/);
  await has(/^Rehearsed and rolled back, \d+ rows affected ·/);
  await run(other, "insert into console_people (name) select 'Never ' || pg_sleep(60)::text");
  await other.getByText("Running…").waitFor();
  await other.getByRole("button", { name: "Cancel" }).click();
  await has(/^Cancelled, not executed ·/);
  // The write takes effect, and no response arrives: neither to it nor to the question about it.
  await other.route(`${dataUrl}/v1/**`, async (route) => {
    await route.fetch();
    await route.abort();
  });
  await passTime(other, async () => {
    await run(other, "insert into console_people (name) values ('Unknown')");
    return entry.getByText(/^Outcome unknown: connection lost · 1 min/);
  });
  await has(/^Look at the data before you run it again. Its idempotency key is [-\d]+\.$/);
  assert.deepEqual(await look(other, "history-outcomes"), []);
  assert.equal((await sql("delete from console_people where name = 'Unknown' returning 1")).length, 1);
  await other.reload();
  await other.getByRole("button", { name: "History" }).click();
  await has(/^Outcome unknown: connection lost ·/);
  assert.deepEqual(other.complaints, []);
  // The reloaded page still asks what to complete.
  await other.unrouteAll({ behavior: "ignoreErrors" });
  await other.context().close();
});

test("the command palette finds what is typed", async () => {
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill("dark");
  assert.deepEqual(await look(page, "palette"), []);
  await page.keyboard.press("Enter");
  await page.locator("html[data-theme=dark]").waitFor();
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill("system");
  await page.keyboard.press("Enter");
  await page.locator("html:not([data-theme=dark])").waitFor();
  await page.getByRole("dialog").waitFor({ state: "detached" });
});

test("the command palette takes a command whose Enter came before the tables", async () => {
  let answer;
  const held = new Promise((resolve) => {
    answer = resolve;
  });
  await page.route("**/v1/query", async (route) => {
    await held;
    await route.continue();
  });
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill("dark");
  await page.keyboard.press("Enter");
  await page.getByText("Looking for tables and functions…").waitFor();
  assert.notEqual(await page.locator("html").getAttribute("data-theme"), "dark");
  answer();
  await page.locator("html[data-theme=dark]").waitFor();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.unrouteAll({ behavior: "wait" });
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill("use the system");
  await page.keyboard.press("Enter");
});

test("a revoked key ends the session, and drafts are kept", async () => {
  const { key: made } = await control("POST", "/v1/keys", { name: "console test", scopes: ["read"] });
  const other = await openPage(browser);
  await signIn(other, made.secret);
  await typeSql(other, "select 'kept'");
  await control("DELETE", `/v1/keys/${made.id}`);
  await until(async () => !(await isTaken(made.secret)));
  await other.keyboard.press("Control+Enter");
  await other.getByText("Your drafts are kept").waitFor();
  await signIn(other);
  await other.getByText("'kept'").waitFor();
  await other.context().close();
});

test("signing out leaves no token behind, and the session is over", async () => {
  const token = await page.evaluate(() => JSON.parse(sessionStorage.getItem("plainsql.session")).token);
  await page.getByRole("button", { name: /Session/ }).click();
  await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
  await page.getByText("You have signed out.").waitFor();
  const stored = await page.evaluate(() => JSON.stringify([{ ...sessionStorage }, { ...localStorage }]));
  assert.ok(!stored.includes("svc_"));
  assert.deepEqual(
    page.asked.filter((url) => url.includes("svc_")),
    [],
  );
  assert.deepEqual(page.complaints, []);
  await until(async () => !(await isTaken(token)));
});
