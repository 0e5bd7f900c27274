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
  const programs = {};
  const tables = {};
  for (const [name, id, example] of JSON.parse(process.argv[5])) {
    const section = page.locator(`#${id}`);
    if (example && id === "post_query") await section.getByLabel("Body").fill(example);
    else if (example) await section.getByLabel("Example").selectOption({ label: example });
    await section.locator("button").click();
    await page.waitForFunction((each) => /^\d{3}\n[^]*(\n}|\nevent: done\n.*\n\n)$/.test(document.querySelector(`#${each} pre`).textContent), id);
    answers[name] = await section.locator("pre").first().innerText();
    tables[name] = await section.locator(".result table").evaluateAll((found) => found.map((table) =>
      [table.caption.textContent, ...[...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent))]));
    if (!(await section.getByLabel("Language").isVisible())) await section.locator("details.programs summary").click();
    programs[name] = {};
    for (const language of ["curl", "Python", "JavaScript"]) {
      await section.getByLabel("Language").selectOption({ label: language });
      programs[name][language] = await section.locator("details.programs pre").innerText();
    }
    if (folder) await section.screenshot({ path: `${folder}/${name}.png` });
  }
  if (folder) await page.screenshot({ path: `${folder}/page.png` });
  // On a phone, the first screen has the name of the service, not the list of routes.
  await page.setViewportSize({ width: 390, height: 800 });
  const top = async (selector) => (await page.locator(selector).first().boundingBox()).y;
  await page.evaluate(() => window.scrollTo(0, 0));
  const phone = { title: await top("h1"), routes: await top("nav"), icon: await page.locator("link[rel=icon]").getAttribute("href") };
  // What the policy forbids: scripts in the page, and anything from elsewhere.
  const inline = await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "window.ran = true";
    document.body.append(script);
    return window.ran === true;
  });
  await page.click("header a[href='/guides/client']");
  await page.waitForURL("**/guides/client");
  const guide = { title: await page.locator("h1").innerText(), height: (await page.locator("body").boundingBox()).height };
  if (folder) await page.screenshot({ path: `${folder}/guide.png` });
  console.log(JSON.stringify({ sections, answers, tables, guide, programs, phone, console: lines, inline, asked: [...asked] }));
} finally {
  await browser.close();
}
