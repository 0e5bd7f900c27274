/** Calls of the control plane. Their types are made from its OpenAPI document. */

import type { components } from "./generated/control.ts";
import { request, type Wanted } from "./requests.ts";
import { current, type Ended, end, keep, type Session, session } from "./session.ts";

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
  const control = location.origin;
  const token = secret.startsWith("svc_s_") ? secret : await newToken(control, secret);
  const banner = await request<Models["BannerAnswer"]>(`${control}/`, { token });
  const caller = await request<Models["CallerAnswer"]>(`${control}/v1/organizations/current`, { token });
  const { id, expires_at: expiresAt, scopes, database } = caller.credential;
  keep({
    token,
    id,
    expiresAt: expiresAt ?? "",
    scopes,
    database,
    organization: caller.organization,
    dataUrl: banner.data_url,
    // The page's own address, which may be another name of the same host.
    controlUrl: control,
    version: banner.version,
  });
};

const newToken = async (control: string, key: string): Promise<string> => {
  const wanted = { method: "POST", body: {}, token: key } as const;
  return (await request<Models["NewSessionAnswer"]>(`${control}/v1/session`, wanted)).session.token;
};

/** Ends the session here and at the service. It is forgotten even if the service can't be reached. */
export const signOut = async (why: Ended = "signed out"): Promise<void> => {
  const { token, controlUrl } = current();
  end(why);
  await request(`${controlUrl}/v1/session`, { method: "DELETE", token }).catch(() => undefined);
};

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
  const { credential, organization } = await call<Models["CallerAnswer"]>("/v1/organizations/current");
  if (session.get()?.id !== before.id) return;
  const next: Session = { ...before, organization, expiresAt: credential.expires_at ?? before.expiresAt };
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
