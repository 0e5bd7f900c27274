// The link that `plainsql-server dev` has printed.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openBrowser, run } from "./browser.mjs";

let browser;
before(async () => {
  browser = await openBrowser();
});
after(() => browser.close());

const openLink = async () => {
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const page = await context.newPage();
  await page.goto(process.env.PLAINSQL_TEST_LINK);
  return page;
};

test("it signs one in, and only once", async () => {
  const page = await openLink();
  await run(page, "select 'signed in'");
  await page.getByRole("gridcell", { name: "signed in" }).waitFor();
  const again = await openLink();
  await again.getByText("This link no longer signs you in: it works once").waitFor();
  assert.equal(again.url().includes("svc_"), false);
});
