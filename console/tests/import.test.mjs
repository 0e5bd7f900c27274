// Importing CSV files, as a person does it, on a network that loses responses.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { copied, dataUrl, look, openBrowser, passTime, signedIn, signIn, sql } from "./browser.mjs";

const ROWS = 12_000;

let browser;
let page;
before(async () => {
  browser = await openBrowser();
  await sql("drop table if exists console_sales");
  await sql("drop table if exists console_prices");
  await sql("create table console_prices (id int primary key, title varchar(5) not null, price numeric(8,2))");
  await sql("insert into console_prices values (77, 'there', 1)");
  page = await signedIn(browser);
  await page.getByRole("link", { name: "Tables" }).click();
  await page.getByRole("button", { name: "Import CSV" }).click();
});
after(async () => {
  await browser.close();
  await sql("drop table if exists console_sales");
  await sql("drop table console_prices");
});

const choose = (name, text) =>
  page.getByLabel("CSV file").setInputFiles({ name, mimeType: "text/csv", buffer: Buffer.from(text) });
const start = () => page.getByRole("button", { name: "Import", exact: true }).click();
const button = (name) => page.getByRole("button", { name, exact: true });
const stages = async () =>
  (
    await sql("select relname::text as name from pg_class where relkind = 'r' and relname like 'plainsql_import_%'")
  ).map(({ name }) => name);

/** What is done with each request of an import: it is named by its SQL. */
const intercept = async (act) => {
  let batches = 0;
  await page.route(`${dataUrl}/v1/**`, async (route) => {
    const { sql: text = "", statements = [], dry_run: isDry } = route.request().postDataJSON() ?? {};
    const isBatch = text.startsWith("insert into") && !isDry;
    if (isBatch) batches += 1;
    const isFinish = !isDry && statements[0]?.sql?.startsWith("select 1 from");
    await act(route, { batch: isBatch ? batches : 0, isFinish });
  });
};

const sales = () =>
  `id,title,amount,day,at,done,data,note\r\n${Array.from(
    { length: ROWS },
    (_, i) =>
      `${i},"Title, ${i} of\r\nsome ""length"" 🏠",${i}.50,2026-01-0${(i % 9) + 1},2026-01-01T10:00:00Z,${i % 2 === 0},"{""n"": ${i}}",${i % 2 ? "" : '""'}\r\n`,
  ).join("")}`;

test("a file becomes a new table once, though responses are lost", async () => {
  await choose("console sales.csv", sales());
  await page.getByLabel("Type of field 8").waitFor();
  assert.deepEqual(await page.getByLabel(/^Type of field/).evaluateAll((all) => all.map(({ value }) => value)), [
    "bigint",
    "text",
    "numeric",
    "date",
    "timestamptz",
    "boolean",
    "jsonb",
    "text",
  ]);
  assert.equal(await page.getByLabel("Name of the table").inputValue(), "console_sales");
  await page.getByLabel("Primary key").selectOption("id");
  assert.deepEqual(await look(page, "import-form"), []);
  await page.setViewportSize({ width: 1024, height: 768 });
  const isCut = ({ scrollWidth, clientWidth }) => scrollWidth > clientWidth;
  assert.equal(await page.getByRole("region", { name: "Columns" }).evaluate(isCut), false);
  await page.setViewportSize({ width: 1440, height: 900 });
  let lost = 0;
  let resume = () => undefined;
  const held = new Promise((resolve) => {
    resume = resolve;
  });
  await intercept(async (route, { batch, isFinish }) => {
    if (batch === 2 || (isFinish && lost === 1)) {
      // It takes effect, and the console does not learn of it.
      lost += 1;
      await route.fetch();
      return route.abort();
    }
    if (batch === 4) await held;
    return route.continue();
  });
  await start();
  await page.getByText(/^[\d.]+ [kM]B of [\d.]+ MB, [1-9][\d,]+ rows$/).waitFor();
  const bar = page.getByRole("progressbar", { name: "Bytes of the file" });
  assert.ok((await bar.evaluate(({ value, max }) => value / max)) < 1);
  assert.deepEqual(await look(page, "import-progress"), []);
  resume();
  await page.getByRole("heading", { name: "Imported" }).waitFor();
  await page.unroute(`${dataUrl}/v1/**`);
  assert.equal(lost, 2);
  assert.equal(await bar.evaluate(({ value, max }) => value / max), 1);
  assert.deepEqual(
    await sql(
      "select count(*)::int as n, count(distinct id)::int as ids, sum(amount)::text as total, min(title) as title," +
        " count(*) filter (where note is null)::int as nulls, count(*) filter (where note = '')::int as empty," +
        " count(*) filter (where (data->>'n')::int = id)::int as data from console_sales",
    ),
    [
      {
        n: ROWS,
        ids: ROWS,
        total: "72000000.00",
        title: 'Title, 0 of\r\nsome "length" 🏠',
        nulls: ROWS / 2,
        empty: ROWS / 2,
        data: ROWS,
      },
    ],
  );
  assert.deepEqual(await stages(), []);
  await button("Open table").click();
  await page.getByRole("tab", { name: "Structure" }).click();
  await page.getByText("console_sales_pkey").waitFor();
  assert.equal(await page.getByText("plainsql_line").count(), 0);
});

