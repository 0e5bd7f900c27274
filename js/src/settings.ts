/** What `connect` accepts, and how it is checked. Nothing here reads the environment. */

import { PlainSQLError } from "./errors.js";
import type { Numbers } from "./values.js";

/** Returns a session's token. It is called for the first request, and again when the session has ended. */
export type SessionSource = () => string | Promise<string>;

export interface Settings extends Numbers {
  /**
   * The address of the data plane, such as `https://localhost:8400`. Or a connection URL, which also has the key and
   * the database: `plainsql://k:KEY@host:port/database`.
   */
  url: string;
  /** An API key. Never put one into a web page: use `session` there. */
  key?: string | undefined;
  /** A session's token, or a function that gets one. */
  session?: string | SessionSource | undefined;
  /** Name or id of the database; without it, the one of the key or the organization's default. */
  database?: string | undefined;
  /** How long a call may take, with all retries. 60,000 ms if you don't set it. */
  timeoutMs?: number | undefined;
  /** Used instead of the global `fetch`. */
  fetch?: typeof globalThis.fetch | undefined;
  /** Allows plain HTTP to another machine, which shows the key to everyone on the network. */
  insecure?: boolean | undefined;
}

/** Settings that were checked. `url` has no slash at its end. */
export interface Checked extends Settings {
  /** The key, the session's token, or a function that gets one. */
  credential: string | SessionSource;
  timeoutMs: number;
}

/** Checks the settings. Throws `PlainSQLError` with the code `invalid_settings`. */
export const check = (given: Settings | string): Checked => {
  const settings = typeof given === "string" ? { url: given } : given;
  let url: URL;
  try {
    // Not every browser finds the host in a URL with a scheme of our own.
    url = new URL(settings.url.replace(/^plainsql:/, "https:"));
  } catch {
    // Without the text: it may contain a key.
    throw invalid("The URL must be https://host:port or plainsql://k:KEY@host:port/database.");
  }
  const isInClear = url.protocol === "http:" || url.searchParams.get("tls") === "false";
  if (isInClear && !settings.insecure && !/^(localhost|.+\.localhost|127(\.\d+){3}|\[::1\])$/.test(url.hostname)) {
    throw invalid("Without TLS, the network can read the key. Use https://.");
  }
  const {
    key = decodeURIComponent(url.password),
    session,
    database = decodeURIComponent(url.pathname.slice(1)),
  } = settings;
  const credential = session ?? key;
  if (!credential || (session && key)) throw invalid("Pass a key or a session.");
  const address = `${isInClear ? "http" : "https"}://${url.host}`;
  return {
    ...settings,
    timeoutMs: settings.timeoutMs ?? 60_000,
    credential,
    database: database || undefined,
    url: address,
  };
};

const invalid = (message: string): PlainSQLError => new PlainSQLError({ code: "invalid_settings", message });
