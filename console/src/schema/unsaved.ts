/**
 * Changes of rows that are not saved when the session expires or is refused. They stay in memory, and one who signs in
 * again in the same tab goes on with them. They are values of an organization: no session of another one gets them, and
 * they are forgotten when such a session begins, and when one signs out.
 */

import { newKey, type Table } from "../api/data.ts";
import { mayBeForgotten } from "../api/outcome.ts";
import { current, ended, session } from "../api/session.ts";
import { type Store, store } from "../api/store.ts";
import { renaming } from "../app/databases.ts";
import { count } from "../app/figures.ts";
import { idOf } from "../app/relations.ts";
import { countOf, editsOf, type Pending } from "./edits.ts";
import type { Loaded } from "./pages.ts";
import type { Filter, From, Sort, Source } from "./statements.ts";

export interface Changes {
  pending: Pending;
  /** The key by which the service knows them, however often they are sent. Others have another one. */
  idempotencyKey: string;
  /** Whether they were sent, and no response has said what became of them. */
  isInDoubt: boolean;
  /** When they were first sent: those in doubt, or on their way. */
  sentAt: number;
  /** Whether they are being sent. */
  isBusy: boolean;
  /** What is typed for a new row that is not added yet, by the names of its columns. */
  typed: ReadonlyMap<string, string>;
  /** How many times changes were saved. */
  saves: number;
}

const NOTHING: ReadonlyMap<string, string> = new Map();

export const changesOf = (pending: Pending, saves = 0): Changes => ({
  pending,
  idempotencyKey: newKey(),
  isInDoubt: false,
  sentAt: 0,
  isBusy: false,
  typed: NOTHING,
  saves,
});

/** Changes those with a key. Their response may come late, when they were discarded, and there are others. */
export const updateSent = (changes: Store<Changes>, key: string, next: (sent: Changes) => Changes): boolean => {
  const isSame = changes.get().idempotencyKey === key;
  if (isSame) changes.update(next);
  return isSame;
};

/** How many statements they are. */
export const sizeOf = ({ pending }: Changes): number => countOf(editsOf(pending));

export const isTyped = ({ typed }: Pick<Changes, "typed">): boolean => [...typed.values()].some((text) => text !== "");

/** Whether nothing would be lost with them. */
export const isEmpty = (changes: Changes): boolean => sizeOf(changes) === 0 && !isTyped(changes);

/** How many cells were changed and rows marked. What was typed into a row that is then deleted counts as well. */
const stepsOf = ({ updates, deletes }: Pending): number =>
  [...updates.values()].reduce((sum, changed) => sum + changed.size, deletes.size);

/** Whether they are easily made again: one cell, or one row that is to be deleted. Others are not discarded unasked. */
export const isSmall = ({ pending, isInDoubt }: Changes): boolean =>
  stepsOf(pending) < 2 && pending.inserts.length === 0 && !isInDoubt;

/** Whether they must not be sent again: the service may have forgotten their key, and would run them twice. */
export const isTooLate = ({ isInDoubt, sentAt }: Changes): boolean => isInDoubt && mayBeForgotten(sentAt);

/** Where changes belong. */
export interface Owner {
  organization: string;
  database: string;
  schema: string;
  table: string;
}

export const ownerOf = ({ schema, name }: Pick<Table, "schema" | "name">, database: string): Owner => ({
  organization: current().organization.id,
  database,
  schema,
  table: name,
});

/** Changes, and the rows among which they were made. */
export interface UnsavedTable {
  owner: Owner;
  changes: Store<Changes>;
  source: Source;
  filters: Filter[];
  sort: Sort | null;
  pages: From[];
  loaded: Loaded | undefined;
}

/** What is kept, of all tables. */
export const unsaved = store<readonly UnsavedTable[]>([]);

/** In words, what is kept of a table. */
export const wordsOf = ({ owner: { database, schema, table }, changes }: UnsavedTable): string => {
  const held = changes.get();
  const size = sizeOf(held);
  const what = [size > 0 && count(size, "change"), isTyped(held) && "a new row"].filter(Boolean).join(" and ");
  const where = `${database || "the default database"}: ${idOf({ schema, name: table })}`;
  return `${what} in ${where}, ${held.isInDoubt ? "perhaps saved" : "not saved"}`;
};

export const unsavedText = (all: readonly UnsavedTable[]): string => all.map(wordsOf).join("; ");

export const isOf = (one: Owner, other: Owner): boolean =>
  one.organization === other.organization &&
  one.database === other.database &&
  one.schema === other.schema &&
  one.table === other.table;

const without = (owner: Owner) => unsaved.get().filter((each) => !isOf(each.owner, owner));

/** Called when a table is no longer shown: keeps its changes, unless one has left them, or has signed out. */
export const keepAtEnd = (next: UnsavedTable): void => {
  if (session.get() || !isKeptAfter(ended.get()) || isEmpty(next.changes.get())) return;
  // No one is there any more to see what becomes of them. If a response comes after all, it says so.
  next.changes.update((last) => (last.isBusy ? { ...last, isInDoubt: true } : last));
  unsaved.set([...without(next.owner), next]);
  // Their response may come late.
  const stop = next.changes.follow(() => {
    if (!unsaved.get().includes(next)) stop();
    else if (isEmpty(next.changes.get())) release(next.owner);
    else unsaved.set([...unsaved.get()]);
  });
};

const isKeptAfter = (why: string): boolean => why === "expired" || why === "refused";

/** What was kept of a table. */
export const unsavedOf = (owner: Owner): UnsavedTable | undefined =>
  unsaved.get().find((each) => isOf(each.owner, owner));

/** Called when a table shows them again, and when they are discarded. */
export const release = (owner: Owner): void => unsaved.set(without(owner));

const NO_ONE: readonly UnsavedTable[] = [];

session.follow(() => {
  const here = session.get();
  if (here && unsaved.get().some(({ owner }) => owner.organization !== here.organization.id)) unsaved.set(NO_ONE);
});
renaming.follow(() => {
  const { before, after } = renaming.get() ?? {};
  if (after === undefined || !unsaved.get().some(({ owner }) => owner.database === before)) return;
  // Each stays the same object: a late response is still for it.
  for (const each of unsaved.get()) if (each.owner.database === before) each.owner = { ...each.owner, database: after };
  unsaved.set([...unsaved.get()]);
});
ended.follow(() => {
  if (["signed out", "forgotten"].includes(ended.get())) unsaved.set(NO_ONE);
});

// The browser asks in its own words.
globalThis.addEventListener?.("beforeunload", (event) => {
  if (unsaved.get().length > 0) event.preventDefault();
});
