/** What the editor completes in each database. */

import type { Completions } from "../editor/codemirror.ts";
import { loadCompletions } from "../editor/schema.ts";

const RETRY_MS = 10_000;
const NONE: Completions = { schema: {}, functions: [] };

const catalogs = new Map<string, Promise<Completions>>();

const load = async (database: string): Promise<Completions> => {
  try {
    return await loadCompletions(database);
  } catch {
    // A statement will say what is wrong. Until then there is nothing to complete but keywords.
    setTimeout(() => catalogs.delete(database), RETRY_MS);
    return NONE;
  }
};

/** Loads it, if it is not known or `isChanged`. */
export const completionsOf = (database: string, isChanged = false): Promise<Completions> => {
  const known = catalogs.get(database);
  if (known && !isChanged) return known;
  const loading = load(database);
  catalogs.set(database, loading);
  return loading;
};

export const forgetCatalogs = (): void => catalogs.clear();
