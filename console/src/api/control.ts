/** Calls of the control plane. Their types are made from its OpenAPI document. */

import { PlainSQLError } from "plainsql";
import type { components } from "./generated/control.ts";
import { request, textOf, type Wanted } from "./requests.ts";
import { current, type Ended, end, keep, leftOver, type Session, session } from "./session.ts";

type Models = components["schemas"];
export type Database = Models["Database"];
export type Key = Models["Key"];
export type NewKey = Models["NewKey"];
export type Usage = Models["Usage"];
export type AuditEntry = Models["AuditEntry"];
export type Health = Models["HealthAnswer"];

const call = <T>(path: string, wanted?: Wanted): Promise<T> => request<T>(current().controlUrl + path, wanted);

/** Exchanges a key for a session of 24 hours, which it keeps. Takes the token of a session as well. */
export const signIn = async (secret: string): Promise<void> => {
  const token = secret.startsWith("svc_s_") ? secret : await newToken(location.origin, secret);
  keep(await sessionOf(token, null));
};

const LINK_USED =
  "This link no longer signs you in: it works once, and for 10 minutes. Sign in with the API key, or start" +
  " plainsql-server dev again, which shows another link.";
const LINK_STAYED =
  "The link has not signed you in, and can't be used again. Start plainsql-server dev again, which shows another one.";
const OWN_KEY = "web console, by a link";
const OWN_KEY_MS = 24 * 3_600_000;

/**
 * Exchanges the token of a link for a session. A session can't make another one, and ends with its key. So this makes a
 * key of 24 hours. Its secret is not kept, and it is revoked at sign-out. A session that is there ends only if `mayEnd`
 * says so, which is asked last.
 */
export const signInByLink = async (link: string, mayEnd: () => Promise<boolean>): Promise<void> => {
  const control = location.origin;
  const byLink = <T>(path: string, wanted: Wanted = {}): Promise<T> =>
    request<T>(control + path, { ...wanted, token: link }).catch((error) => {
      throw error instanceof PlainSQLError && error.status === 401 ? new Error(LINK_USED) : error;
    });
  const { credential } = await byLink<Models["CallerAnswer"]>("/v1/organizations/current");
  const expiresAt = new Date(Date.now() + OWN_KEY_MS).toISOString();
  const body = { name: OWN_KEY, scopes: credential.scopes, expires_at: expiresAt };
  const { key } = await byLink<Models["NewKeyAnswer"]>("/v1/keys", { method: "POST", body });
  try {
    // First: once someone is signed in, the link must not work any more.
    await byLink("/v1/session", { method: "DELETE" });
    const next = await sessionOf(await newToken(control, key.secret), key.id);
    if (session.get() && !(await mayEnd())) throw new Error(LINK_STAYED);
    if (session.get()) await signOut();
    keep(next);
  } catch (error) {
    await request(`${control}/v1/keys/${key.id}`, { method: "DELETE", token: key.secret }).catch(() => undefined);
    throw error;
  }
};

const sessionOf = async (token: string, ownKey: string | null): Promise<Session> => {
  const control = location.origin;
  const banner = await request<Models["BannerAnswer"]>(`${control}/`, { token });
  const caller = await request<Models["CallerAnswer"]>(`${control}/v1/organizations/current`, { token });
  const { id, expires_at: expiresAt, scopes, database } = caller.credential;
  return {
    token,
    id,
    expiresAt: expiresAt ?? "",
    scopes,
    database,
    defaultDatabase: caller.default_database,
    organization: caller.organization,
    dataUrl: banner.data_url,
    // The page's own address, which may be another name of the same host.
    controlUrl: control,
    version: banner.version,
    ownKey,
  };
};

const newToken = async (control: string, key: string): Promise<string> => {
  const wanted = { method: "POST", body: {}, token: key } as const;
  return (await request<Models["NewSessionAnswer"]>(`${control}/v1/session`, wanted)).session.token;
};

/** Ends the session here and at the service. It is forgotten even if the service can't be reached, which is then said. */
export const signOut = async (why: Ended = "signed out"): Promise<void> => {
  const { token, controlUrl, ownKey, expiresAt } = current();
  leftOver.set("");
  end(why);
  // The session ends with its key.
  const path = ownKey === null ? "/v1/session" : at("/v1/keys", ownKey);
  try {
    await request(controlUrl + path, { method: "DELETE", token });
  } catch (error) {
    if (!hasEnded(error)) leftOver.set(leftOverText(expiresAt, textOf(error)));
  }
};

