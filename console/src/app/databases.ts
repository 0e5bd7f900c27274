/** The databases that the session may use, and the one that is chosen. */

import { type Database, listDatabases } from "../api/control.ts";
import { may, session } from "../api/session.ts";
import { store, useStore } from "../api/store.ts";
import { hasUnsaved } from "./leaving.ts";

const key = (): string => `plainsql.database.${session.get()?.organization.id ?? ""}`;

/** The organization's default when one signed in. Requests name it: the default may be another one by now. */
export const defaultName = (): string => session.get()?.defaultDatabase ?? "";

/** What the session is bound to, or what was chosen before, or the default: it is needed before they are listed. */
const remembered = (): string => {
  const here = session.get();
  return here ? here.database || sessionStorage.getItem(key()) || defaultName() : "";
};

/** Undefined until they are known. A session without the scope admin can't list them. */
export const databases = store<Database[] | undefined>(undefined);

/** The name of the chosen one. Empty: the organization's default, of which the name is not known. */
export const database = store(remembered());

/** Keeps a default that was taken, so that one who signs in again stays in it. What a session is bound to is no choice. */
const keepTaken = (): void => {
  const here = session.get();
  if (here && !here.database && database.get()) sessionStorage.setItem(key(), database.get());
};
keepTaken();

let owner = session.get()?.id;

session.follow(() => {
  const id = session.get()?.id;
  if (id === owner) {
    // There was no database before. What is not saved is of the one without a name, and would go with it.
    if (!database.get() && !hasUnsaved()) database.set(remembered());
  } else {
    owner = id;
    databases.set(undefined);
    database.set(remembered());
  }
  keepTaken();
});

export const choose = (name: string): void => {
  database.set(name);
  // What comes after the session's end would be stored for nobody.
  if (session.get()) sessionStorage.setItem(key(), name);
};

let loads = 0;

/** Lists them. If none was chosen, the default is. A chosen one that isn't there any more is replaced by no other. */
export const loadDatabases = async (): Promise<void> => {
  const id = session.get()?.id;
  if (!id || !may("admin")) return;
  loads += 1;
  const load = loads;
  const found = await listDatabases();
  if (session.get()?.id !== id || load !== loads) return;
  databases.set(found);
  if (database.get() || hasUnsaved()) return;
  const usable = found.filter(({ state }) => state === "ready");
  const first = usable.find((each) => each.default) ?? usable[0];
  if (first) choose(first.name);
};

/** The last database that was renamed here. What is kept of it by name follows. */
export const renaming = store<{ before: string; after: string } | undefined>(undefined);

/** Follows a new name, so that the database that was chosen stays chosen. */
export const renamed = (before: string, after: string): void => {
  databases.update((all) => all?.map((each) => (each.name === before ? { ...each, name: after } : each)));
  if (database.get() === before) choose(after);
  renaming.set({ before, after });
};

/** Whether the chosen one can't be used: it was deleted, has another name now, or is not ready. */
export const isGone = (all: readonly Database[] | undefined, name: string): boolean =>
  Boolean(all && name) && !all?.some((each) => each.name === name && each.state === "ready");

/** What to say if the chosen one can't be used; empty if it can. */
export const goneText = (all: readonly Database[] | undefined, name: string): string =>
  isGone(all, name)
    ? `The database ${name} is not there any more, or is not ready. Choose another one at the top: nothing is run until then.`
    : "";

export const useGone = (): string => goneText(useStore(databases), useStore(database));
