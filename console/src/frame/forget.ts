/**
 * Removes what the console has stored in this browser: the drafts, histories and saved queries of all organizations, and
 * the sessions. What remains is how the page looks. All tabs of the console are signed out, because a tab that is at
 * work would store its part again.
 */

import { signOut } from "../api/control.ts";
import { ended, session } from "../api/session.ts";
import { leave } from "../app/place.ts";
import { type Draft, forgetDrafts } from "../editor/drafts.ts";
import { forgetHistories } from "../editor/history.ts";

const KEPT = new Set(["plainsql.theme", "plainsql.split"]);
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("plainsql.forget") : undefined;

/** How much there is to lose. */
export interface Stored {
  open: number;
  closed: number;
  ran: number;
  saved: number;
}

/** Counts what is stored, without tabs in which there is nothing. */
export const storedIn = (storage: Storage): Stored => {
  const found: Stored = { open: 0, closed: 0, ran: 0, saved: 0 };
  for (const key of keysOf(storage)) {
    const value = parsed(storage.getItem(key));
    if (key.startsWith("plainsql.draft.")) {
      const { sql = "", closedAt = null } = (value ?? {}) as Partial<Draft>;
      if (sql.trim()) found[closedAt === null ? "open" : "closed"] += 1;
    } else if (Array.isArray(value)) {
      if (key.startsWith("plainsql.history.")) found.ran += value.length;
      if (key.startsWith("plainsql.saved.")) found.saved += value.length;
    }
  }
  return found;
};

/** Signs out and removes everything, here and in the other tabs. */
export const forgetAll = (): void => {
  channel?.postMessage(null);
  forgetHere();
};

const forgetHere = (): void => {
  // First, so that nothing that ends with the session is stored.
  forgetDrafts();
  forgetHistories();
  if (session.get()) void signOut("forgotten");
  else ended.set("forgotten");
  for (const storage of [localStorage, sessionStorage]) {
    for (const key of keysOf(storage)) if (!KEPT.has(key)) storage.removeItem(key);
  }
  // It has the names of tables.
  leave();
};

channel?.addEventListener("message", forgetHere);

/** The console's own. */
const keysOf = (storage: Storage): string[] =>
  Array.from({ length: storage.length }, (_, i) => storage.key(i) ?? "").filter((key) => key.startsWith("plainsql."));

const parsed = (text: string | null): unknown => {
  try {
    return JSON.parse(text ?? "null");
  } catch {
    return null;
  }
};
