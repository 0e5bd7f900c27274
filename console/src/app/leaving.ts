/** What is not saved yet, and the question before it is left. */

import { useCallback, useLayoutEffect, useRef } from "react";
import { store } from "../api/store.ts";

/** What is to happen if one leaves, and if one stays. */
export interface Leaving {
  leave: () => void;
  stay: () => void;
  /** In words, what would be lost besides what is shown. */
  others: string;
}

/** The question that waits for an answer. */
export const asked = store<Leaving | undefined>(undefined);

const unsaved = new Set<symbol>();

/** Leaves at once if nothing would be lost, neither of what is shown nor of `others`, and asks else. */
export const mayLeave = (leave: () => void, stay: () => void = () => undefined, others = ""): void => {
  if (unsaved.size === 0 && !others) {
    leave();
    return;
  }
  const before = asked.get();
  // There is one question: who stays, stays where all of them would have led away from.
  asked.set({
    leave,
    stay: () => {
      before?.stay();
      stay();
    },
    others,
  });
};

/** Answers the question. */
export const answer = (isLeaving: boolean): void => {
  const found = asked.get();
  asked.set(undefined);
  if (isLeaving) found?.leave();
  else found?.stay();
};

/** Adds something that is not saved; returns what removes it. */
export const holdUnsaved = (): (() => void) => {
  const one = Symbol();
  unsaved.add(one);
  return () => void unsaved.delete(one);
};

export const hasUnsaved = (): boolean => unsaved.size > 0;

/** What is held as not saved: to know later whether there is more. */
export const heldUnsaved = (): symbol[] => [...unsaved];

/** Asks before a part is left, while it has something that is not saved. Returns what lets it go without a question. */
export const useUnsaved = (isUnsaved: boolean): (() => void) => {
  const release = useRef<() => void>(undefined);
  useLayoutEffect(() => {
    if (!isUnsaved) return;
    release.current = holdUnsaved();
    return () => release.current?.();
  }, [isUnsaved]);
  return useCallback(() => release.current?.(), []);
};

// The browser asks in its own words.
globalThis.addEventListener?.("beforeunload", (event) => {
  if (unsaved.size > 0) event.preventDefault();
});
