/** The frame around every page: navigation, the database, the session, and the command palette. */

import { type ComponentType, lazy, Suspense, useEffect, useMemo, useReducer, useRef, useState } from "react";
import { check, refresh, signOut } from "../api/control.ts";
import { textOf } from "../api/requests.ts";
import { current, dueOf, expire, may, session } from "../api/session.ts";
import { useStore } from "../api/store.ts";
import { Boundary } from "../app/Boundary.tsx";
import { choose, database, databases, defaultName, isGone, loadDatabases, useGone } from "../app/databases.ts";
import { duration } from "../app/figures.ts";
import { mayLeave } from "../app/leaving.ts";
import { Marked } from "../app/marked.tsx";
import { Button, type Item, Menu } from "../app/parts.tsx";
import { go, place } from "../app/place.ts";
import { setTheme, toggleTheme } from "../app/theme.ts";
import { toast } from "../app/toast.tsx";
import { draftsOf } from "../editor/drafts.ts";
import { QueryPage } from "../editor/QueryPage.tsx";
import { unsaved, unsavedText } from "../schema/unsaved.ts";
import { ForgetDialog } from "./ForgetDialog.tsx";
import { LeaveDialog } from "./LeaveDialog.tsx";
import type { Command } from "./matching.ts";
import { Palette } from "./Palette.tsx";

interface Page {
  name: string;
  title: string;
  /** What it needs; without it, the page is not offered. */
  scope: "read" | "admin" | null;
  content: ComponentType;
}

// Only the first page is loaded at once.
const page = (load: () => Promise<Record<string, unknown>>, name: string) =>
  lazy(async () => ({ default: (await load())[name] as ComponentType }));

const PAGES: readonly Page[] = [
  { name: "query", title: "Query", scope: null, content: QueryPage },
  {
    name: "tables",
    title: "Tables",
    scope: "read",
    content: page(() => import("../schema/TablesPage.tsx"), "TablesPage"),
  },
  {
    name: "databases",
    title: "Databases",
    scope: "admin",
    content: page(() => import("../admin/Databases.tsx"), "DatabasesPage"),
  },
  { name: "keys", title: "API keys", scope: "admin", content: page(() => import("../admin/Keys.tsx"), "KeysPage") },
  { name: "usage", title: "Usage", scope: "admin", content: page(() => import("../admin/Usage.tsx"), "UsagePage") },
  { name: "audit", title: "Audit log", scope: "admin", content: page(() => import("../admin/Audit.tsx"), "AuditPage") },
  {
    name: "service",
    title: "Service",
    scope: null,
    content: page(() => import("../admin/Service.tsx"), "ServicePage"),
  },
];

/** Its text is what may have broken the page; it can be opened again from the history. */
const WITHOUT_TAB: Item = {
  label: "Open without this tab",
  act: () => {
    const drafts = draftsOf(current().organization.id);
    drafts.close(drafts.active.get());
  },
};

const CHECK_MS = 60_000;
const FORGET = "Sign out and forget…";

const commandsOf = (pages: readonly Page[], names: readonly string[], forget: () => void): Command[] => [
  ...pages.map(({ name, title }) => ({ name: `Go to ${title}`, title, hint: "page", act: () => go(name) })),
  { name: "Show the diagram of foreign keys", hint: "page", act: () => go("tables", "diagram") },
  ...names.map((name) => ({ name: `Use database ${name}`, hint: "database", act: () => mayLeave(() => choose(name)) })),
  { name: "Switch between dark and light", act: toggleTheme },
  { name: "Use the system's colours", act: () => setTheme("system") },
  { name: "Extend the session by 24 hours", act: extend },
  { name: "Sign out", act: leaveSession },
  { name: FORGET, act: forget },
  { name: "API reference", hint: "opens a page", act: () => void open("/docs", "_blank", "noopener") },
];

const leaveSession = () => mayLeave(() => void signOut(), undefined, unsavedText(unsaved.get()));

const extend = async (): Promise<void> => {
  try {
    toast((await refresh()) ? "The session was extended." : "The session can't be extended any further.");
  } catch (error) {
    toast(textOf(error), "danger");
  }
};

