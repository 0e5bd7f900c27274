// The diagram of foreign keys, as a person looks at it and moves about in it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { control, look, openBrowser, signedIn, sql, until } from "./browser.mjs";

const SHOP = "console-diagram";
const LARGE = "console-large";
const SCRIPT = "<img src=x onerror=window.pwned=1>";
// One statement each.
const TABLES = [
  "create schema stock",
  "create table countries (code char(2) primary key, name text not null)",
  "create table customers (id bigint generated always as identity primary key, name text not null, email text unique," +
    " country char(2) not null references countries, referred_by bigint references customers on delete set null," +
    " created_at timestamptz not null default now())",
  "create table addresses (id bigint primary key, customer bigint not null references customers on delete cascade," +
    " street text, city text, country char(2) references countries)",
  "create table stock.suppliers (id int primary key, name text, country char(2) references countries)",
  "create table stock.products (supplier int references stock.suppliers, number int, title text not null," +
    " price numeric(10,2) not null, attributes jsonb, primary key (supplier, number))",
  "create table orders (id bigint primary key, customer bigint not null references customers," +
    " ship_to bigint references addresses, bill_to bigint references addresses, status text, placed_at timestamptz)",
  "create table order_lines (order_id bigint references orders on delete cascade, line int, supplier int, product int," +
    " quantity int not null, primary key (order_id, line)," +
    " foreign key (supplier, product) references stock.products (supplier, number) on update cascade)",
  // A cycle.
  "create table employees (id int primary key, name text, department int)",
  "create table departments (id int primary key, name text, head int references employees)",
  "alter table employees add foreign key (department) references departments",
  // A partition has the key of its table, and is part of it.
  "create table events (id bigint, employee int references employees, at date) partition by range (at)",
  "create table events_2026 partition of events for values from ('2026-01-01') to ('2027-01-01')",
  "create table settings (name text primary key, value jsonb)",
  "create table notes (id bigint primary key, body text, tags text[])",
  `create table "${SCRIPT}" ("${SCRIPT}\u202e" int)`,
];
const REFERENCES = [
  "addresses (country) references countries (code)",
  "addresses (customer) references customers (id)",
  "customers (country) references countries (code)",
  "customers (referred_by) references customers (id)",
  "departments (head) references employees (id)",
  "employees (department) references departments (id)",
  "events (employee) references employees (id)",
  "order_lines (order_id) references orders (id)",
  "order_lines (supplier, product) references stock.products (supplier, number)",
  "orders (bill_to) references addresses (id)",
  "orders (customer) references customers (id)",
  "orders (ship_to) references addresses (id)",
  "stock.products (supplier) references stock.suppliers (id)",
  "stock.suppliers (country) references countries (code)",
];

let browser;
let page;
const remove = async () => {
  for (const name of [SHOP, LARGE]) await control("DELETE", `/v1/databases/${name}?restorable=false`);
};
before(async () => {
  browser = await openBrowser();
  await remove();
  for (const name of [SHOP, LARGE]) {
    const made = await control("POST", "/v1/databases", { name });
    assert.equal(made.success, true, JSON.stringify(made));
  }
  for (const statement of TABLES) await sql(statement, { database: SHOP });
  await sql(
    "do $$ begin for i in 1..230 loop" +
      " execute format('create table t%s (id int primary key, parent int)', lpad(i::text, 3, '0')); end loop;" +
      " for i in 221..230 loop" +
      " execute format('alter table t%s add foreign key (parent) references t220', i); end loop; end $$",
    { database: LARGE },
  );
  page = await signedIn(browser);
  await page.getByLabel("Database", { exact: true }).selectOption(SHOP);
  await page.getByRole("link", { name: "Tables" }).click();
});
after(async () => {
  await browser.close();
  await remove();
});

const diagram = () => page.getByRole("application", { name: /^Diagram of foreign keys/ });
const tables = () => diagram().locator(".diagram-table");
const link = (name) => diagram().getByRole("link", { name, exact: true });
const table = (name) => tables().filter({ has: page.getByRole("link", { name, exact: true }) });
const status = (text) => page.getByRole("status").filter({ hasText: text });
const edges = () => diagram().locator(".react-flow__edge");
const labels = async () => (await edges().evaluateAll((all) => all.map((each) => each.ariaLabel))).sort();
const zoom = () => page.locator(".react-flow__viewport").evaluate(({ style }) => style.transform);
/** Where the picture is when it moves no more. */
const settled = async () => {
  let last;
  await until(async () => {
    const before = last;
    await page.evaluate(() => new Promise(requestAnimationFrame));
    last = await zoom();
    return last === before;
  });
  return last;
};
/** Waits until the picture is not as it was, or is as it is wanted. */
const moved = (before) => until(async () => (await zoom()) !== before);
const restored = (wanted) => until(async () => (await zoom()) === wanted);
const hasEdges = (count) => until(async () => (await edges().count()) === count);
const hasFocus = (locator) => locator.evaluate((element) => element === document.activeElement);

