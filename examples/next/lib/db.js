// One client for all routes. It holds no connection, so it may live as long as the process.
import { connect } from "plainsql";

export const db = connect({
  url: process.env.PLAINSQL_URL,
  key: process.env.PLAINSQL_KEY,
  // Next 13 and 14 may cache results otherwise.
  fetch: (url, init) => fetch(url, { ...init, cache: "no-store" }),
});
