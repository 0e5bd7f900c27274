/** What was run, and the queries that were saved, in localStorage. */

import type { Outcome } from "../api/data.ts";
import { finalOutcomeOf } from "../api/outcome.ts";
import { type Store, store } from "../api/store.ts";
import { isCut, type Ran, SHORT_MAX } from "./ran.ts";

export interface Saved {
  name: string;
  sql: string;
  at: number;
}

const RAN_MAX = 300;
// A browser keeps some five million characters, of which tabs need most. So of longer SQL, such as statements that load
// data, the last so many characters are kept whole, and of each other one its beginning.
const LONG_MAX = 1_000_000;
const BEGINNING_MAX = 1_000;

const cut = (ran: Ran): Ran => ({
  ...ran,
  length: ran.length ?? ran.sql.length,
  sql: ran.sql.slice(0, BEGINNING_MAX),
});

/** What is kept of the entries, the last one first. A text is kept whole, or is known to be cut. */
const kept = (all: readonly Ran[]): Ran[] => {
  let room = LONG_MAX;
  return all.slice(0, RAN_MAX).map((ran) => {
    const length = ran.length ?? ran.sql.length;
    if (length < SHORT_MAX || isCut(ran)) return ran;
    if (length > room) return cut(ran);
    room -= length;
    return { ...ran, length };
  });
};

/** The entries with the beginning only of each long text. What an older version has cut stays known to be cut. */
const shortened = (all: readonly Ran[]): Ran[] =>
  all.map((ran) => (ran.sql.length < SHORT_MAX || isCut(ran) ? ran : cut(ran)));

interface List<T> {
  all: Store<T[]>;
  /** Whether the browser has stored it. */
  write: (next: T[]) => boolean;
  /** Reads again what is stored. */
  read: () => void;
  /** Stores nothing from now on. */
  forget: () => void;
}

const HISTORY = "plainsql.history.";

const list = <T>(key: string): List<T> => {
  let isForgotten = false;
  const read = (): T[] => {
    try {
      return JSON.parse(localStorage.getItem(key) ?? "[]") as T[];
    } catch {
      return [];
    }
  };
  const all = store<T[]>(read());
  addEventListener("storage", (event) => {
    if (event.key === key) all.set(read());
  });
  const readAgain = () => isForgotten || all.set(read());
  const write = (next: T[]) => {
    if (isForgotten) return false;
    try {
      localStorage.setItem(key, JSON.stringify(next));
    } catch {
      return false;
    }
    all.set(next);
    return true;
  };
  const forget = () => {
    isForgotten = true;
    all.set([]);
  };
  return { all, write, read: readAgain, forget };
};

const parsed = (text: string | null): unknown => {
  try {
    return JSON.parse(text ?? "null");
  } catch {
    return null;
  }
};

/** Drops the older half of each history, to make room for what matters more. Whether there was anything to drop. */
export const halveHistories = (storage: Storage): boolean => {
  const keys = Array.from({ length: storage.length }, (_, i) => storage.key(i) ?? "");
  let hasDropped = false;
  for (const key of keys.filter((each) => each.startsWith(HISTORY))) {
    const ran = parsed(storage.getItem(key));
    if (!Array.isArray(ran) || ran.length === 0) continue;
    const half = JSON.stringify(ran.slice(0, Math.floor(ran.length / 2)));
    storage.removeItem(key);
    try {
      storage.setItem(key, half);
    } catch {
      // Then all of it goes.
    }
    hasDropped = true;
  }
  if (hasDropped) for (const each of known.values()) each.read();
  return hasDropped;
};

const known = new Map<string, History>();

/** The same for all who ask: two would overwrite each other's entries. */
export const historyOf = (organization: string): History => {
  const found = known.get(organization) ?? new History(organization);
  known.set(organization, found);
  return found;
};

/** Forgets those of all organizations. A run that ends later is not added. */
export const forgetHistories = (): void => {
  for (const each of known.values()) each.forgetAll();
  known.clear();
};

export class History {
  readonly #ran: List<Ran>;
  readonly #saved: List<Saved>;
  #isForgotten = false;

  constructor(organization: string) {
    this.#ran = list<Ran>(HISTORY + organization);
    this.#saved = list<Saved>(`plainsql.saved.${organization}`);
  }

  get ran(): Store<Ran[]> {
    return this.#ran.all;
  }

  get saved(): Store<Saved[]> {
    return this.#saved.all;
  }

  /** Reads again what was run. */
  read(): void {
    this.#ran.read();
  }

  forgetAll(): void {
    this.#isForgotten = true;
    this.#ran.forget();
    this.#saved.forget();
  }

  /** Adds an entry, or replaces the one with its id. */
  add(ran: Ran): void {
    const others = this.ran.get().filter(({ id }) => id === undefined || id !== ran.id);
    // Only what an older version has stored may be cut without its length.
    const next = kept([{ ...ran, length: ran.sql.length < SHORT_MAX ? undefined : ran.sql.length }, ...others]);
    if (this.#ran.write(next)) return;
    // Drafts matter more: where the browser stores no more, long texts go, and then the oldest entries. The key of a
    // write is needed however long its text is.
    const short = shortened(next);
    while (!this.#ran.write(short) && short.length > 0) short.length = Math.floor(short.length / 2);
  }

  /** Asks the service what became of a write, by its key, and keeps the answer. */
  async ask({ key = "", database, at }: Ran): Promise<Outcome> {
    const effect = await finalOutcomeOf(key, database, at);
    const decided = (each: Ran) => (each.key === key ? { ...each, effect, key: undefined } : each);
    if (effect !== "unknown") this.#ran.write(this.ran.get().map(decided));
    return effect;
  }

  clear(): void {
    this.#ran.write([]);
  }

  /** Whether another query is saved under the name. */
  replaces(name: string, sql: string): boolean {
    return this.saved.get().some((each) => each.name === name && each.sql !== sql);
  }

  /** Whether the browser has stored it. */
  save(name: string, sql: string): boolean {
    const others = this.saved.get().filter((each) => each.name !== name);
    const next = [...others, { name, sql, at: Date.now() }].sort((a, b) => a.name.localeCompare(b.name));
    while (!this.#saved.write(next)) if (this.#isForgotten || !halveHistories(localStorage)) return false;
    return true;
  }

  forget(name: string): void {
    this.#saved.write(this.saved.get().filter((each) => each.name !== name));
  }
}
