/** Which page is shown: it is in the address, after the #. */

import { store } from "../api/store.ts";
import { answer, asked, mayLeave } from "./leaving.ts";

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

// The address of what is shown. While one is asked whether to leave it, the browser's own is another one.
let address = location.hash;

const arrive = () => {
  address = location.hash;
  place.set(read());
};
const stay = () => history.replaceState(null, "", address || location.pathname);

addEventListener("hashchange", () => {
  // Back again before one has answered.
  if (asked.get() && location.hash === address) answer(false);
  else mayLeave(arrive, stay);
});

/** Takes what is shown out of the address. */
export const leave = (): void => {
  history.replaceState(null, "", location.pathname);
  arrive();
};

export const go = (page: string, rest = ""): void => {
  location.hash = rest ? `/${page}/${encodeURIComponent(rest)}` : `/${page}`;
};
