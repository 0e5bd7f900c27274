/**
 * The session of this browser tab. Its token is in memory and in sessionStorage, and nowhere else. A key is exchanged
 * for a token at once and never stored.
 */

import { store } from "./store.ts";

export interface Session {
  token: string;
  id: string;
  expiresAt: string;
  scopes: string[];
  /** The only database that it may use, if it is bound to one. */
  database: string | null;
  /** The organization's default when one signed in: where it is another one later, the page stays in this one. */
  defaultDatabase: string | null;
  organization: { id: string; name: string; tier: string };
  dataUrl: string;
  controlUrl: string;
  version: string;
  /** The key that was made for this session alone, if one signed in by a link. It ends with the session. */
  ownKey: string | null;
}

/** Why the last session ended, for the page where one signs in. */
export type Ended = "" | "signed out" | "forgotten" | "refused" | "expired";

const KEY = "plainsql.session";
// A tab that is duplicated gets a copy of the session. What ends it in one ends it in all.
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("plainsql.session") : undefined;

const read = (): Session | undefined => {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Session | null;
    return found && Date.parse(found.expiresAt) > Date.now() ? found : undefined;
  } catch {
    return undefined;
  }
};

export const session = store<Session | undefined>(read());
export const ended = store<Ended>("");
/** What to say if the last session could not be ended at the service. */
export const leftOver = store("");

export const keep = (next: Session): void => {
  const before = session.get();
  const isExtended = before?.id === next.id && isLater(next.expiresAt, before.expiresAt);
  if (isExtended) channel?.postMessage({ id: next.id, expiresAt: next.expiresAt });
  ended.set("");
  sessionStorage.setItem(KEY, JSON.stringify(next));
  session.set(next);
};

const isLater = (one: string, other: string): boolean => Date.parse(one) > Date.parse(other);

/** Forgets the session in this tab. */
const forget = (why: Ended): void => {
  sessionStorage.removeItem(KEY);
  ended.set(why);
  session.set(undefined);
};

/** Forgets the session in all tabs, unless it is no longer the one with this token. */
export const end = (why: Ended, token?: string): void => {
  const current = session.get();
  if (!current || (token !== undefined && token !== current.token)) return;
  channel?.postMessage({ id: current.id, why });
  forget(why);
};

/** Forgets an expired session in this tab only: another one may have extended it. */
export const expire = (): void => {
  const here = session.get();
  if (here && Date.parse(here.expiresAt) <= Date.now()) forget("expired");
};

type Heard = { id: string; why: Ended } | { id: string; expiresAt: string };

channel?.addEventListener("message", ({ data }: MessageEvent<Heard>) => {
  const here = session.get();
  if (here?.id !== data.id) return;
  if ("why" in data) return forget(data.why);
  if (!isLater(data.expiresAt, here.expiresAt)) return;
  const next = { ...here, expiresAt: data.expiresAt };
  sessionStorage.setItem(KEY, JSON.stringify(next));
  session.set(next);
});

// A session that is in use is extended in its second half.
const REFRESH_BELOW_MS = 12 * 3_600_000;

/** What to do with a session that ends in so many milliseconds. One that could not be extended just ends. */
export const dueOf = (leftMs: number, isFixed: boolean): "ask" | "refresh" | "check" => {
  if (leftMs <= 0) return "ask";
  return leftMs < REFRESH_BELOW_MS && !isFixed ? "refresh" : "check";
};

export const current = (): Session => {
  const found = session.get();
  if (!found) throw new Error("There is no session.");
  return found;
};

export const may = (scope: "read" | "write" | "admin"): boolean => session.get()?.scopes.includes(scope) ?? false;
