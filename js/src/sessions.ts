/**
 * Sessions: tokens that stand for an API key for 24 hours or less, so that a web page needs no key. Your own server makes
 * one with `createSession` and gives its token to the page, which passes it to `connect`.
 */

import type { Client, Options } from "./client.js";
import { PlainSQLError } from "./errors.js";
import { camel, snake } from "./names.js";
import type { Call } from "./transport.js";

/** A session. `token` is in the response to `createSession` only. */
export interface Session {
  id: string;
  createdAt: string;
  expiresAt: string;
  scopes: string[];
  database: string | null;
  keyId: string;
}

/** What to limit a session to. Without them, it has the rights of the key, for 24 hours. */
export interface SessionOptions extends Pick<Options, "timeoutMs" | "signal"> {
  scopes?: readonly ("read" | "write" | "admin")[] | undefined;
  /** Bind the session to this database. */
  database?: string | undefined;
  /** 60 to 86,400. With less than 86,400, the session can't be refreshed. */
  expiresInSeconds?: number | undefined;
}

const PATH = "/v1/session";

/** Makes a session for the client's key. */
export const createSession = async (
  client: Client,
  { signal, timeoutMs, ...limits }: SessionOptions = {},
): Promise<Session & { token: string }> =>
  (await sendToControl(
    client,
    { path: PATH, body: JSON.stringify(snake(limits)) },
    { signal, timeoutMs },
  )) as Session & {
    token: string;
  };

/** Extends the client's session by 24 hours. */
export const refreshSession = async (client: Client, options: Options = {}): Promise<Session> =>
  (await sendToControl(client, { path: `${PATH}/refresh`, method: "POST" }, options)) as Session;

/** Ends the client's session: its token is of no use any more. */
export const endSession = async (client: Client, options: Options = {}): Promise<void> => {
  await sendToControl(client, { path: PATH, method: "DELETE" }, options);
};

/** Sends a request to the control plane, whose address the data plane knows. */
const sendToControl = async (
  client: Client,
  call: Pick<Call, "path" | "method" | "body">,
  { signal, timeoutMs = 60_000 }: Options,
): Promise<Session | undefined> => {
  const common = { accept: "application/json", timeoutMs, signal };
  const banner = await client.send({ ...common, path: "/", isSafe: true });
  const { control_url } = banner.answer as unknown as { control_url: string | null };
  if (!control_url || (client.url.startsWith("https:") && !control_url.startsWith("https:"))) {
    const message = control_url
      ? `${control_url} doesn't use TLS.`
      : "The service doesn't say where its control plane is.";
    throw new PlainSQLError({ code: "invalid_settings", message, outcome: "not_executed" });
  }
  // Not sent again after a lost response: it would make another session, or extend it twice.
  const { answer } = await client.send({ ...common, ...call, path: control_url + call.path, isSafe: false });
  const session = answer?.session as object | undefined;
  return session && (camel(session) as unknown as Session);
};
