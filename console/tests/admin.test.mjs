// Explain, charts and administration, as a person uses them.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { cells, control, dataUrl, look, more, openBrowser, run, signedIn, sql, typeSql, until } from "./browser.mjs";

let browser;
let page;
before(async () => {
  browser = await openBrowser();
  // What an earlier run may have left.
  for (const name of ["console-shop", "console-store", "console-staging", "console-trial", "console-default"]) {
    await control("DELETE", `/v1/databases/${name}?restorable=false`);
  }
  await sql("drop table if exists console_orders");
  await sql("create table console_orders (id int primary key, customer int, total numeric, at date)");
  await sql(
    "insert into console_orders select n, n % 50, (n * 7919 % 1000) / 10.0, date '2026-01-01' + n % 90 from generate_series(1, 20000) n",
  );
  page = await signedIn(browser);
});
after(async () => {
  await browser.close();
  await sql("drop table console_orders");
});

test("a plan names the part that takes most time, and a write is only rehearsed", async () => {
  await typeSql(
    page,
    "select c.customer, sum(o.total) from console_orders o join (select distinct customer from console_orders) c" +
      " using (customer) where o.total > 99.8 group by 1 order by 2 desc",
  );
  await more(page, /Explain/);
  await page.getByText("takes most time").waitFor();
  assert.ok((await page.locator(".plan-node").count()) > 3);
  assert.deepEqual(await look(page, "plan"), []);
  await typeSql(page, "update console_orders set total = 0");
  await more(page, /Explain/);
  await page.getByText("what it changed was rolled back").waitFor();
  await page.locator(".plan-node", { hasText: "ModifyTable" }).waitFor();
  assert.equal((await sql("select count(*)::int as n from console_orders where total > 0"))[0].n > 19_000, true);
});

test("a result is drawn", async () => {
  await run(page, "select at, sum(total) as total, count(*) as orders from console_orders group by at order by at");
  await page.getByRole("button", { name: "Chart" }).click();
  await page.getByRole("img", { name: "line chart of total, orders" }).locator("canvas").waitFor();
  for (const kind of ["bar", "scatter", "histogram"]) {
    await page.getByLabel("Kind of chart").selectOption(kind);
    await page
      .getByRole("img", { name: `${kind} chart of total, orders` })
      .locator("canvas")
      .waitFor();
  }
  await page.getByLabel("Kind of chart").selectOption("line");
  // Who does not see it is told what it shows.
  const described = await page.locator(".plot").getAttribute("aria-describedby");
  assert.match(
    await page.locator(`[id="${described}"]`).innerText(),
    /^total: 90 values, from .* to .*\. orders: 90 values, from 222 to 223\. By at, 2026-01-01 in the first row and 2026-03-31 in the last\.$/,
  );
  assert.deepEqual(await look(page, "chart"), []);
});

test("a database is created, renamed, deleted by its name, and restored", async () => {
  await page.getByRole("link", { name: "Databases" }).click();
  await page.getByRole("button", { name: "Create database" }).click();
  await page.getByRole("textbox", { name: "Name" }).fill("console-shop");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  const row = (name) => page.getByRole("row", { name });
  await row("console-shop").waitFor();
  await page.getByRole("button", { name: "Actions of console-shop" }).click();
  await page.getByRole("menuitem", { name: "Rename…" }).click();
  await page.getByRole("textbox", { name: "Name" }).fill("console-store");
  await page.getByRole("button", { name: "Rename", exact: true }).click();
  await row("console-store").waitFor();
  assert.deepEqual(await look(page, "databases"), []);
  await page.getByRole("button", { name: "Actions of console-store" }).click();
  await page.getByRole("menuitem", { name: "Delete…" }).click();
  const confirm = page.getByRole("button", { name: "Delete", exact: true });
  await page.getByLabel("Type console-store to confirm").fill("console");
  assert.equal(await confirm.isDisabled(), true);
  await page.getByLabel("Type console-store to confirm").fill("console-store");
  await confirm.click();
  await row(/console-store.*restorable until/).waitFor();
  await page.getByRole("button", { name: "Actions of console-store" }).click();
  await page.getByRole("menuitem", { name: "Restore" }).click();
  await row(/console-store.*ready/).waitFor();
  await control("DELETE", "/v1/databases/console-store?restorable=false");
});

/** A page of its own, in which a database other than the default is chosen. */
const inStaging = async () => {
  const staging = await control("POST", "/v1/databases", { name: "console-staging" });
  assert.equal(staging.database?.state, "ready", JSON.stringify(staging));
  await sql("create table console_where as select 'staging ' || n as here from generate_series(1, 2000) n", {
    database: "console-staging",
  });
  await sql("create table console_where as select 'the default' as here");
  const other = await signedIn(browser);
  await other.locator("select.database").selectOption("console-staging");
  return other;
};

