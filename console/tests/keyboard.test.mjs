// Everything by the keyboard alone: nothing here clicks.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { dataUrl, openBrowser, openPage, run, signIn, sql, typeSql } from "./browser.mjs";
import { unreached } from "./reach.mjs";

let browser;
let page;
before(async () => {
  browser = await openBrowser();
  await sql("drop table if exists console_keys");
  await sql("create table console_keys (id int primary key, name text)");
  await sql("insert into console_keys select n, 'Key ' || n from generate_series(1, 30) n");
  // A list of tables that is longer than anyone goes through by Tab.
  await sql("do $$begin for n in 1..90 loop execute format('create table a_%s ()', n); end loop; end$$");
  page = await openPage(browser);
});
after(async () => {
  await browser.close();
  await sql("do $$begin for n in 1..90 loop execute format('drop table a_%s', n); end loop; end$$");
  await sql("drop table console_keys");
});

const has = (locator) => locator.evaluate((element) => element === element.getRootNode().activeElement);
const hasFocus = async (locator) => {
  await locator.waitFor();
  await page.waitForFunction(() => document.activeElement !== document.body);
  assert.equal(await has(locator), true, await page.evaluate(() => document.activeElement.outerHTML.slice(0, 200)));
};

const isInEditor = () => page.evaluate(() => document.activeElement.matches(".sql-field"));

/** Goes on by a key until an element has the focus. */
const reach = async (locator, by = "Tab") => {
  await locator.waitFor();
  for (let i = 0; i < 80; i += 1) {
    if (await has(locator)) return;
    // There, Tab indents, unless Escape comes first.
    if (await isInEditor()) await page.keyboard.press("Escape");
    await page.keyboard.press(by);
  }
  assert.fail(`${locator} is not reached by ${by}`);
};

const status = (text) => page.getByRole("status").filter({ hasText: text });
const button = (name) => page.getByRole("button", { name });
const selected = () => page.locator("[role=gridcell][aria-selected=true]").innerText();

/** What tells those who don't see the page where they are. */
const unnamed = () =>
  page.evaluate(() => {
    const faults = [];
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const panel = document.getElementById(tab.getAttribute("aria-controls"));
      const isItsOwn = panel?.getAttribute("aria-labelledby") === tab.id;
      const isChosen = tab.getAttribute("aria-selected") === "true";
      if (panel?.role !== "tabpanel" || isItsOwn !== isChosen) faults.push(tab.outerHTML);
    }
    for (const grid of document.querySelectorAll("[role=grid]")) {
      for (const row of grid.querySelectorAll("[role=row]")) {
        const places = [...row.children].map((cell) => Number(cell.getAttribute("aria-colindex")));
        if (places[0] !== 1 || places.some((place, i) => i > 0 && !(place > places[i - 1]))) faults.push(row.outerHTML);
      }
    }
    return faults;
  });

const command = async (text) => {
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
};

/** Opens the table in a list that may be long. */
const openTable = async () => {
  await reach(page.getByLabel("Search for a table"));
  await page.keyboard.type("console_keys");
  await reach(button(/^console_keys/));
  await page.keyboard.press("Enter");
  await page.getByRole("gridcell", { name: "Key 1", exact: true }).waitFor();
};

test("one signs in, runs SQL and leaves the editor", async () => {
  await hasFocus(page.getByLabel("API key"));
  await signIn(page);
  await reach(button("Skip to the content"));
  await page.keyboard.press("Enter");
  await hasFocus(page.locator("#content"));
  await reach(page.getByLabel("SQL", { exact: true }));
  await run(page, "select id, name, repeat(name, 3) as long from console_keys order by id");
  await page.getByRole("gridcell", { name: "Key 1", exact: true }).waitFor();
  await page.keyboard.press("Escape");
  await reach(page.getByRole("grid"));
});

test("cells are chosen, opened and closed, and columns made wider", async () => {
  assert.equal(await selected(), "1");
  for (const key of ["ArrowRight", "ArrowDown", "ArrowDown"]) await page.keyboard.press(key);
  assert.equal(await selected(), "Key 3");
  const active = await page.getByRole("grid").getAttribute("aria-activedescendant");
  assert.equal(await page.locator(`[id="${active}"]`).innerText(), "Key 3");
  await page.keyboard.press("Enter");
  await hasFocus(page.locator(".cell-view pre"));
  await page.keyboard.press("Escape");
  await page.locator(".cell-view").waitFor({ state: "detached" });
  await hasFocus(page.getByRole("grid"));
  const width = async () => (await page.getByRole("columnheader").nth(2).boundingBox()).width;
  const before = await width();
  await page.keyboard.press("Alt+ArrowRight");
  assert.equal(await width(), before + 20);
  await page.keyboard.press("Control+End");
  assert.equal(await selected(), "Key 30Key 30Key 30");
});

