/**
 * The link with which `plainsql-server dev` signs one in, once. Its token stands after the #, which browsers don't send,
 * and is taken out of the address as soon as this module is loaded: it is in memory only until it is exchanged.
 */

import { store } from "./store.ts";

const PAGE = "#/sign-in";
const LINK = /^#\/sign-in\?token=(svc_s_[0-9A-Za-z]{38})$/;

/** The token of the link that was opened, empty if a part of it is missing; undefined without a link. */
export const link = store<string | undefined>(undefined);

/**
 * Whether a link may sign one in to a service on this host: only on this computer, as `dev` is. Elsewhere, anyone who has
 * a key could send a link by which others work in the sender's organization without knowing it.
 */
export const mayUseLinks = (hostname: string): boolean =>
  hostname === "localhost" || hostname === "[::1]" || /^127(\.\d{1,3}){3}$/.test(hostname);

const take = (event?: HashChangeEvent): void => {
  const { hash, pathname } = location;
  if (!hash.startsWith(PAGE)) return;
  // What is shown stays, with its address: the link may be of no use. This listener is the first one.
  event?.stopImmediatePropagation();
  history.replaceState(null, "", (event && new URL(event.oldURL).hash) || pathname);
  link.set(LINK.exec(hash)?.[1] ?? "");
};

take();
// In a tab that has the console already, the page is not loaded again.
addEventListener("hashchange", take);
