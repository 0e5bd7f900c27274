// Runs the calls of `../neon/calls.mjs` in a page in Chromium, and prints what they gave as JSON, with what the browser
// wrote to its console. Arguments: page, {url, key, table, spki} as JSON; `spki` is the hash of the service's TLS key.
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const page_url = process.argv[2];
const given = JSON.parse(process.argv[3]);
const files = {
  "/driver.mjs": "../neon/node_modules/@neondatabase/serverless/index.mjs",
  "/calls.mjs": "../neon/calls.mjs",
};
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  // The browser accepts this one key, whose authority it does not know.
  args: ["--no-sandbox", "--disable-dev-shm-usage", `--ignore-certificate-errors-spki-list=${given.spki}`],
});
try {
  const page = await browser.newPage();
  const lines = [];
  page.on("console", (message) => lines.push(message.text()));
  for (const [path, file] of Object.entries(files)) {
    const body = readFileSync(new URL(file, import.meta.url), "utf8");
    await page.route(`${page_url}${path}`, (route) => route.fulfill({ body, contentType: "text/javascript" }));
  }
  await page.goto(page_url);
  const seen = await page.evaluate(async (given) => {
    const [driver, { calls }] = await Promise.all([import("/driver.mjs"), import("/calls.mjs")]);
    return JSON.stringify(await calls(driver, given));
  }, given);
  console.log(JSON.stringify({ seen: JSON.parse(seen), console: lines }));
} finally {
  await browser.close();
}
