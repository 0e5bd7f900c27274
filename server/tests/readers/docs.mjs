// Opens the reference in Chromium as a person would: a key, an operation, an example, Send. Prints as JSON what was
// seen, and what the browser complained about. Arguments: address of /docs, key, where screenshots go.
import { chromium } from "playwright-core";

const [url, key, folder] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
try {
  const page = await browser.newPage({ viewport: { width: 1200, height: 900 } });
  const lines = [];
  const asked = new Set();
  page.on("console", (message) => message.type() === "error" && lines.push(message.text()));
  page.on("pageerror", (error) => lines.push(String(error)));
  page.on("request", (request) => asked.add(new URL(request.url()).origin));
  await page.goto(url);
  await page.waitForSelector("#operations section");
  const sections = await page.locator("#operations section h2").allInnerTexts();
  await page.fill("#key", key);
  const answers = {};
  for (const [name, id, example] of JSON.parse(process.argv[5])) {
    const section = page.locator(`#${id}`);
    if (example) await section.locator("select").selectOption({ label: example });
    await section.locator("button").click();
    await page.waitForFunction((each) => /^\d{3}\n[^]*(\n}|\nevent: done\n.*\n\n)$/.test(document.querySelector(`#${each} pre`).textContent), id);
    answers[name] = await section.locator("pre").innerText();
    if (folder) await section.screenshot({ path: `${folder}/${name}.png` });
  }
  if (folder) await page.screenshot({ path: `${folder}/page.png` });
  // What the policy forbids: scripts in the page, and anything from elsewhere.
  const inline = await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "window.ran = true";
    document.body.append(script);
    return window.ran === true;
  });
  console.log(JSON.stringify({ sections, answers, console: lines, inline, asked: [...asked] }));
} finally {
  await browser.close();
}
