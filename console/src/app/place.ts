/** Which page is shown: it is in the address, after the #. */

import { store } from "../api/store.ts";

export interface Place {
  page: string;
  /** What follows the page, such as a table's name. */
  rest: string;
}

const read = (): Place => {
  const [page = "", ...rest] = location.hash.replace(/^#\/?/, "").replace(/\?.*$/, "").split("/");
  const text = rest.join("/");
  try {
    return { page: page || "query", rest: decodeURIComponent(text) };
  } catch {
    // An address that was cut off leads to its page, and to nothing on it.
    return { page, rest: text };
  }
};

export const place = store<Place>(read());

addEventListener("hashchange", () => place.set(read()));

/** Takes what is shown out of the address. */
export const leave = (): void => {
  history.replaceState(null, "", location.pathname);
  place.set(read());
};

export const go = (page: string, rest = ""): void => {
  location.hash = rest ? `/${page}/${encodeURIComponent(rest)}` : `/${page}`;
};