/** Whether there is nothing left to end. */
const hasEnded = (error: unknown): boolean =>
  error instanceof PlainSQLError && (error.status === 401 || error.status === 404);

const leftOverText = (expiresAt: string, reason: string): string =>
  `The session could not be ended at the service, where it is valid until ${new Date(expiresAt).toLocaleString("en")}.` +
  ` This browser has forgotten it. To end it sooner, revoke the API key. ${reason}`;

/** Extends the session. Whether it now ends later. */
export const refresh = async (): Promise<boolean> => {
  const before = current();
  const { session: after } = await call<Models["SessionAnswer"]>("/v1/session/refresh", { method: "POST" });
  if (session.get()?.id === before.id) keep({ ...before, expiresAt: after.expires_at });
  return Date.parse(after.expires_at) > Date.parse(before.expiresAt);
};

/** Asks whether the session is still valid. If it is not, it ends. */
export const check = async (): Promise<void> => {
  const before = current();
  const { credential, organization, ...caller } = await call<Models["CallerAnswer"]>("/v1/organizations/current");
  if (session.get()?.id !== before.id) return;
  const expiresAt = credential.expires_at ?? before.expiresAt;
  // The first database may be made later.
  const defaultDatabase = before.defaultDatabase ?? caller.default_database;
  const next: Session = { ...before, organization, expiresAt, defaultDatabase };
  if (JSON.stringify(next) !== JSON.stringify(session.get())) keep(next);
};

/** All pages of a list, up to a number of entries. */
const all = async <T>(path: string, name: string, most = 5_000): Promise<T[]> => {
  const found: T[] = [];
  let cursor: string | null = "";
  while (cursor !== null && found.length < most) {
    const separator: string = path.includes("?") ? "&" : "?";
    const more: string = cursor && `&cursor=${encodeURIComponent(cursor)}`;
    const page: Record<string, unknown> = await call(`${path}${separator}limit=1000${more}`);
    found.push(...(page[name] as T[]));
    cursor = page.next as string | null;
  }
  return found;
};

const at = (path: string, id: string): string => `${path}/${encodeURIComponent(id)}`;

export const listDatabases = (): Promise<Database[]> => all("/v1/databases", "databases");

export const createDatabase = async (name: string): Promise<Database> =>
  (await call<Models["DatabaseAnswer"]>("/v1/databases", { method: "POST", body: { name } })).database;

export const changeDatabase = async (id: string, change: { name?: string; default?: true }): Promise<Database> =>
  (await call<Models["DatabaseAnswer"]>(at("/v1/databases", id), { method: "PATCH", body: change })).database;

export const deleteDatabase = async (id: string): Promise<Database> =>
  (await call<Models["DatabaseAnswer"]>(at("/v1/databases", id), { method: "DELETE" })).database;

export const restoreDatabase = async (id: string): Promise<Database> =>
  (await call<Models["DatabaseAnswer"]>(`${at("/v1/databases", id)}/restore`, { method: "POST" })).database;

export const listKeys = (): Promise<Key[]> => all("/v1/keys", "keys");

export const createKey = async (body: Models["KeyBody"]): Promise<NewKey> =>
  (await call<Models["NewKeyAnswer"]>("/v1/keys", { method: "POST", body })).key;

export const rotateKey = async (id: string, overlapSeconds: number): Promise<NewKey> => {
  const body = { overlap_seconds: overlapSeconds };
  return (await call<Models["RotationAnswer"]>(`${at("/v1/keys", id)}/rotate`, { method: "POST", body })).key;
};

export const revokeKey = (id: string): Promise<void> => call(at("/v1/keys", id), { method: "DELETE" });

export const listUsage = (from: string, to: string): Promise<Usage[]> =>
  all(`/v1/usage?from=${from}&to=${to}`, "usage", 20_000);

export const auditPage = (cursor: string | null): Promise<Models["AuditAnswer"]> =>
  call(`/v1/audit?limit=200${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);

export const controlHealth = (): Promise<Health> => call("/health");
