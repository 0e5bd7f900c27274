/** What is known of the tables of each database, for completion, the palette and the pages. */

import type { Table } from "../api/data.ts";
import { type Store, store } from "../api/store.ts";
import { loadFunctions, loadTables } from "../editor/schema.ts";

export interface Catalog {
  tables: Table[];
  functions: string[];
}

const catalogs = new Map<string, Store<Catalog | undefined>>();
const loading = new Set<string>();

export const schemaOf = (database: string): Store<Catalog | undefined> => {
  const known = catalogs.get(database) ?? store<Catalog | undefined>(undefined);
  catalogs.set(database, known);
  return known;
};

/** Loads it, if it is not known or `isChanged`. A failure leaves the editor without completion, and no more. */
export const loadTablesOnce = async (database: string, isChanged = false): Promise<void> => {
  const known = schemaOf(database);
  if (loading.has(database) || (known.get() && !isChanged)) return;
  loading.add(database);
  try {
    const tables = await loadTables(database);
    const functions = known.get()?.functions ?? (await loadFunctions(database).catch(() => []));
    known.set({ tables, functions });
  } catch {
    // A statement will say what is wrong.
  } finally {
    loading.delete(database);
  }
};

export const forgetCatalogs = (): void => catalogs.clear();
