// Finds the controls of a page that the keyboard does not reach, by pressing its keys.
import assert from "node:assert/strict";

/** Puts into a page what tells its controls, and which of them have had the focus. */
const install = () => {
  if (window.reach) return;
  const NATIVE =
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [contenteditable=true], [role=button]," +
    " [role=link], [role=tab], [role=option], [role=menuitem], [role=checkbox], [role=switch], [role=separator]";
  const WIDGETS = "[role=grid], [role=tab], [aria-haspopup=menu]";
  // The arrow keys lead to these.
  const PARTS = "[role=tab], [role=gridcell], [role=menuitem]";
  const focused = () => {
    let found = document.activeElement;
    while (found?.shadowRoot?.activeElement) found = found.shadowRoot.activeElement;
    return found;
  };
  const all = (root) =>
    [...root.querySelectorAll("*")].flatMap((each) => [each, ...(each.shadowRoot ? all(each.shadowRoot) : [])]);
  /** What React calls on a click: it is on no attribute. */
  const isClicked = (each) =>
    Object.keys(each).some((key) => key.startsWith("__reactProps$") && typeof each[key].onClick === "function");
  const isSeen = (each) =>
    each.checkVisibility({ visibilityProperty: true }) &&
    each.getClientRects().length > 0 &&
    !each.matches(":disabled");
  const within = (outer, inner) => {
    for (let at = inner; at; at = at.parentNode ?? at.host) if (at === outer) return true;
    return false;
  };
  const nameOf = (each) =>
    each.getAttribute("aria-label") || each.innerText?.trim().slice(0, 40) || each.outerHTML.slice(0, 80);
  const reached = new Set();
  const round = new Set();
  const note = () => {
    const here = focused();
    const inner = document.getElementById(here?.getAttribute("aria-activedescendant") ?? "");
    if (here && here !== document.body) reached.add(here);
    if (inner) reached.add(inner);
    return inner ?? here;
  };
  window.reach = {
    start: () => reached.clear(),
    begin: () => round.clear(),
    /** Notes what has the focus. Whether it had it before in this round, and whether it is the editor. */
    note: () => {
      const here = focused();
      note();
      const isKnown = round.has(here);
      if (here !== document.body) round.add(here);
      return { isKnown, isEditor: here?.matches(".cm-content") ?? false };
    },
    /** Notes what an arrow key led to, and whether that is another one than before. */
    moved: () => {
      const before = window.reach.last;
      window.reach.last = note();
      return window.reach.last !== before;
    },
    /** The controls that Tab has not reached. What is clicked as a whole may have its control within. */
    missed: (scope) =>
      all(document.querySelector(scope))
        .filter((each) => isSeen(each) && !each.matches(PARTS) && !reached.has(each))
        .filter((each) => each.matches(NATIVE) || (isClicked(each) && ![...reached].some((one) => within(each, one))))
        .map(nameOf),
    /** The widgets that Tab has reached: grids first, because another tab has another grid. */
    widgets: () => {
      const found = [...reached].filter((each) => each.isConnected && each.matches(WIDGETS));
      const isTab = (each) => Number(each.matches("[role=tab]"));
      window.reach.found = found.sort((a, b) => isTab(a) - isTab(b));
      return window.reach.found.map((each) => each.getAttribute("role") ?? "menu");
    },
    /** Goes to a widget. */
    enter: (index) => {
      window.reach.found[index].focus();
      window.reach.last = note();
    },
    /** How many parts it has. Those that can be seen must be reached. */
    look: (index) => {
      const widget = window.reach.found[index];
      const list = widget.closest("[role=tablist], .menu") ?? widget;
      window.reach.parts = [...list.querySelectorAll(PARTS)].filter(isSeen);
      return window.reach.parts.length;
    },
    /** The parts of the widget that were not reached. A cell that was drawn again is known by its id. */
    missedParts: () => {
      const ids = new Set([...reached].map(({ id }) => id));
      return window.reach.parts.filter((each) => !reached.has(each) && !ids.has(each.id || null)).map(nameOf);
    },
    /** Whether Tab leads to a list of tabs at all. */
    lists: (scope) =>
      [...document.querySelector(scope).querySelectorAll("[role=tablist]")]
        .filter((list) => isSeen(list) && ![...reached].some((one) => list.contains(one)))
        .map(nameOf),
  };
};

const PRESSES_MAX = 400;

/** Presses a key until it leads nowhere else. */
const follow = async (page, key) => {
  for (let i = 0; i < PRESSES_MAX; i += 1) {
    await page.keyboard.press(key);
    if (!(await page.evaluate(() => window.reach.moved()))) return;
  }
};

/** Goes through the cells of a grid: right to the end of each line, then to the next one. */
const walkGrid = async (page) => {
  await page.keyboard.press("Control+Home");
  await page.evaluate(() => window.reach.moved());
  for (let i = 0; i < PRESSES_MAX; i += 1) {
    await follow(page, "ArrowRight");
    await page.keyboard.press("Home");
    await page.evaluate(() => window.reach.moved());
    await page.keyboard.press("ArrowDown");
    if (!(await page.evaluate(() => window.reach.moved()))) return;
  }
};

/** Goes through the tabs of a list, and back to the first one. */
const walkTabs = async (page, count) => {
  for (const key of ["ArrowRight", "ArrowLeft"]) {
    for (let i = 1; i < count; i += 1) {
      await page.keyboard.press(key);
      await page.evaluate(() => window.reach.moved());
    }
  }
};

/** Goes through the commands of a menu that is open, and closes it. */
const walkMenu = async (page, count) => {
  for (let i = 0; i < count; i += 1) {
    await page.evaluate(() => window.reach.moved());
    await page.keyboard.press("ArrowDown");
  }
  await page.keyboard.press("Escape");
};

const WALKS = { grid: walkGrid, tab: walkTabs, menu: walkMenu };

/** Presses Tab until it leads to what it has led to before. */
const goRound = async (page) => {
  await page.evaluate(() => window.reach.begin());
  for (let i = 0; i < PRESSES_MAX; i += 1) {
    await page.keyboard.press("Tab");
    const { isKnown, isEditor } = await page.evaluate(() => window.reach.note());
    if (isKnown) return;
    // There, Tab indents, unless Escape comes first.
    if (isEditor) await page.keyboard.press("Escape");
  }
  throw new Error(`Tab leads to more than ${PRESSES_MAX} controls.`);
};

/**
 * The names of the controls that can be seen in a part of the page, and that neither Tab nor, within a grid, a list of
 * tabs or a menu, the arrow keys lead to. It begins where the focus is.
 */
export const unreached = async (page, scope = "body") => {
  await page.evaluate(install);
  await page.evaluate(() => window.reach.start());
  // Some can be used only after others had the focus.
  for (let i = 0; i < 2; i += 1) await goRound(page);
  const found = await page.evaluate((where) => [...window.reach.missed(where), ...window.reach.lists(where)], scope);
  const widgets = await page.evaluate(() => window.reach.widgets());
  for (const [index, role] of widgets.entries()) {
    await page.evaluate((at) => window.reach.enter(at), index);
    if (role === "menu") await page.keyboard.press("Enter");
    const count = await page.evaluate((at) => window.reach.look(at), index);
    assert.ok(count > 0, role);
    await WALKS[role](page, count);
    found.push(...(await page.evaluate(() => window.reach.missedParts())));
  }
  return found;
};
