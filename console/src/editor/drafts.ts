/**
 * What is typed, kept in localStorage at every change, each tab under a name of its own: so two windows don't overwrite
 * each other's. A closed tab is kept, too, and can be opened again.
 */

import { store } from "../api/store.ts";
import type { Parameter } from "./parameters.ts";

export interface Draft {
  id: string;
  title: string;
  sql: string;
  parameters: Parameter[];
  createdAt: number;
  changedAt: number;
  closedAt: number | null;
}

const CLOSED_MAX = 50;

const known = new Map<string, Drafts>();

/** The same for all who ask, so that what could not be stored is not lost with a page. */
export const draftsOf = (organization: string): Drafts => {
  const found = known.get(organization) ?? new Drafts(organization);
  known.set(organization, found);
  return found;
};

/** The drafts of one organization in this browser. */
export class Drafts {
  readonly all = store<Draft[]>([]);
  readonly active = store("");
  /** Whether the browser refuses to store more. */
  readonly isFull = store(false);
  readonly #prefix: string;
  readonly #storage: Storage;

  constructor(organization: string, storage: Storage = localStorage) {
    this.#prefix = `plainsql.draft.${organization}.`;
    this.#storage = storage;
    this.#load();
  }

  get open(): Draft[] {
    return this.all.get().filter((draft) => draft.closedAt === null);
  }

  /** Takes over what another window has changed. */
  hear(key: string | null): void {
    if (key === null || key.startsWith(this.#prefix)) this.#load();
  }

  add(sql = "", title = ""): Draft {
    const now = Date.now();
    const id = `${now.toString(36)}${Math.random().toString(36).slice(2, 8)}`;
    const numbers = this.open.map((draft) => Number(/^Query (\d+)$/.exec(draft.title)?.[1] ?? 0));
    const named = title || `Query ${Math.max(0, ...numbers) + 1}`;
    const draft = { id, title: named, sql, parameters: [], createdAt: now, changedAt: now, closedAt: null };
    this.#write(draft);
    this.active.set(id);
    return draft;
  }

  change(id: string, change: Partial<Omit<Draft, "id">>): void {
    const draft = this.all.get().find((each) => each.id === id);
    if (draft) this.#write({ ...draft, ...change, changedAt: Date.now() });
  }

  /** Closes a tab. Its neighbour becomes the active one; there is always one. */
  close(id: string): void {
    const open = this.open;
    const at = open.findIndex((draft) => draft.id === id);
    const draft = open[at];
    if (!draft) return;
    if (draft.sql.trim()) this.change(id, { closedAt: Date.now() });
    else this.#remove(id);
    const next = open[at + 1] ?? open[at - 1];
    if (!next) this.add();
    else if (this.active.get() === id) this.active.set(next.id);
    for (const old of this.closed.slice(CLOSED_MAX)) this.#remove(old.id);
  }

  /** The closed ones, the last one first. */
  get closed(): Draft[] {
    const found = this.all.get().filter((draft) => draft.closedAt !== null);
    return found.sort((a, b) => (b.closedAt ?? 0) - (a.closedAt ?? 0));
  }

  reopen(id: string): void {
    this.change(id, { closedAt: null });
    this.active.set(id);
  }

  #load(): void {
    const found: Draft[] = [];
    for (let i = 0; i < this.#storage.length; i += 1) {
      const key = this.#storage.key(i);
      if (!key?.startsWith(this.#prefix)) continue;
      try {
        found.push(JSON.parse(this.#storage.getItem(key) ?? "") as Draft);
      } catch {
        // Another program's.
      }
    }
    this.all.set(found.sort((a, b) => a.createdAt - b.createdAt));
    if (!this.open.length) this.add();
    if (!this.open.some((draft) => draft.id === this.active.get())) this.active.set(this.open.at(-1)?.id ?? "");
  }

  #write(draft: Draft): void {
    const others = this.all.get().filter((each) => each.id !== draft.id);
    this.all.set([...others, draft].sort((a, b) => a.createdAt - b.createdAt));
    try {
      this.#storage.setItem(this.#prefix + draft.id, JSON.stringify(draft));
      this.isFull.set(false);
    } catch {
      this.isFull.set(true);
    }
  }

  #remove(id: string): void {
    this.#storage.removeItem(this.#prefix + id);
    this.all.set(this.all.get().filter((draft) => draft.id !== id));
  }
}
