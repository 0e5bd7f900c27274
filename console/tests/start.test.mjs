// How long it takes until the console can be used, as a browser that has nothing of it yet sees it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { controlUrl, openBrowser, signedIn } from "./browser.mjs";

const LONGEST_MS = 3_000 * Number(process.env.PLAINSQL_TEST_SLOWNESS ?? 1);

let browser;
before(async () => {
  browser = await openBrowser();
});
after(() => browser.close());

/** The time from the start of the navigation until the page has shown what was typed. */
const interactive = async (page, field, text) => {
  await field.focus();
  await page.keyboard.type(text);
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve))));
  return page.evaluate(() => Math.round(performance.now()));
};

/** What the page has loaded so far, in kilobytes as they were sent. */
const loaded = (page) =>
  page.evaluate(() =>
    Math.round(
      [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].reduce(
        (sum, { encodedBodySize }) => sum + encodedBodySize / 1000,
        0,
      ),
    ),
  );

test("the sign-in form can be used soon", async () => {
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const page = await context.newPage();
  await page.goto(`${controlUrl}/console`, { waitUntil: "commit" });
  const ms = await interactive(page, page.getByLabel("API key"), "s");
  assert.equal(await page.getByLabel("API key").inputValue(), "s");
  console.log(`measured: the sign-in form takes text after ${ms} ms, ${await loaded(page)} kB`);
  assert.ok(ms < LONGEST_MS);
});

test("the editor can be used soon", async () => {
  const page = await signedIn(browser);
  await page.reload({ waitUntil: "commit" });
  const editor = page.getByLabel("SQL", { exact: true });
  const ms = await interactive(page, editor, "s");
  await editor.getByText("s", { exact: true }).waitFor();
  console.log(`measured: the editor takes text after ${ms} ms, ${await loaded(page)} kB`);
  assert.ok(ms < LONGEST_MS);
});
