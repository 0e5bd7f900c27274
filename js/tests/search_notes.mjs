// Opens the page of the example in Chromium, searches, and prints the notes that it shows as JSON. Arguments: the page's
// address, what to search for.
import { chromium } from "playwright-core";

const [address, wanted] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
try {
  const page = await browser.newPage({ ignoreHTTPSErrors: true });
  await page.goto(address);
  const notes = page.locator("li");
  await notes.nth(1).waitFor();
  const all = await notes.allTextContents();
  await page.fill("#search", wanted);
  await page.waitForFunction(() => document.querySelectorAll("li").length === 1);
  console.log(JSON.stringify({ all, found: await notes.allTextContents() }));
} finally {
  await browser.close();
}
