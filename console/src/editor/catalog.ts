/** What the editor completes in each database. */

import { type Completions, loadCompletions } from "./schema.ts";

const RETRY_MS = 10_000;

const catalogs = new Map<string, Promise<Completions>>();

/** Loads it, if it is not known or `isChanged`. */
export const completionsOf = (database: string, isChanged = false): Promise<Completions> => {
  const known = catalogs.get(database);
  if (known && !isChanged) return known;
  const loading = loadCompletions(database);
  catalogs.set(database, loading);
  void loading.then(({ isPartial }) => {
    // A statement will say what is wrong. Until it is asked for again, less is completed.
    if (isPartial) setTimeout(() => catalogs.get(database) === loading && catalogs.delete(database), RETRY_MS);
  });
  return loading;
};

export const forgetCatalogs = (): void => catalogs.clear();
