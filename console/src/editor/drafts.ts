/**
 * What is typed, kept in localStorage at every change, each tab under a name of its own: so two windows don't overwrite
 * each other's. A closed tab is kept, too, and can be opened again.
 */

import { store } from "../api/store.ts";
import { halveHistories } from "./history.ts";
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
  const before = known.get(organization);
  if (before) return before;
  const found = new Drafts(organization);
  known.set(organization, found);
  addEventListener("storage", ({ key }) => found.hear(key));
  // The browser asks before it drops what is in this page only.
  addEventListener("beforeunload", (event) => found.isFull.get() && event.preventDefault());
  return found;
};

/** Forgets those of all organizations. What is still at work stores nothing more. */
export const forgetDrafts = (): void => {
  for (const each of known.values()) each.forget();
  known.clear();
};

/** The drafts of one organization in this browser. */
export class Drafts {
  readonly all = store<Draft[]>([]);
  readonly active = store("");
  /** Whether the browser refuses to store more. */
  readonly isFull = store(false);
  readonly #prefix: string;
  readonly #storage: Storage;
  // What a tab was before all of its text was deleted, in case that is undone.
  readonly #emptied = new Map<string, Draft>();
  // Those whose last change could not be stored.
  readonly #unstored = new Set<string>();
  #isForgotten = false;

  /** `tab` is what this browser tab keeps for itself: which draft is shown. */
  constructor(organization: string, storage: Storage = localStorage, tab: Storage = sessionStorage) {
    this.#prefix = `plainsql.draft.${organization}.`;
    this.#storage = storage;
    const key = `plainsql.active.${organization}`;
    this.active.set(tab.getItem(key) ?? "");
    this.#load();
    this.active.follow(() => {
      if (this.#isForgotten) return;
      try {
        tab.setItem(key, this.active.get());
      } catch {
        // After a reload, another tab is shown.
      }
    });
  }

  get open(): Draft[] {
    return this.all.get().filter((draft) => draft.closedAt === null);
  }

  /** Stores nothing from now on, and has nothing that a page could show. */
  forget(): void {
    this.#isForgotten = true;
    this.#unstored.clear();
    this.#emptied.clear();
    this.isFull.set(false);
    this.all.set([]);
  }

  /** Takes over what another window has changed. */
  hear(key: string | null): void {
    if (this.#isForgotten) return;
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
    if (!draft) return;
    const parameters = change.sql === undefined ? draft.parameters : this.#parametersOf(draft, change.sql);
    this.#write({ ...draft, parameters, ...change, changedAt: Date.now() });
  }

  /** Those of the text that replaces a draft's. What is typed into an empty tab has none of the text before. */
  #parametersOf(draft: Draft, sql: string): Parameter[] {
    if (draft.sql.trim() && sql.trim()) return draft.parameters;
    if (draft.sql.trim()) this.#emptied.set(draft.id, draft);
    const before = this.#emptied.get(draft.id);
    return before?.sql === sql ? before.parameters : [];
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
    this.#storeOthers();
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
    // What this page could not store is in this page only.
    const kept = this.all.get().filter(({ id }) => this.#unstored.has(id));
    const newer = (draft: Draft) => kept.find(({ id, changedAt }) => id === draft.id && changedAt >= draft.changedAt);
    const others = kept.filter(({ id }) => !found.some((draft) => draft.id === id));
    const all = [...found.map((draft) => newer(draft) ?? draft), ...others];
    this.all.set(all.sort((a, b) => a.createdAt - b.createdAt));
    if (!this.open.length) this.add();
    if (!this.open.some((draft) => draft.id === this.active.get())) this.active.set(this.open.at(-1)?.id ?? "");
  }

  #write(draft: Draft): void {
    if (this.#isForgotten) return;
    const others = this.all.get().filter((each) => each.id !== draft.id);
    this.all.set([...others, draft].sort((a, b) => a.createdAt - b.createdAt));
    this.#store(draft);
  }

  #store(draft: Draft): void {
    if (this.#put(draft)) this.#unstored.delete(draft.id);
    else this.#unstored.add(draft.id);
    this.isFull.set(this.#unstored.size > 0);
  }

  /** Whether the browser has stored it. What matters less goes until there is room for it. */
  #put(draft: Draft): boolean {
    const text = JSON.stringify(draft);
    for (;;) {
      try {
        this.#storage.setItem(this.#prefix + draft.id, text);
        return true;
      } catch {
        if (!this.#makeRoom(draft)) return false;
      }
    }
  }

  /** Drops the older half of what was run, then the tab that was closed first. Whether there was anything to drop. */
  #makeRoom({ id }: Draft): boolean {
    if (halveHistories(this.#storage)) return true;
    const oldest = this.closed.findLast((each) => each.id !== id);
    if (!oldest) return false;
    this.#drop(oldest.id);
    return true;
  }

  #drop(id: string): void {
    this.#storage.removeItem(this.#prefix + id);
    this.#unstored.delete(id);
    this.#emptied.delete(id);
    this.all.set(this.all.get().filter((draft) => draft.id !== id));
  }

  #remove(id: string): void {
    this.#drop(id);
    this.#storeOthers();
  }

  /** There may be room for them now. */
  #storeOthers(): void {
    for (const draft of this.open) if (this.#unstored.has(draft.id)) this.#store(draft);
    this.isFull.set(this.#unstored.size > 0);
  }
}
