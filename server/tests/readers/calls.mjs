// Opens a page of one origin in Chromium, whose script calls other origins with fetch, one call after the other, and
// prints as JSON what the page was allowed to see of each. Arguments: page, JSON array of {url, options}.
import { chromium } from "playwright-core";

const [page_url, calls] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
try {
  const page = await browser.newPage();
  const lines = [];
  page.on("console", (message) => lines.push(message.text()));
  await page.goto(page_url);
  const seen = await page.evaluate(call_all, JSON.parse(calls));
  console.log(JSON.stringify({ seen, console: lines }));
} finally {
  await browser.close();
}

async function call_all(calls) {
  const seen = [];
  for (const { url, options } of calls) {
    try {
      const response = await fetch(url, options);
      const headers = Object.fromEntries(response.headers.entries());
      seen.push({ status: response.status, headers, body: await response.json() });
    } catch (error) {
      seen.push({ error: String(error) });
    }
  }
  return seen;
}
