// How a session begins and ends, and what is left in the browser then.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import {
  control,
  controlUrl,
  hasTexts,
  isTaken,
  look,
  more,
  openBrowser,
  openPage,
  run,
  signedIn,
  signIn,
  tokenOf,
  typeSql,
  until,
} from "./browser.mjs";

let browser;
before(async () => {
  browser = await openBrowser();
});
after(() => browser.close());

/** Everything that a page can keep in the browser. */
const kept = (page) =>
  page.evaluate(async () => {
    const files = [];
    for await (const name of (await navigator.storage.getDirectory()).keys()) files.push(name);
    return {
      local: { ...localStorage },
      session: { ...sessionStorage },
      databases: await indexedDB.databases(),
      caches: await caches.keys(),
      files,
      cookies: document.cookie,
    };
  });

test("one who signs out and forgets leaves nothing of their work in the browser", async () => {
  const { key: other } = await control("POST", "/v1/keys", { name: "console_forget", scopes: ["read"] });
  const page = await signedIn(browser);
  const context = page.context();
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill("the system's colours");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await run(page, "select 'zq_ran'");
  await page.getByRole("gridcell", { name: "zq_ran" }).waitFor();
  page.once("dialog", (dialog) => dialog.accept("zq_saved"));
  await more(page, "Save query…");
  await page.getByRole("button", { name: "New tab" }).click();
  await typeSql(page, "select 'zq_closed'");
  await page.getByRole("button", { name: "Close tab" }).last().click();
  // Another tab has another session, and its statement still runs.
  const second = await context.newPage();
  await second.goto(`${controlUrl}/console`);
  await signIn(second, other.secret);
  await run(second, "select 'zq_late', pg_sleep(60)");
  await second.getByText("Running…").waitFor();
  const third = await context.newPage();
  // With a slash, the address leads to the same page.
  await third.goto(`${controlUrl}/console/#/tables/public.zq_table`);
  await signIn(third);
  await third.getByRole("complementary", { name: "Tables" }).waitFor();
  const pages = [page, second, third];
  const tokens = await Promise.all(pages.map(tokenOf));
  assert.match(JSON.stringify(await kept(page)), /zq_ran.*svc_s_/);

  await page.locator(".countdown").click();
  await page.getByRole("menuitem", { name: "Sign out and forget…" }).click();
  const dialog = page.getByRole("dialog", { name: "Sign out and forget" });
  await hasTexts(dialog.getByRole("listitem"), [
    "1 open tab",
    "1 closed tab",
    "1 saved query",
    "1 statement in the history",
  ]);
  assert.deepEqual(await look(page, "forget"), []);
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.match(JSON.stringify(await kept(page)), /zq_ran/);
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill("forget");
  await page.keyboard.press("Enter");
  await dialog.getByRole("button", { name: "Sign out and forget" }).click();

  const nothing = {
    local: { "plainsql.theme": "system" },
    session: {},
    databases: [],
    caches: [],
    files: [],
    cookies: "",
  };
  for (const each of pages) {
    await each.getByText("nothing that you worked on is left in this browser").waitFor();
    assert.equal(new URL(each.url()).hash, "");
  }
  assert.deepEqual(await look(page, "forgotten"), []);
  for (const each of pages) assert.deepEqual(await kept(each), nothing);
  for (const token of tokens) await until(async () => !(await isTaken(token)));
  for (const each of pages) {
    await each.reload();
    await each.getByLabel("API key").waitFor();
    assert.deepEqual(await kept(each), nothing);
  }
  await signIn(page);
  await page.getByRole("button", { name: "History" }).click();
  await page.getByText("What you run is listed here").waitFor();
  assert.doesNotMatch(await page.getByRole("main").innerText(), /zq_/);
  await control("DELETE", `/v1/keys/${other.id}`);
  for (const each of pages) assert.deepEqual(each.complaints ?? [], []);
  await context.close();
});

