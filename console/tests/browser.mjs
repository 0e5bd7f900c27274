// Chromium for the tests of the console: one for each file of tests, with a page that is signed in.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import axe from "axe-core";
import { chromium } from "playwright-core";

export const { PLAINSQL_URL: dataUrl, PLAINSQL_CONTROL_URL: controlUrl, PLAINSQL_KEY: key } = process.env;
const FOLDER = process.env.PLAINSQL_TEST_SCREENSHOTS;

export const openBrowser = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-dev-shm-usage"],
  });

/** A new page with the sign-in form, and what it complained about. */
export const openPage = async (browser, options = {}) => {
  // The authority is the service's own, which Chromium doesn't know; Node's tests verify it.
  const context = await browser.newContext({
    ignoreHTTPSErrors: true,
    viewport: { width: 1440, height: 900 },
    permissions: ["clipboard-read", "clipboard-write"],
    ...options,
  });
  context.setDefaultTimeout(Number(process.env.PLAINSQL_TEST_WAIT_MS ?? 20_000));
  const page = await context.newPage();
  page.complaints = [];
  page.asked = [];
  page.on("console", (message) => {
    // A failed request is an answer that a test may want.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) {
      page.complaints.push(message.text());
    }
  });
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("request", (request) => page.asked.push(request.url()));
  await page.goto(`${controlUrl}/console`);
  return page;
};

export const signIn = async (page, secret = key) => {
  await page.getByLabel("API key").fill(secret);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
};

/** A page that is signed in. */
export const signedIn = async (browser, options, secret) => {
  const page = await openPage(browser, options);
  await signIn(page, secret);
  return page;
};

/** The token of a page's session. */
export const tokenOf = (page) => page.evaluate(() => JSON.parse(sessionStorage.getItem("plainsql.session")).token);

/** Runs SQL past the console, to prepare a test or to look at its effect. */
export const sql = async (text, body = {}) => {
  const response = await fetch(`${dataUrl}/v1/query`, {
    method: "POST",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: JSON.stringify({ sql: text, ...body }),
  });
  const answer = await response.json();
  if (!answer.success) throw new Error(JSON.stringify(answer.error));
  return answer.rows;
};

/** A call of the control plane. */
export const control = async (method, path, body) => {
  const response = await fetch(controlUrl + path, {
    method,
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  return response.status === 204 ? {} : response.json();
};

/** Whether the service takes a key or a token. One that was ended is taken for a moment: processes know it still. */
export const isTaken = async (secret) => {
  const headers = { Authorization: `Bearer ${secret}`, "Content-Type": "text/plain" };
  const asked = [
    fetch(`${controlUrl}/v1/organizations/current`, { headers }),
    fetch(`${dataUrl}/query`, { method: "POST", headers, body: "select 1" }),
  ];
  return (await Promise.all(asked)).some(({ status }) => status !== 401);
};

/** Waits until something is so. */
export const until = async (condition) => {
  const end = Date.now() + 30_000;
  while (!(await condition())) {
    assert.ok(Date.now() < end, String(condition));
    await setTimeout(25);
  }
};

/** Types SQL in place of what is in the editor. */
export const typeSql = async (page, text) => {
  await page.getByLabel("SQL", { exact: true }).focus();
  await page.keyboard.press("Control+a");
  // Into what is selected, Chromium would insert with the style of what was there, which the page's policy forbids.
  await page.keyboard.press("Delete");
  await page.keyboard.insertText(text);
};

export const run = async (page, text) => {
  await typeSql(page, text);
  await page.keyboard.press("Control+Enter");
};

/** Takes a command of the menu "More". */
export const more = async (page, name) => {
  await page.getByRole("button", { name: "More", exact: true }).click();
  await page.getByRole("menuitem", { name }).click();
};

/** What an action has copied. */
export const copied = async (page, act) => {
  await page.evaluate(() => navigator.clipboard.writeText("nothing yet"));
  await act();
  await page.waitForFunction(async () => (await navigator.clipboard.readText()) !== "nothing yet");
  return page.evaluate(() => navigator.clipboard.readText());
};

/** Makes time pass quickly in a page from when an action begins until what it returns is there: a wait of minutes. */
export const passTime = async (page, act) => {
  await page.clock.install();
  const found = await act();
  const end = Date.now() + 60_000;
  while ((await found.count()) === 0) {
    assert.ok(Date.now() < end, `${found} is not there`);
    await page.clock.runFor(1_000);
  }
  await page.clock.resume();
};

/** Text as an SQL literal. */
export const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

/** Waits until the texts of what is found are these. */
export const hasTexts = async (found, wanted) => {
  const end = Date.now() + 30_000;
  let texts = await found.allInnerTexts();
  while (!isDeepStrictEqual(texts, wanted) && Date.now() < end) {
    await setTimeout(25);
    texts = await found.allInnerTexts();
  }
  assert.deepEqual(texts, wanted);
};

/** Waits until the cells that are there have these texts. */
export const hasCells = (page, wanted) => hasTexts(page.getByRole("gridcell"), wanted);

/** The texts of the cells that are there. */
export const cells = (page) => page.getByRole("gridcell").allInnerTexts();

const SIZES = { wide: [1440, 900], middle: [1024, 768], phone: [390, 844] };
// Each look takes half a second of a processor. The gate takes the two that differ most, `make soak` all six.
const LOOKS = process.env.PLAINSQL_TEST_FULL
  ? ["light", "dark"].flatMap((scheme) => Object.keys(SIZES).map((size) => [scheme, size]))
  : [
      ["light", "wide"],
      ["dark", "phone"],
    ];

/** Keeps screenshots in three sizes, dark and light, and returns what axe-core finds serious in any of them. */
export const look = async (page, name) => {
  mkdirSync(FOLDER, { recursive: true });
  const found = [];
  const before = page.viewportSize();
  for (const [scheme, size] of LOOKS) {
    const [width, height] = SIZES[size];
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height });
    // As it is: to hide the caret, Playwright would add a style, which the page's policy forbids.
    await page.screenshot({ path: `${FOLDER}/${name}-${size}-${scheme}.png`, caret: "initial" });
    found.push(...(await violations(page)).map((each) => `${name} ${size} ${scheme}: ${each}`));
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize(before);
  return found;
};

const violations = async (page) => {
  // By the debugger's protocol, because the page's policy allows no other scripts.
  if (!(await page.evaluate("'axe' in window"))) await page.evaluate(`(() => { ${axe.source} })()`);
  return page.evaluate(async () => {
    const { violations: all } = await window.axe.run(document, { resultTypes: ["violations"], preload: false });
    return all
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" | ")}`);
  });
};
