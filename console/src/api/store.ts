/** A value that components follow. */

import { useSyncExternalStore } from "react";

export interface Store<T> {
  get: () => T;
  set: (value: T) => void;
  update: (change: (value: T) => T) => void;
  follow: (listener: () => void) => () => void;
}

export const store = <T>(initial: T): Store<T> => {
  let value = initial;
  const listeners = new Set<() => void>();
  const set = (next: T) => {
    if (Object.is(next, value)) return;
    value = next;
    for (const listener of listeners) listener();
  };
  return {
    get: () => value,
    set,
    update: (change) => set(change(value)),
    follow: (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
};

export const useStore = <T>(followed: Store<T>): T => useSyncExternalStore(followed.follow, followed.get, followed.get);
