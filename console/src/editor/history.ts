/** What was run, and the queries that were saved, in localStorage. */

import type { Outcome } from "../api/data.ts";
import { type Store, store } from "../api/store.ts";

export interface Ran {
  at: number;
  sql: string;
  database: string;
  /** "ok", or an error's code. */
  outcome: string;
  /** What it did to the data, if it failed or was cancelled. */
  effect?: Outcome | undefined;
  /** The key to ask by, if that is unknown. */
  key?: string | undefined;
  rows: number;
  ms: number;
}

export interface Saved {
  name: string;
  sql: string;
  at: number;
}

const RAN_MAX = 300;
// A statement that loads data is no use in a list.
const SQL_MAX = 20_000;

const list = <T>(key: string): { all: Store<T[]>; write: (next: T[]) => boolean } => {
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
  const write = (next: T[]) => {
    try {
      localStorage.setItem(key, JSON.stringify(next));
    } catch {
      return false;
    }
    all.set(next);
    return true;
  };
  return { all, write };
};

const known = new Map<string, History>();

/** The same for all who ask: two would overwrite each other's entries. */
export const historyOf = (organization: string): History => {
  const found = known.get(organization) ?? new History(organization);
  known.set(organization, found);
  return found;
};

export class History {
  readonly ran: Store<Ran[]>;
  readonly saved: Store<Saved[]>;
  readonly #writeRan: (next: Ran[]) => boolean;
  readonly #writeSaved: (next: Saved[]) => boolean;

  constructor(organization: string) {
    const ran = list<Ran>(`plainsql.history.${organization}`);
    const saved = list<Saved>(`plainsql.saved.${organization}`);
    [this.ran, this.#writeRan] = [ran.all, ran.write];
    [this.saved, this.#writeSaved] = [saved.all, saved.write];
  }

  add(ran: Ran): void {
    const next = [{ ...ran, sql: ran.sql.slice(0, SQL_MAX) }, ...this.ran.get()].slice(0, RAN_MAX);
    // Drafts matter more: where the browser stores no more, the oldest ones go.
    while (!this.#writeRan(next) && next.length > 0) next.length = Math.floor(next.length / 2);
  }

  clear(): void {
    this.#writeRan([]);
  }

  /** Whether the browser has stored it. */
  save(name: string, sql: string): boolean {
    const others = this.saved.get().filter((each) => each.name !== name);
    return this.#writeSaved([...others, { name, sql, at: Date.now() }].sort((a, b) => a.name.localeCompare(b.name)));
  }

  forget(name: string): void {
    this.#writeSaved(this.saved.get().filter((each) => each.name !== name));
  }
}