test("one who has only signed out can still forget", async () => {
  const page = await signedIn(browser);
  await typeSql(page, "select 'zq_draft'");
  await page.locator(".countdown").click();
  await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
  await page.getByText("Your drafts and history are kept in this browser.").waitFor();
  assert.match(JSON.stringify(await kept(page)), /zq_draft/);
  assert.deepEqual(await look(page, "signed-out"), []);
  await page.getByRole("button", { name: "Forget what is kept in this browser…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Forget" }).click();
  await page.getByText("nothing that you worked on is left in this browser").waitFor();
  const { local, session } = await kept(page);
  assert.deepEqual([local, session], [{}, {}]);
  assert.equal(await page.getByRole("button", { name: "Forget what is kept in this browser…" }).count(), 0);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a session that could not be ended at the service is said to live on", async () => {
  const page = await signedIn(browser);
  const token = await tokenOf(page);
  await page.route(`${controlUrl}/v1/session`, (route) => route.abort());
  await page.locator(".countdown").click();
  await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
  await page.getByText("The session could not be ended at the service, where it is valid until").waitFor();
  assert.equal(await isTaken(token), true);
  assert.deepEqual(await look(page, "session-left"), []);
  await page.unrouteAll();
  await signIn(page);
  await page.locator(".countdown").click();
  await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
  await page.getByText("You have signed out.").waitFor();
  assert.equal(await page.getByText("could not be ended").count(), 0);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

/** A link as `plainsql-server dev` makes it. */
const newLink = async () => {
  const { session } = await control("POST", "/v1/session", { expires_in_seconds: 600 });
  return { token: session.token, address: `${controlUrl}/console#/sign-in?token=${session.token}` };
};

const ownKeys = async () =>
  (await control("GET", "/v1/keys?limit=1000")).keys.filter(({ name }) => name === "web console, by a link");

test("a link signs one in once, and nothing of it is left after signing out", async () => {
  const { token, address } = await newLink();
  const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  const sent = [];
  page.on("request", (request) => sent.push(`${request.method()} ${new URL(request.url()).pathname}`));
  const urls = [];
  page.on("request", (request) => urls.push(request.url().replace(/#.*/, "")));
  await page.goto(address);
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
  assert.equal(page.url().includes("svc_"), false);
  await run(page, "select 'by a link'");
  await page.getByRole("gridcell", { name: "by a link" }).waitFor();
  // Only routes that anyone may use, and neither a secret nor the link's token in what is stored.
  const ofControl = new Set(sent.filter((each) => / \/v1\/(session|keys|org)/.test(each)));
  assert.deepEqual(
    [...ofControl],
    ["GET /v1/organizations/current", "POST /v1/keys", "DELETE /v1/session", "POST /v1/session"],
  );
  const { local, session } = await kept(page);
  const stored = JSON.stringify([local, session]);
  assert.equal(stored.includes(token) || stored.includes("svc_k_"), false);
  await until(async () => !(await isTaken(token)));
  const own = JSON.parse(session["plainsql.session"]);
  const [made] = (await ownKeys()).filter(({ id }) => id === own.ownKey);
  const left = Date.parse(made.expires_at) - Date.now();
  assert.ok(left > 23 * 3_600_000 && left <= 24 * 3_600_000);

  // The link again, by someone else.
  const second = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1440, height: 900 } });
  const again = await second.newPage();
  await again.goto(address);
  await again.getByText("This link no longer signs you in: it works once").waitFor();
  assert.equal(again.url().includes("svc_"), false);
  assert.deepEqual(await look(again, "link-used"), []);
  await signIn(again);
  await second.close();
  // And here: the session stays.
  await page.goto(address);
  await page.getByText("This link no longer signs you in: it works once").waitFor();
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
  assert.equal(await tokenOf(page), own.token);

  await page.locator(".countdown").click();
  await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
  await page.getByLabel("API key").waitFor();
  await until(async () => !(await isTaken(own.token)));
  assert.equal((await ownKeys()).find(({ id }) => id === own.ownKey).state, "revoked");
  assert.doesNotMatch(JSON.stringify(await kept(page)), /svc_/);
  assert.deepEqual(
    urls.filter((url) => url.includes("svc_")),
    [],
  );
  // The way back in the tab's history leads to no address with a token either.
  for (let i = 0; i < 4; i += 1) {
    await page.goBack();
    assert.equal(page.url().includes("svc_"), false);
  }
  await context.close();
});

test("a link that is opened in a tab with a session replaces it, and one that was cut says so", async () => {
  const page = await signedIn(browser);
  const before = await tokenOf(page);
  const { address } = await newLink();
  await page.evaluate(() => {
    location.hash = "#/tables/new";
  });
  const name = page.getByRole("form", { name: "New table" }).getByLabel("Name", { exact: true });
  await name.fill("unsaved");
  const { href } = new URL(page.url());
  await page.goto(address.slice(0, -1));
  await page.getByText("A part of this link is missing.").waitFor();
  assert.equal(await tokenOf(page), before);
  assert.deepEqual([page.url(), await name.inputValue()], [href, "unsaved"]);
  await page.goto(address);
  const question = page.getByRole("dialog", { name: "Leave without saving?" });
  await question.getByRole("button", { name: "Stay" }).click();
  assert.deepEqual([page.url(), await name.inputValue()], [href, "unsaved"]);
  await page.goto(address);
  await question.getByRole("button", { name: "Leave" }).click();
  await page.waitForFunction((old) => {
    const found = JSON.parse(sessionStorage.getItem("plainsql.session") ?? "null");
    return found && found.token !== old;
  }, before);
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
  await until(async () => !(await isTaken(before)));
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a link that fails half way makes nobody a session and leaves no key", async () => {
  const { token, address } = await newLink();
  const keys = (await ownKeys()).filter(({ state }) => state === "active").length;
  const page = await openPage(browser);
  await page.route(`${controlUrl}/v1/session`, (route) =>
    route.request().method() === "POST" ? route.abort() : route.continue(),
  );
  await page.goto(address);
  await page.getByText("No response from").waitFor();
  await page.getByLabel("API key").waitFor();
  await until(async () => !(await isTaken(token)));
  assert.equal((await ownKeys()).filter(({ state }) => state === "active").length, keys);
  await page.context().close();
});
