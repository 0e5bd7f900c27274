// Creating a table in the form, as a person does it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { dataUrl, look, openBrowser, signedIn, sql, typeSql } from "./browser.mjs";

let browser;
let page;
before(async () => {
  browser = await openBrowser();
  await sql("drop table if exists console_made");
  await sql("drop table if exists console_there");
  await sql("create table console_there (id int primary key)");
  page = await signedIn(browser);
  // The completion is asked for before there is the table, so that it has to be asked for again.
  await typeSql(page, "select 1");
  await page.getByRole("link", { name: "Tables" }).click();
});
after(async () => {
  await browser.close();
  await sql("drop table if exists console_made");
  await sql("drop table console_there");
});

const field = (name) => page.getByLabel(name, { exact: true });
const faultOf = async (name) => {
  const input = field(name);
  await page.waitForFunction(
    (id) => document.getElementById(id)?.getAttribute("aria-describedby"),
    await input.getAttribute("id"),
  );
  assert.equal(await input.getAttribute("aria-invalid"), "true");
  assert.equal(await input.evaluate((element) => document.activeElement === element), true);
  return page.locator(`[id="${await input.getAttribute("aria-describedby")}"]`).innerText();
};

test("errors are shown by the field that they concern", async () => {
  await page.getByRole("button", { name: "New table" }).click();
  await page.getByRole("button", { name: "Create table" }).click();
  assert.equal(await faultOf("Name"), "The table needs a name.");
  await field("Name").fill("console_made");
  await field("Name of column 2").fill("title");
  await page.getByRole("button", { name: "Add column" }).click();
  await field("Name of column 3").fill("made at");
  await field("Type of column 3").fill("timestampt");
  await field("Default of column 3").fill("nown()");
  await page.getByRole("button", { name: "Create table" }).click();
  assert.match(await faultOf("Type of column 3"), /type "timestampt" does not exist/);
  await field("Type of column 3").fill("timestamptz");
  await page.getByRole("button", { name: "Create table" }).click();
  assert.match(await faultOf("Default of column 3"), /function nown\(\) does not exist/);
  await field("Default of column 3").fill("true");
  await page.getByRole("button", { name: "Create table" }).click();
  assert.match(await faultOf("Default of column 3"), /default expression is of type boolean/);
  await field("Default of column 3").fill("now()");
  await field("Name").fill("console_there");
  await page.getByRole("button", { name: "Create table" }).click();
  assert.match(await faultOf("Name"), /"console_there" already exists/);
  assert.deepEqual(await look(page, "new-table"), []);
});

test("a table is made by keyboard as the preview says, shown, and completed", async () => {
  await field("Name").fill("console_made");
  await field("Name of column 2").focus();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  await page.keyboard.insertText("'none'");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Space");
  await page
    .getByRole("region", { name: "SQL of the table" })
    .getByText("title text not null default 'none'")
    .waitFor();
  await field("Default of column 3").press("Enter");
  await page.getByText("public.console_made was created.").waitFor();
  await page.getByRole("heading", { name: "console_made" }).waitFor();
  await page.getByRole("tab", { name: "Structure" }).click();
  await page.getByText("identity, always").waitFor();
  assert.deepEqual(
    await sql(
      "select column_name::text as name, data_type::text as type, is_nullable = 'NO' as is_not_null, column_default::text as usual" +
        " from information_schema.columns where table_name = 'console_made' order by ordinal_position",
    ),
    [
      { name: "id", type: "bigint", is_not_null: true, usual: null },
      { name: "title", type: "text", is_not_null: true, usual: "'none'::text" },
      { name: "made at", type: "timestamp with time zone", is_not_null: false, usual: "now()" },
    ],
  );
  await page.getByRole("link", { name: "Query" }).click();
  await typeSql(page, "select * from console_ma");
  await page.keyboard.press("Control+Space");
  await page.getByRole("option", { name: /console_made/ }).waitFor();
  assert.deepEqual(page.complaints, []);
});

test("a list from which tables are missing says so", async () => {
  await page.route(`${dataUrl}/tables?detail=full`, async (route) => {
    const response = await route.fetch();
    const { tables, ...others } = await response.json();
    return route.fulfill({ response, json: { ...others, tables: tables.slice(0, 1), truncated: true } });
  });
  await page.getByRole("link", { name: "Tables" }).click();
  await page.getByText("Only the first 1 tables are listed").waitFor();
  assert.deepEqual(await look(page, "tables-missing"), []);
  await page.unrouteAll();
});
