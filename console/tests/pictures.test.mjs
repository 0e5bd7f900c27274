// The pictures of the console in the documentation: `make pictures` takes them again.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { more, openBrowser, run, signedIn, sql } from "./browser.mjs";

const FOLDER = process.env.PLAINSQL_TEST_SCREENSHOTS;
const SUM = `select c.name, count(*) as orders, sum(o.total) as total
from orders o
join customers c on c.id = o.customer_id
where o.ordered_on >= '2026-01-01'
group by c.name
order by total desc`;

let browser;
let page;
before(async () => {
  browser = await openBrowser();
  await sql("drop table if exists orders, customers cascade");
  await sql("create table customers (id int primary key, name text not null, city text)");
  await sql(
    "create table orders (id int primary key, customer_id int not null references customers, total numeric(10, 2)," +
      " ordered_on date, state text not null)",
  );
  await sql(
    "insert into customers select n, (array['Ada', 'Edgar', 'Grace', 'Barbara', 'Donald'])[n % 5 + 1] || ' ' || n," +
      " (array['Oslo', 'Lyon', 'Graz', 'Porto'])[n % 4 + 1] from generate_series(1, 400) n",
  );
  await sql(
    "insert into orders select n, n * 7 % 400 + 1, (n * 37 % 90000) / 100.0, date '2025-07-01' + n % 480," +
      " (array['sent', 'paid', 'open'])[n % 3 + 1] from generate_series(1, 20000) n",
  );
  await sql("analyze customers");
  await sql("analyze orders");
  page = await signedIn(browser, { viewport: { width: 1280, height: 800 } });
});
after(async () => {
  await browser.close();
  await sql("drop table orders, customers");
});

const picture = (name) => page.screenshot({ path: `${FOLDER}/console-${name}.png`, caret: "initial" });

test("a query and its rows", async () => {
  await run(page, SUM);
  await page.getByRole("columnheader", { name: /^total/ }).waitFor();
  await picture("query");
});

test("a plan", async () => {
  await more(page, /Explain/);
  await page
    .getByText(/Hash Join/)
    .first()
    .waitFor();
  await picture("plan");
});

test("changes before they are saved", async () => {
  await page.getByRole("link", { name: "Tables" }).click();
  await page.getByLabel("Search for a table").fill("customers");
  await page.getByRole("button", { name: /^customers/ }).click();
  await page.getByRole("gridcell", { name: "Grace 2", exact: true }).click();
  await page.keyboard.press("Enter");
  await page.getByLabel("New value").fill("Grace O'Hara");
  await page.getByRole("button", { name: "Change", exact: true }).click();
  await page.getByRole("gridcell", { name: "Donald 4", exact: true }).click();
  await page.getByRole("button", { name: "Delete row" }).click();
  await page.getByRole("button", { name: "Review 2 changes" }).click();
  await page.locator(".preview").waitFor();
  await picture("changes");
  assert.deepEqual(page.complaints, []);
});