test("SQL runs in the database that was chosen, and in no other", async () => {
  const other = await inStaging();
  const shown = (text) => other.getByRole("gridcell", { name: text, exact: true }).waitFor();
  await run(other, "select here from console_where");
  await shown("staging 1");
  // The list of databases does not come before a key is pressed.
  let list = () => undefined;
  const asked = new Promise((resolve) => {
    list = resolve;
  });
  await other.route("**/v1/databases?*", async (route) => {
    await asked;
    await route.continue();
  });
  await other.reload();
  await other.getByLabel("SQL", { exact: true }).focus();
  await other.keyboard.press("Control+Enter");
  await shown("staging 1");
  list();
  // What was run there is streamed from there, though another one is chosen now.
  await other.locator("select.database option", { hasText: "main" }).waitFor({ state: "attached" });
  await other.unroute("**/v1/databases?*");
  await other.locator("select.database").selectOption("main");
  await other.getByRole("button", { name: "Stream all" }).click();
  await other.locator(".summary[data-state=done]", { hasText: "2,000 rows" }).waitFor();
  // A table that was imported is opened where it was imported.
  await other.locator("select.database").selectOption("console-staging");
  await other.getByRole("link", { name: "Tables" }).click();
  await other.getByRole("button", { name: "Import CSV" }).click();
  const buffer = Buffer.from("id\n7\n");
  await other.getByLabel("CSV file").setInputFiles({ name: "console_there.csv", mimeType: "text/csv", buffer });
  await other.getByRole("button", { name: "Import", exact: true }).click();
  await other.getByRole("heading", { name: "Imported" }).waitFor();
  await other.locator("select.database").selectOption("main");
  await other.getByRole("button", { name: "Open table" }).click();
  await shown("7");
  assert.equal(await other.locator("select.database").inputValue(), "console-staging");
  // Its new name is chosen, and when it is deleted, nothing is.
  await other.getByRole("link", { name: "Databases" }).click();
  await other.getByRole("button", { name: "Actions of console-staging" }).click();
  await other.getByRole("menuitem", { name: "Rename…" }).click();
  await other.getByRole("textbox", { name: "Name" }).fill("console-trial");
  await other.getByRole("button", { name: "Rename", exact: true }).click();
  await other.getByRole("row", { name: "console-trial" }).waitFor();
  assert.equal(await other.locator("select.database").inputValue(), "console-trial");
  await other.getByRole("button", { name: "Actions of console-trial" }).click();
  await other.getByRole("menuitem", { name: "Delete…" }).click();
  await other.getByLabel("Type console-trial to confirm").fill("console-trial");
  await other.getByRole("button", { name: "Delete", exact: true }).click();
  await other.getByRole("row", { name: /console-trial.*restorable until/ }).waitFor();
  await other.getByRole("link", { name: "Query" }).click();
  await other.getByText("The database console-trial is not there any more").waitFor();
  assert.equal(await other.getByRole("button", { name: /^Run/ }).isDisabled(), true);
  const before = other.asked.length;
  await other.getByLabel("SQL", { exact: true }).focus();
  await other.keyboard.press("Control+Enter");
  await other.locator(".toast", { hasText: "is not there any more" }).waitFor();
  assert.deepEqual(
    other.asked.slice(before).filter((url) => url.startsWith(`${dataUrl}/v1/`)),
    [],
  );
  assert.deepEqual(await look(other, "database-gone"), []);
  await other.locator("select.database").selectOption("main");
  await other.keyboard.press("Escape");
  await run(other, "select here from console_where");
  await shown("the default");
  assert.deepEqual(other.complaints, []);
  await other.context().close();
  await control("DELETE", "/v1/databases/console-trial?restorable=false");
  await sql("drop table console_where");
});

test("a key is shown once, rotated and revoked", async () => {
  await page.getByRole("link", { name: "API keys" }).click();
  await page.getByRole("button", { name: "Create key" }).click();
  await page.getByRole("textbox", { name: "Name" }).fill("console website");
  await page.getByLabel("write: all SQL").check();
  await page.getByLabel("Expires after days").fill("30");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  const secret = await page.locator(".secret code").innerText();
  assert.match(secret, /^svc_k_/);
  // Neither keys nor the mouse close by accident what is shown but once.
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await page.mouse.click(5, 5);
  assert.equal(await page.locator(".secret code").innerText(), secret);
  await page.getByRole("button", { name: "Done" }).click();
  assert.ok(!(await page.content()).includes(secret));
  assert.deepEqual(await look(page, "keys"), []);
  await page.getByRole("button", { name: "Actions of console website" }).click();
  await page.getByRole("menuitem", { name: "Rotate…" }).click();
  await page.getByLabel(/The old key works/).fill("0");
  await page.getByRole("button", { name: "Rotate", exact: true }).click();
  await page.locator(".secret code").waitFor();
  await page.getByRole("button", { name: "Done" }).click();
  await page.getByRole("button", { name: "Actions of console website" }).click();
  await page.getByRole("menuitem", { name: "Revoke…" }).click();
  await page.getByRole("button", { name: "Revoke", exact: true }).click();
  await page.getByRole("row", { name: "console website" }).waitFor({ state: "detached" });
});