test("a wrong value is reported with its line and column, and nothing is imported", async () => {
  await button("Import CSV").click();
  const rows = Array.from({ length: 3_000 }, (_, i) => `${i + 100},a,${i === 2_500 ? "1,5" : '"1.5"'}\n`);
  // 1,5 is two fields.
  await choose("prices.csv", `id,title,price\n${rows.join("")}`);
  await page.getByRole("combobox", { name: /^Table/ }).selectOption("public.console_prices");
  await start();
  await page.getByText("Line 2,502: The record has 4 fields, but the first one has 3.").waitFor();
  await button("Discard").click();
  await page.getByRole("heading", { name: "Nothing was imported" }).waitFor();
  await button("Back").click();
  await choose("prices 2.csv", `id;title;price\n${rows.join("").replaceAll(",", ";").replace("1;5", "1,5")}`);
  await page.getByRole("combobox", { name: /^Table/ }).selectOption("public.console_prices");
  await start();
  await page.getByText(/^Line 2,502, column price: invalid input syntax for type numeric: "1,5"/).waitFor();
  assert.deepEqual(await look(page, "import-failed"), []);
  assert.equal((await stages()).length, 1);
  await button("Discard").click();
  await page.getByRole("heading", { name: "Nothing was imported" }).waitFor();
  assert.deepEqual(await stages(), []);
  assert.deepEqual(await sql("select id from console_prices"), [{ id: 77 }]);
  await button("Back").click();
});

test("a row that the table refuses is found, and the import continues when it is no longer refused", async () => {
  const rows = Array.from({ length: 200 }, (_, i) => `${i},${i === 150 ? "too long" : "ok"},\n`);
  await choose("long.csv", `ID,Title,price\n${rows.join("")}`);
  await page.getByRole("combobox", { name: /^Table/ }).selectOption("public.console_prices");
  await start();
  await page.getByText(/^Line 152, column title: value too long for type character varying\(5\)/).waitFor();
  await button("Discard").click();
  await button("Back").click();
  await choose("again.csv", `ID,Title,price\n${rows.join("").replace("too long", "ok")}`);
  await page.getByRole("combobox", { name: /^Table/ }).selectOption("public.console_prices");
  await start();
  await page.getByText(/^Line 79: duplicate key value violates unique constraint/).waitFor();
  await sql("delete from console_prices");
  await button("Continue").click();
  await page.getByRole("heading", { name: "Imported" }).waitFor();
  assert.deepEqual(await sql("select count(*)::int as n, count(price)::int as priced from console_prices"), [
    { n: 200, priced: 0 },
  ]);
  assert.deepEqual(await stages(), []);
  await button("Import another file").click();
});