/** Whether a table is where it can be seen, as a whole. */
const isSeen = async (name) => {
  const [inner, outer] = [await table(name).boundingBox(), await diagram().boundingBox()];
  return (
    inner.x >= outer.x &&
    inner.y >= outer.y &&
    inner.x + inner.width <= outer.x + outer.width &&
    inner.y + inner.height <= outer.y + outer.height
  );
};
const seen = (name) => until(() => isSeen(name));

test("it shows the tables of all schemas, and is loaded only then", async () => {
  await page.getByRole("button", { name: /^countries/ }).waitFor();
  const hasLoaded = () => page.asked.some((url) => /\/console\/Diagram-.*\.js$/.test(url));
  assert.equal(hasLoaded(), false);
  await page.getByRole("button", { name: "Diagram", exact: true }).click();
  await status("13 tables, 14 foreign keys").waitFor();
  assert.equal(hasLoaded(), true);
  assert.match(page.url(), /#\/tables\/diagram$/);
  await table("orders").waitFor();
  assert.equal(await tables().count(), 13);
  const lines = await table("stock.products").locator(".diagram-column").allInnerTexts();
  assert.deepEqual(
    lines.map((line) => line.split(/\s+/).join(" ")),
    ["supplier PK FK integer", "number PK integer", "title text", "price numeric(10,2)", "attributes jsonb"],
  );
  for (const name of ["orders", "stock.suppliers", "notes", "settings"]) await seen(name);
  await hasEdges(REFERENCES.length);
  assert.deepEqual(await labels(), REFERENCES);
  assert.deepEqual(await look(page, "diagram"), []);
});

test("a line leads from the referencing to the referenced columns", async () => {
  /** The ends of a line, and the columns that they should be at. */
  const ends = (label, from, to) =>
    edges().evaluateAll(
      (all, [wanted, source, target]) => {
        const edge = all.find((each) => each.ariaLabel === wanted);
        const columnOf = ([name, column]) => {
          const found = [...document.querySelectorAll(".diagram-table")].find(
            (each) => each.querySelector("a").innerText === name,
          );
          const { left, right } = found.getBoundingClientRect();
          const line = [...found.querySelectorAll(".diagram-column")].find((each) =>
            each.title.startsWith(`${column} `),
          );
          const { top, bottom } = line.getBoundingClientRect();
          return { left, right, y: (top + bottom) / 2 };
        };
        const starts = (path) =>
          path
            .getAttribute("d")
            .split("M")
            .slice(1)
            .map((part) => {
              const [x, y] = part.split(/[^\d.-]/).map(Number);
              const { x: left, y: top } = new DOMPoint(x, y).matrixTransform(path.getScreenCTM());
              return { x: left, y: top };
            });
        const isAt = (points, column) =>
          points.some(
            ({ x, y }) =>
              Math.abs(y - column.y) < 2 && Math.min(Math.abs(x - column.left), Math.abs(x - column.right)) < 2,
          );
        const [line, arrows] = edge.querySelectorAll("path");
        return [
          ...source.map((each) => isAt(starts(line), columnOf(each))),
          ...target.map((each) => isAt(starts(arrows), columnOf(each))),
        ];
      },
      [label, from, to],
    );
  // While the picture is fitted to the window, a table may show its name only.
  const join = (label, from, to) => until(async () => (await ends(label, from, to)).every(Boolean));
  await join(REFERENCES[2], [["customers", "country"]], [["countries", "code"]]);
  await join(REFERENCES[3], [["customers", "referred_by"]], [["customers", "id"]]);
  await join(REFERENCES[4], [["departments", "head"]], [["employees", "id"]]);
  const [from, to] = ["order_lines", "stock.products"];
  await join(
    REFERENCES[8],
    [
      [from, "supplier"],
      [from, "product"],
    ],
    [
      [to, "supplier"],
      [to, "number"],
    ],
  );
});

test("it is zoomed, moved and fitted, and its lines stand out beside a table", async () => {
  const first = await settled();
  await page.getByRole("button", { name: "Zoom in" }).click();
  await moved(first);
  const larger = await settled();
  await page.getByRole("button", { name: "Zoom out" }).click();
  await moved(larger);
  const box = await diagram().boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  const before = await zoom();
  await page.mouse.wheel(0, -300);
  await moved(before);
  // Who drags a table moves the picture, and opens nothing.
  const zoomed = await zoom();
  await page.getByRole("button", { name: "Fit" }).click();
  await moved(zoomed);
  const fitted = await settled();
  const { x, y } = await table("orders").boundingBox();
  await page.mouse.move(x + 20, y + 10);
  await page.mouse.down();
  await page.mouse.move(x + 120, y + 90, { steps: 5 });
  await page.mouse.up();
  await moved(fitted);
  assert.match(page.url(), /#\/tables\/diagram$/);
  await page.getByRole("button", { name: "Fit" }).click();
  await restored(fitted);
  await table("stock.products").hover();
  await until(async () => (await diagram().locator(".react-flow__edge.active").count()) === 2);
  await page.mouse.move(0, 0);
});

test("a click opens a table, and back leads to the diagram", async () => {
  await table("orders").click();
  await page.getByRole("heading", { name: "orders" }).waitFor();
  assert.match(page.url(), /#\/tables\/public\.orders$/);
  await page.goBack();
  await table("orders").waitFor();
});

test("it is used by the keyboard alone", async () => {
  await page.keyboard.press("Control+k");
  await page.getByLabel("Command", { exact: true }).fill("diagram");
  await page.keyboard.press("Enter");
  // The diagram is there already, and the palette until it has the tables.
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await table("orders").waitFor();
  await page.getByRole("button", { name: "Reload" }).focus();
  await page.keyboard.press("Tab");
  assert.equal(await hasFocus(diagram()), true);
  const first = await settled();
  for (const key of ["ArrowRight", "ArrowDown", "+", "-", "ArrowLeft", "ArrowUp"]) {
    const before = await zoom();
    await page.keyboard.press(key);
    await moved(before);
  }
  await page.keyboard.press("0");
  await restored(first);
  // Far to the right, so that what has the focus next is out of sight.
  for (let i = 0; i < 30; i += 1) await page.keyboard.press("ArrowRight");
  const names = [];
  for (let i = 0; i < 13; i += 1) {
    await page.keyboard.press("Tab");
    const name = await page.evaluate(() => document.activeElement.innerText);
    names.push(name);
    await seen(name);
  }
  assert.equal(new Set(names).size, 13);
  for (let i = 0; i < 13 && !(await hasFocus(link("orders"))); i += 1) await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "orders" }).waitFor();
  await page.goBack();
  await table("orders").waitFor();
});

test("the list says the same in words", async () => {
  await page.getByRole("tab", { name: "List" }).click();
  const items = page.getByRole("list", { name: "References" }).getByRole("listitem");
  const actions = /, on (delete|update) .*$/;
  assert.deepEqual((await items.allInnerTexts()).map((text) => text.replace(actions, "")).sort(), REFERENCES);
  await items.filter({ hasText: "customers (referred_by)" }).getByText("on delete set null").waitFor();
  await page.getByRole("list", { name: "Without foreign keys" }).getByRole("link", { name: "settings" }).waitFor();
  assert.deepEqual(await look(page, "diagram-list"), []);
  await items.filter({ hasText: "stock.products (supplier)" }).getByRole("link", { name: "stock.suppliers" }).click();
  await page.getByRole("heading", { name: "stock.suppliers" }).waitFor();
  await page.goBack();
});

test("a filter leaves the tables with a name, and those linked with them", async () => {
  await table("orders").waitFor();
  await page.getByLabel("Filter the diagram").fill("ORDER_");
  await status("1 table found, and 2 linked with it").waitFor();
  assert.equal(await tables().count(), 3);
  assert.equal(await diagram().locator(".diagram-table.near").count(), 2);
  for (const name of ["order_lines", "orders", "stock.products"]) await seen(name);
  assert.deepEqual(await look(page, "diagram-filter"), []);
  await page.getByLabel("Filter the diagram").fill("no such table");
  await status("0 tables found").waitFor();
  await page.getByLabel("Filter the diagram").fill("");
  await status("13 tables").waitFor();
});

test("what has changed is shown when it is loaded again", async () => {
  await sql("create table invoices (id bigint primary key, of bigint references orders)", { database: SHOP });
  await page.getByRole("button", { name: "Reload" }).click();
  await status("14 tables, 15 foreign keys").waitFor();
  await table("invoices").waitFor();
  await hasEdges(15);
});

test("names are text, and no style or script was refused", async () => {
  // Its name has a dot, and is in quotes.
  await link(`"${SCRIPT}"`).waitFor();
  assert.match(await table(`"${SCRIPT}"`).locator(".diagram-column-name").innerText(), /U\+202E$/);
  assert.equal(await page.locator(".diagram img").count(), 0);
  assert.equal(await page.evaluate("window.pwned"), undefined);
  assert.deepEqual(page.complaints, []);
});

test("of many tables, those with foreign keys come first, and others are found by name", async () => {
  await page.getByLabel("Database", { exact: true }).selectOption(LARGE);
  await status("230 tables, 10 foreign keys").waitFor();
  await page.getByText("This database has 230 tables. 200 are shown at a time").waitFor();
  assert.equal(await tables().count(), 200);
  for (const name of ["t220", "t221", "t230"]) assert.equal(await table(name).count(), 1);
  // The last one without a key.
  assert.equal(await table("t219").count(), 0);
  await hasEdges(10);
  assert.deepEqual(await look(page, "diagram-large"), []);
  await page.getByLabel("Filter the diagram").fill("t219");
  await table("t219").waitFor();
  await status("1 table found").waitFor();
  assert.equal(await tables().count(), 1);
  await page.getByLabel("Filter the diagram").fill("");
  await status("230 tables").waitFor();
  assert.deepEqual(page.complaints, []);
});

test("an empty database is said to be empty", async () => {
  await sql("drop schema public cascade", { database: LARGE }).then(() =>
    sql("create schema public", { database: LARGE }),
  );
  await page.getByRole("button", { name: "Reload" }).click();
  await page.getByText("There is no table in this database yet.").waitFor();
  assert.deepEqual(page.complaints, []);
});