test("in a wide result, each cell says which column it is in", async () => {
  const columns = Array.from({ length: 60 }, (_, i) => `repeat('${i}', 30) as c${i}`).join(", ");
  await run(page, `select ${columns} from generate_series(1, 3)`);
  await page.getByRole("columnheader", { name: "c0 text" }).waitFor();
  await page.keyboard.press("Escape");
  await reach(page.getByRole("grid"));
  await page.keyboard.press("Control+End");
  await page.getByRole("gridcell", { selected: true, name: "59".repeat(30) }).waitFor();
  const grid = page.getByRole("grid");
  assert.equal(await grid.getAttribute("aria-colcount"), "61");
  const active = page.locator(`[id="${await grid.getAttribute("aria-activedescendant")}"]`);
  assert.equal(await active.getAttribute("aria-colindex"), "61");
  assert.deepEqual(await unnamed(), []);
});

test("a menu is opened, and gives the focus back", async () => {
  await reach(button("More"), "Shift+Tab");
  await page.keyboard.press("Enter");
  const items = page.getByRole("menuitem");
  await hasFocus(items.first());
  await page.keyboard.press("End");
  await hasFocus(items.last());
  await page.keyboard.press("Home");
  await page.keyboard.press("ArrowUp");
  await hasFocus(items.last());
  await page.keyboard.press("Escape");
  await hasFocus(button("More"));
  await page.keyboard.press("Enter");
  await page.getByRole("menuitem", { name: "Copy as curl" }).focus();
  await page.keyboard.press("Enter");
  await page.getByText("Copied.").waitFor();
  await hasFocus(button("More"));
});

test("tabs are renamed, added and gone through", async () => {
  const tabs = page.getByRole("tablist", { name: "Queries" }).getByRole("tab");
  await reach(tabs.first(), "Shift+Tab");
  await page.keyboard.press("F2");
  await page.getByLabel("Name of the tab").fill("not this");
  await page.keyboard.press("Escape");
  await page.keyboard.press("F2");
  await page.getByLabel("Name of the tab").fill("My query");
  await page.keyboard.press("Enter");
  await hasFocus(page.getByRole("tab", { name: "My query" }));
  await reach(button("New tab"));
  await page.keyboard.press("Enter");
  await reach(tabs.last(), "Shift+Tab");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await tabs.first().getAttribute("aria-selected"), "true");
  await reach(button("Close tab"));
});

test("the history is opened, its lists are chosen, and it is closed", async () => {
  await reach(button("History"));
  await page.keyboard.press("Enter");
  await reach(page.getByRole("tab", { name: "Run", exact: true }));
  await page.keyboard.press("ArrowRight");
  await hasFocus(page.getByRole("tab", { name: "Saved" }));
  assert.equal(await page.getByRole("tab", { name: "Saved" }).getAttribute("aria-selected"), "true");
  await page.keyboard.press("Escape");
  await page.getByRole("complementary", { name: "History" }).waitFor({ state: "detached" });
  await hasFocus(button("History"));
});

test("the palette gives the focus back to the editor, and leads to pages", async () => {
  await typeSql(page, "select 1");
  await page.keyboard.press("Control+k");
  await hasFocus(page.getByLabel("Command", { exact: true }));
  await page.keyboard.press("Escape");
  await hasFocus(page.getByLabel("SQL", { exact: true }));
  await page.keyboard.type(" + 41");
  await page.getByLabel("SQL", { exact: true }).getByText("+ 41").waitFor();
  await command("Databases");
  await button("Create database").waitFor();
  await page.waitForFunction(() => document.activeElement?.id === "content");
});

