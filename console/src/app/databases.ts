/** The databases that the session may use, and the one that is chosen. */

import { type Database, listDatabases } from "../api/control.ts";
import { may, session } from "../api/session.ts";
import { store } from "../api/store.ts";

/** Undefined until they are known. A session without the scope admin can't list them. */
export const databases = store<Database[] | undefined>(undefined);

/** The name of the chosen one. Empty: the organization's default. */
export const database = store("");

const key = (): string => `plainsql.database.${session.get()?.organization.id ?? ""}`;

export const choose = (name: string): void => {
  database.set(name);
  // What comes after the session's end would be stored for nobody.
  if (session.get()) sessionStorage.setItem(key(), name);
};

export const loadDatabases = async (): Promise<void> => {
  const current = session.get();
  if (!current) return;
  if (!may("admin")) {
    databases.set(undefined);
    choose(current.database ?? sessionStorage.getItem(key()) ?? "");
    return;
  }
  const found = await listDatabases();
  if (session.get()?.id !== current.id) return;
  databases.set(found);
  const usable = found.filter(({ state }) => state === "ready");
  const wanted = current.database ?? database.get() ?? "";
  const kept = wanted || sessionStorage.getItem(key()) || "";
  const fallback = usable.find((each) => each.default) ?? usable[0];
  choose(usable.find(({ name }) => name === kept)?.name ?? fallback?.name ?? "");
};