/** Loses all responses from a batch or the finish on, though the requests take effect, until `mend` is called. */
const loseFrom = async (isFirst) => {
  let isLost = false;
  await intercept(async (route, kind) => {
    isLost ||= isFirst(kind);
    if (!isLost) return route.continue();
    // The first one takes effect. Nothing after it reaches the service, neither retries nor the question.
    if (isFirst(kind)) await route.fetch();
    return route.abort();
  });
  return () => page.unroute(`${dataUrl}/v1/**`);
};

test("when no response comes, the page says which rows are unknown, how to look, and what to do", async () => {
  await choose("lost.csv", sales());
  await sql("drop table if exists console_sales");
  await page.getByLabel("Name of the table").fill("console_sales");
  const mend = await loseFrom(({ batch }) => batch === 2);
  const heading = page.getByRole("heading", { name: "Outcome unknown" });
  await passTime(page, async () => {
    await start();
    return heading;
  });
  await mend();
  const doubt = page.getByRole("alert").filter({ hasText: "The outcome of rows" });
  const [, first, last, , firstLine, lastLine] = (await doubt.innerText())
    .replaceAll(",", "")
    .match(/^The outcome of rows (\d+)–(\d+) is unknown\.( They) begin on lines (\d+)–(\d+) of the file\./);
  // Each record has two lines, after the header.
  assert.deepEqual(
    [firstLine, lastLine].map(Number),
    [first, last].map((row) => 2 * Number(row)),
  );
  await doubt.getByText("Continue sends the same rows with the same idempotency key").waitFor();
  await page
    .getByText(`Nothing is in the table yet. The first ${(first - 1).toLocaleString("en")} rows are stored`)
    .waitFor();
  assert.deepEqual(await look(page, "import-unknown"), []);
  const stored = last - first + 1;
  await doubt.getByText(`It returns ${stored.toLocaleString("en")} if they are stored, and 0 if not.`).waitFor();
  const query = await copied(page, () => doubt.getByRole("button", { name: "Copy" }).click());
  assert.deepEqual(await sql(query), [{ count: stored }]);
  await button("Continue").click();
  await page.getByRole("heading", { name: "Imported" }).waitFor();
  assert.deepEqual(await sql("select count(*)::int as n, count(distinct id)::int as ids from console_sales"), [
    { n: ROWS, ids: ROWS },
  ]);
  assert.deepEqual(await stages(), []);
  await button("Import another file").click();
});

test("when the end is not confirmed, it is not said that nothing was imported", async () => {
  await choose("end.csv", "id,title\n1,a\n2,b\n");
  await sql("drop table console_sales");
  await page.getByLabel("Name of the table").fill("console_sales");
  const mend = await loseFrom(({ isFinish }) => isFinish);
  await passTime(page, async () => {
    await start();
    return page.getByRole("heading", { name: "Outcome unknown" });
  });
  await mend();
  const doubt = page.getByRole("alert").filter({ hasText: "Whether the import has finished is unknown." });
  await doubt.getByText("either all 2 rows are in public.console_sales, or none").waitFor();
  assert.equal(await page.getByText("Nothing is in the table yet").count(), 0);
  assert.deepEqual(await look(page, "import-end-unknown"), []);
  const query = await copied(page, () => doubt.getByRole("button", { name: "Copy" }).click());
  assert.deepEqual(await sql(query), [{ finished: true }]);
  // There is nothing to discard: the import has finished.
  await button("Discard").click();
  await page.getByRole("heading", { name: "Imported" }).waitFor();
  assert.deepEqual(await sql("select count(*)::int as n from console_sales"), [{ n: 2 }]);
  await button("Import another file").click();
});