test("a dialog holds the focus until it is closed, and gives it back", async () => {
  await reach(button("Create database"));
  await page.keyboard.press("Enter");
  await hasFocus(page.getByRole("textbox", { name: "Name" }));
  for (let i = 0; i < 12; i += 1) {
    await page.keyboard.press("Tab");
    const isOutside = () =>
      !document.querySelector("dialog").contains(document.activeElement) && document.activeElement !== document.body;
    assert.equal(await page.evaluate(isOutside), false);
  }
  await page.keyboard.press("Escape");
  await hasFocus(button("Create database"));
  const actions = button("Actions of main");
  await reach(actions);
  await page.keyboard.press("Enter");
  await page.getByRole("menuitem", { name: "Rename…" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await page.keyboard.press("Escape");
  await hasFocus(actions);
});

test("a table is sorted, and a cell of it changed", async () => {
  await command("Go to Tables");
  await openTable();
  await reach(button("Sort by id"));
  await page.keyboard.press("Enter");
  await page.keyboard.press("Enter");
  await page.getByRole("row").nth(1).getByText("Key 30", { exact: true }).waitFor();
  await reach(page.getByRole("grid"), "Shift+Tab");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  await hasFocus(page.getByLabel("New value"));
  await page.keyboard.press("Escape");
  await hasFocus(page.getByRole("grid"));
});

test("the palette finds tables and functions, and opens them", async () => {
  await sql("create or replace function console_twice(n int) returns int language sql as 'select n * 2'");
  const open = async (text, name) => {
    await page.keyboard.press("Control+k");
    await page.getByLabel("Command", { exact: true }).fill(text);
    await page.getByRole("option", { name, selected: true }).waitFor();
    await page.keyboard.press("Enter");
  };
  await open("console_tw", "console_twice(n integer) function");
  await page.getByRole("tab", { name: "console_twice", selected: true }).waitFor();
  const text = page.getByLabel("SQL", { exact: true });
  await text.getByText("FUNCTION", { exact: true }).waitFor();
  assert.match(
    await text.innerText(),
    /CREATE OR REPLACE FUNCTION public\.console_twice\(n integer\)[\s\S]*select n \* 2/,
  );
  await reach(button("Close tab"));
  await page.keyboard.press("Enter");
  await open("a_77", "a_77 table");
  await page.getByRole("heading", { name: "a_77" }).waitFor();
  // Enter waits for the list, and then takes the only one that has the text.
  let resume = () => undefined;
  const held = new Promise((resolve) => {
    resume = resolve;
  });
  const list = `${dataUrl}/tables?detail=names`;
  await page.route(list, async (route) => {
    await held;
    return route.continue();
  });
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill("_76");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").getByRole("status").getByText("Looking for tables and functions…").waitFor();
  resume();
  await page.getByRole("heading", { name: "a_76" }).waitFor();
  await page.unroute(list);
  await sql("drop function console_twice(int)");
});

/** In turn, what there is to see on each page, and how to get there. */
const PAGES = {
  Query: async () => {
    await run(page, "select id, name from console_keys order by id limit 12");
    await page.getByRole("gridcell", { name: "Key 12", exact: true }).waitFor();
    await page.keyboard.press("Escape");
    await reach(button("History"));
    await page.keyboard.press("Enter");
  },
  Tables: openTable,
  "API keys": () => button("Create key").waitFor(),
  Databases: () => button("Actions of main").waitFor(),
  Usage: () => page.getByRole("heading", { name: /Limits of the tier/ }).waitFor(),
  "Audit log": () => page.getByRole("region", { name: "Entries" }).waitFor(),
  Service: () => button("Probe streaming").waitFor(),
};

for (const [name, open] of Object.entries(PAGES)) {
  test(`the keyboard reaches every control of the page ${name}`, async () => {
    await command(`Go to ${name}`);
    await page.getByRole("link", { name, exact: true, current: "page" }).waitFor();
    await open();
    assert.deepEqual(await unreached(page), []);
    assert.deepEqual(await unnamed(), []);
  });
}

const PARTS = {
  "#/tables/new": () => page.getByRole("form", { name: "New table" }).waitFor(),
  "#/tables/import": () => page.getByLabel("CSV file").waitFor(),
  "#/tables/diagram": () => status(/tables/).waitFor(),
};

for (const [address, opened] of Object.entries(PARTS)) {
  test(`the keyboard reaches every control of ${address}`, async () => {
    await page.evaluate((hash) => {
      location.hash = hash;
    }, address);
    await opened();
    assert.deepEqual(await unreached(page, ".table-main"), []);
    assert.deepEqual(await unnamed(), []);
  });
}

const DIALOGS = [
  ["Databases", "Create database"],
  ["API keys", "Create key"],
];

for (const [name, opens] of DIALOGS) {
  test(`the keyboard reaches every control of the dialog ${opens}`, async () => {
    await command(`Go to ${name}`);
    await reach(button(opens));
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    assert.deepEqual(await unreached(page, ".dialog-inner"), []);
    await page.keyboard.press("Escape");
  });
}

test("a control that the keyboard does not reach would be found", async () => {
  await command("Go to Query");
  await run(page, "select id, name from console_keys order by id limit 3");
  await page.getByRole("gridcell", { name: "Key 3", exact: true }).waitFor();
  const change = (text) => page.evaluate(text);
  const history = "[...document.querySelectorAll('button')].find((each) => each.innerText === 'History')";
  await change(`${history}.tabIndex = -1`);
  assert.deepEqual(await unreached(page), ["History"]);
  await change(`${history}.tabIndex = 0`);
  // What is clicked, and is no control by its name.
  await change(`{
    const key = Object.keys(document.body.querySelector("button")).find((each) => each.startsWith("__reactProps$"));
    document.querySelector(".mark")[key] = { onClick() {} };
  }`);
  assert.equal((await unreached(page)).length, 1);
  assert.deepEqual(page.complaints, []);
});