test("usage, the audit log and the service are shown", async () => {
  await page.getByRole("link", { name: "Usage" }).click();
  await page.getByRole("heading", { name: /Limits of the tier/ }).waitFor();
  // Requests are counted every few seconds.
  const beside = page.getByRole("region", { name: "Usage beside the limits" });
  const isCounted = async () => {
    await page.reload();
    await page.getByRole("heading", { name: /Limits of the tier/ }).waitFor();
    await page
      .getByText("Nothing was used yet")
      .or(page.getByRole("region", { name: "Usage by database" }))
      .waitFor();
    return (await beside.getByRole("row", { name: /^main / }).count()) > 0;
  };
  await until(isCounted);
  assert.match(await beside.getByRole("row", { name: /^all databases / }).innerText(), /[\d,]+ of [\d,]+, .*%/);
  const meters = await beside.locator(".meter div").evaluateAll((all) => all.map(({ style }) => style.width));
  assert.ok(meters.length >= 6 && meters.every((width) => /^[\d.e-]+%$/.test(width)), String(meters));
  const days = page.getByRole("figure", { name: "Requests by day" }).getByRole("listitem");
  assert.equal(await days.count(), 30);
  assert.match(await days.last().innerText(), /^20\d\d-\d\d-\d\d: [\d,]+$/);
  assert.deepEqual(await look(page, "usage"), []);
  await page.getByRole("link", { name: "Audit log" }).click();
  await page.getByLabel("Action").selectOption("database.rename");
  await page
    .getByRole("cell", { name: /console-store/ })
    .first()
    .waitFor();
  await page.getByText(/^\d+ entr(y|ies) of all \d+\.$/).waitFor();
  assert.deepEqual(await look(page, "audit"), []);
  // A filter is of what is loaded, and says so while there is more.
  await page.route("**/v1/audit?limit=200", (route) =>
    route.continue({ url: route.request().url().replace("200", "2") }),
  );
  await page.reload();
  await page.getByText(/^2 entries of the newest 2\. Older ones are neither searched nor listed by action/).waitFor();
  await page.getByRole("button", { name: "Load older entries" }).click();
  await page.getByText(/of all \d+\.$/).waitFor();
  await page.unroute("**/v1/audit?limit=200");
  await page.getByRole("link", { name: "Service" }).click();
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByRole("region", { name: "Results of the benchmark" }).waitFor();
  await page.getByRole("button", { name: "Probe streaming" }).click();
  await page.getByText(/^works, /).waitFor();
  assert.deepEqual(await look(page, "service"), []);
  assert.deepEqual(page.complaints, []);
});

test("a key without the scope admin is offered no administration", async () => {
  const { key } = await control("POST", "/v1/keys", { name: "console reader", scopes: ["read"] });
  const reader = await signedIn(browser, {}, key.secret);
  assert.deepEqual(await reader.getByRole("navigation", { name: "Pages" }).getByRole("link").allInnerTexts(), [
    "Query",
    "Tables",
    "Service",
  ]);
  await run(reader, "select 1 as one");
  await reader.getByRole("gridcell", { name: "1", exact: true }).waitFor();
  // Where another database is made the default, the page stays where it is.
  const { databases } = await control("GET", "/v1/databases");
  const before = databases.find((each) => each.default);
  const { database: other } = await control("POST", "/v1/databases", { name: "console-default" });
  try {
    const place = async (again) => {
      await run(reader, `select ${again} as again, current_database() as place`);
      await reader.getByRole("gridcell", { name: String(again), exact: true }).waitFor();
      return (await cells(reader))[1];
    };
    const first = await place(10);
    assert.equal(await reader.getByLabel("Database", { exact: true }).inputValue(), before.name);
    await control("PATCH", `/v1/databases/${other.id}`, { default: true });
    await until(async () => (await sql("select current_database() as place"))[0].place !== first);
    assert.equal(await place(11), first);
    await reader.reload();
    assert.equal(await place(12), first);
  } finally {
    await control("PATCH", `/v1/databases/${before.id}`, { default: true });
    await control("DELETE", `/v1/databases/${other.id}?restorable=false`);
  }
  await reader.context().close();
  await control("DELETE", `/v1/keys/${key.id}`);
});