test("a batch that was never stored is stored once by Continue", async () => {
  await choose("never.csv", "id,title\n1,a\n2,b\n");
  await sql("drop table console_sales");
  await page.getByLabel("Name of the table").fill("console_sales");
  let isLost = true;
  await intercept((route, { batch }) => (isLost && batch ? route.abort() : route.continue()));
  await page.route(`${dataUrl}/v1/requests/**`, (route) => (isLost ? route.abort() : route.continue()));
  await passTime(page, async () => {
    await start();
    return page.getByRole("heading", { name: "Outcome unknown" });
  });
  await page.getByText("The outcome of rows 1–2 is unknown.").waitFor();
  const query = await copied(page, () => page.getByRole("alert").getByRole("button", { name: "Copy" }).click());
  assert.deepEqual(await sql(query), [{ count: 0 }]);
  isLost = false;
  await button("Continue").click();
  await page.getByRole("heading", { name: "Imported" }).waitFor();
  await page.unrouteAll();
  assert.deepEqual(await sql("select id::int from console_sales order by id"), [{ id: 1 }, { id: 2 }]);
  await button("Import another file").click();
});

test("an import is cancelled and continued, while another page is shown, and is begun by dropping a file", async () => {
  const files = await page.evaluateHandle((text) => {
    const data = new DataTransfer();
    data.items.add(new File([text], "dropped.csv", { type: "text/csv" }));
    return data;
  }, sales());
  await page.locator(".drop").dispatchEvent("drop", { dataTransfer: files });
  await page.getByText("dropped.csv, ").waitFor();
  await sql("drop table console_sales");
  await page.getByLabel("Name of the table").fill("console_sales");
  let isHeld = true;
  let store = () => undefined;
  const stored = new Promise((resolve) => {
    store = resolve;
  });
  await intercept(async (route, { batch }) => {
    if (batch !== 2 || !isHeld) return route.continue();
    // It takes effect, but is never answered.
    store(await route.fetch());
  });
  await start();
  await stored;
  await button("Cancel").click();
  await page.getByRole("heading", { name: "Cancelled" }).waitFor();
  isHeld = false;
  await page.getByRole("link", { name: "Query" }).click();
  await page.getByRole("link", { name: "Tables" }).click();
  await button("Import CSV").click();
  await button("Continue").click();
  await page.getByRole("heading", { name: "Imported" }).waitFor();
  await page.unroute(`${dataUrl}/v1/**`);
  assert.deepEqual(await sql("select count(*)::int as n, count(distinct id)::int as ids from console_sales"), [
    { n: ROWS, ids: ROWS },
  ]);
  assert.deepEqual(await stages(), []);
  await button("Import another file").click();
});

test("an import that the end of the session has stopped is continued when one has signed in again", async () => {
  await choose("session.csv", sales());
  await sql("drop table console_sales");
  await page.getByLabel("Name of the table").fill("console_sales");
  let isHeld = true;
  let store = () => undefined;
  const stored = new Promise((resolve) => {
    store = resolve;
  });
  await intercept(async (route, { batch }) => {
    if (batch !== 2 || !isHeld) return route.continue();
    // It takes effect, but is never answered.
    store(await route.fetch());
  });
  await start();
  await stored;
  await page.locator(".countdown").click();
  await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
  await page.getByLabel("API key").waitFor();
  isHeld = false;
  // It goes away by itself.
  const said = page.getByText("The import of session.csv was stopped.").waitFor();
  await signIn(page);
  await said;
  await page.getByRole("heading", { name: "Outcome unknown" }).waitFor();
  await page.getByText("The session ended before the service confirmed them").waitFor();
  const [stage] = await stages();
  await page.getByText("are stored in", { exact: false }).getByText(stage).first().waitFor();
  assert.deepEqual(await look(page, "import-session"), []);
  await button("Continue").click();
  await page.getByRole("heading", { name: "Imported" }).waitFor();
  await page.unroute(`${dataUrl}/v1/**`);
  assert.deepEqual(await sql("select count(*)::int as n, count(distinct id)::int as ids from console_sales"), [
    { n: ROWS, ids: ROWS },
  ]);
  assert.deepEqual(await stages(), []);
  assert.deepEqual(page.complaints, []);
});