export const Shell = () => {
  const { page } = useStore(place);
  const known = useStore(databases);
  const chosen = useStore(database);
  const gone = useGone();
  const [isPaletteOpen, setPaletteOpen] = useState(false);
  const [isForgetOpen, setForgetOpen] = useState(false);
  const forget = () => setForgetOpen(true);
  const pages = PAGES.filter(({ scope }) => scope !== "admin" || may(scope));
  const shown = pages.find(({ name }) => name === page) ?? pages[0];
  const names = useMemo(() => (known ?? []).filter(({ state }) => state === "ready").map(({ name }) => name), [known]);

  useEffect(() => {
    loadDatabases().catch((error) => toast(textOf(error), "danger"));
    const open = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      setPaletteOpen(true);
    };
    // Before the editor, for which it deletes to the end of the line.
    addEventListener("keydown", open, true);
    return () => removeEventListener("keydown", open, true);
  }, []);
  const shownBefore = useRef(shown);
  useEffect(() => {
    document.title = `${shown?.title ?? ""} · PlainSQL`;
    // What had the focus may have gone with the page before.
    const isLost = document.activeElement === document.body;
    if (shownBefore.current !== shown && isLost) document.getElementById("content")?.focus();
    shownBefore.current = shown;
  }, [shown]);

  const navigation = usePlaceInSight(shown?.name);

  const Content = shown?.content ?? QueryPage;
  return (
    <div className="shell">
      <Button className="skip" onClick={() => document.getElementById("content")?.focus()}>
        Skip to the content
      </Button>
      <header className="top">
        <span className="mark" aria-hidden="true" />
        <span className="organization" title={`tier ${current().organization.tier}`}>
          <Marked>{current().organization.name}</Marked>
        </span>
        <DatabaseSwitcher names={names} />
        <span className="spring" />
        <Button className="palette-button" onClick={() => setPaletteOpen(true)}>
          <span className="wide">
            Commands <kbd>Ctrl K</kbd>
          </span>
          <svg className="narrow" viewBox="0 0 16 16" aria-hidden="true">
            <circle cx="7" cy="7" r="4.5" />
            <path d="m10.5 10.5 4 4" />
          </svg>
        </Button>
        <Button kind="icon" aria-label="Switch between dark and light" onClick={toggleTheme}>
          ◐
        </Button>
        <SessionMenu forget={forget} />
      </header>
      <nav ref={navigation} className="pages" aria-label="Pages">
        {pages.map(({ name, title }) => (
          <a key={name} href={`#/${name}`} aria-current={name === shown?.name ? "page" : undefined}>
            {title}
          </a>
        ))}
      </nav>
      <main id="content" className="content" tabIndex={-1}>
        <Boundary key={shown?.name} what="This page" other={Content === QueryPage ? WITHOUT_TAB : undefined}>
          <Suspense fallback={<p className="state">Loading…</p>}>
            <Content />
          </Suspense>
        </Boundary>
      </main>
      {isPaletteOpen && (
        <Palette
          commands={commandsOf(pages, names, forget)}
          database={!gone && (may("read") || may("write")) ? chosen : null}
          close={() => setPaletteOpen(false)}
        />
      )}
      <LeaveDialog />
      {isForgetOpen && <ForgetDialog close={() => setForgetOpen(false)} />}
    </div>
  );
};

/** On a narrow screen, the pages are a line that scrolls: the one that is shown is in sight, with its neighbours. */
const usePlaceInSight = (shown: string | undefined) => {
  const host = useRef<HTMLElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another page is another place
  useEffect(() => {
    const show = () => {
      const link = host.current?.querySelector<HTMLElement>("[aria-current]");
      if (link && host.current)
        host.current.scrollLeft = link.offsetLeft - (host.current.clientWidth - link.offsetWidth) / 2;
    };
    show();
    addEventListener("resize", show);
    return () => removeEventListener("resize", show);
  }, [shown]);
  return host;
};

const DatabaseSwitcher = ({ names }: { names: readonly string[] }) => {
  const chosen = useStore(database);
  const known = useStore(databases);
  const bound = current().database;
  if (bound) return <span className="database">{bound}</span>;
  if (!may("admin")) {
    return (
      <input
        className="database"
        aria-label="Database"
        placeholder="default database"
        key={chosen}
        defaultValue={chosen}
        onBlur={({ target }) => {
          const name = target.value.trim() || defaultName();
          if (name === chosen) {
            target.value = chosen;
            return;
          }
          mayLeave(
            () => choose(name),
            () => {
              target.value = chosen;
            },
          );
        }}
      />
    );
  }
  return (
    <select
      className="database"
      aria-label="Database"
      value={chosen}
      onChange={({ target: { value } }) => mayLeave(() => choose(value))}
    >
      {!names.includes(chosen) && (
        <option value={chosen}>{!chosen ? "no database" : isGone(known, chosen) ? `${chosen}: gone` : chosen}</option>
      )}
      {names.map((name) => (
        <option key={name}>{name}</option>
      ))}
    </select>
  );
};

/** The countdown, which also asks now and then whether the session still is. */
const SessionMenu = ({ forget }: { forget: () => void }) => {
  const [, redraw] = useReducer((ticks: number) => ticks + 1, 0);
  const here = useStore(session);
  useEffect(() => {
    let isFixed = false;
    const act = async (due: ReturnType<typeof dueOf>) => {
      if (due !== "refresh") return check();
      isFixed = !(await refresh());
    };
    const tick = () => {
      const now = session.get();
      if (!now) return;
      const due = dueOf(Date.parse(now.expiresAt) - Date.now(), isFixed);
      redraw();
      if (document.hidden && due !== "ask") return;
      // A failure shows at the next request. Another tab may have extended what seems to have expired.
      act(due)
        .catch(() => undefined)
        .finally(expire);
    };
    const timer = setInterval(tick, CHECK_MS);
    const look = () => document.hidden || tick();
    document.addEventListener("visibilitychange", look);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, []);
  if (!here) return null;
  const left = duration(Math.max(0, Date.parse(here.expiresAt) - Date.now()));
  return (
    <Menu
      kind="icon"
      label={
        <span className="countdown" title={`The session ends at ${here.expiresAt}`}>
          <span className="wide">Session: </span>
          {left}
        </span>
      }
      items={[
        { label: "Extend by 24 hours", act: () => void extend() },
        { label: "Sign out", act: leaveSession },
        { label: FORGET, isDanger: true, act: forget },
      ]}
    />
  );
};
