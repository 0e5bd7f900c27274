/**
 * Links that carry SQL after the #, which browsers do not send. A link that was cut off on its way could still be SQL,
 * such as a DELETE without its WHERE. So its text has a check, which stands before it: without both, nothing is opened.
 */

import { store } from "../api/store.ts";

const PAGE = "#/query";
const LINK = /^#\/query\?check=([0-9a-f]{8})&sql=(.*)$/s;

/** Whether the address has a link of which a part is missing. It stays there. */
export const isIncomplete = store(false);

/** FNV-1a, for damage that is not on purpose. */
const checkOf = (sql: string): string => {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(sql)) hash = Math.imul(hash ^ byte, 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
};

/** What follows the page's address in a link. */
export const fragmentOf = (sql: string): string => {
  // A half of a character, which no address can hold, is written as the sign for it.
  const text = new TextDecoder().decode(new TextEncoder().encode(sql));
  // Where a text ends, programs take these for its punctuation, and leave them out of the link.
  const coded = encodeURIComponent(text).replaceAll(/[!'()*.~]/g, (each) => `%${each.charCodeAt(0).toString(16)}`);
  return `${PAGE}?check=${checkOf(text)}&sql=${coded}`;
};

export const linkTo = (sql: string): string => `${location.origin}${location.pathname}${fragmentOf(sql)}`;

/** The SQL of a fragment; null if it is a link of which a part is missing, undefined if it is no link. */
export const sharedIn = (fragment: string): string | null | undefined => {
  if (!fragment.startsWith(`${PAGE}?`)) return undefined;
  const [, check, coded = ""] = LINK.exec(fragment) ?? [];
  try {
    const sql = decodeURIComponent(coded);
    return check === checkOf(sql) ? sql : null;
  } catch {
    return null;
  }
};

/** The SQL of a link, which is then taken out of the address. */
export const takeShared = (): string | undefined => {
  const sql = sharedIn(location.hash);
  isIncomplete.set(sql === null);
  if (typeof sql !== "string") return undefined;
  history.replaceState(null, "", PAGE);
  return sql;
};
