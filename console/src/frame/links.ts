/**
 * Follows a link that signs one in. A session that is there, and what it shows, stay until the link has signed one in.
 * One who has something that is not saved is asked before, and again if there is more when the session is to end.
 */

import { signInByLink } from "../api/control.ts";
import { link, mayUseLinks } from "../api/link.ts";
import { textOf } from "../api/requests.ts";
import { leftOver, session } from "../api/session.ts";
import { store } from "../api/store.ts";
import { asked, heldUnsaved, mayLeave } from "../app/leaving.ts";
import { leave } from "../app/place.ts";
import { toast } from "../app/toast.tsx";
import { unsaved, unsavedText } from "../schema/unsaved.ts";

/** Why the last link did not sign one in. */
export const linkFault = store("");

const LINK_CUT = "A part of this link is missing. Copy the whole line that plainsql-server dev has printed.";

const LINK_ELSEWHERE = "A link signs you in to a service on your own computer only. Sign in with an API key.";

const drop = (token: string): void => {
  if (link.get() === token) link.set(undefined);
};

const fail = (text: string): void => {
  if (session.get()) toast(text, "danger");
  else linkFault.set(text);
};

/** All that would be lost with the session. */
const losses = (): unknown[] => [...heldUnsaved(), ...unsaved.get()];

/** Whether the session may end: one can go on working while the link signs one in, and is asked about what is new. */
const mayEnd = (agreed: readonly unknown[]): Promise<boolean> =>
  new Promise((resolve) => {
    if (losses().every((each) => agreed.includes(each))) {
      resolve(true);
      return;
    }
    mayLeave(() => resolve(true), undefined, unsavedText(unsaved.get()));
    // One who leaves by another way instead, such as the browser's way back, has not agreed either.
    const stop = asked.follow(() => {
      if (asked.get()) return;
      stop();
      queueMicrotask(() => resolve(false));
    });
  });

const enter = async (token: string): Promise<void> => {
  const agreed = losses();
  try {
    await signInByLink(token, () => mayEnd(agreed));
    // What was shown was of another session.
    leave();
    if (leftOver.get()) toast(leftOver.get(), "danger");
    linkFault.set("");
  } catch (error) {
    fail(textOf(error));
  } finally {
    drop(token);
  }
};

export const followLink = (token: string): void => {
  const fault = mayUseLinks(location.hostname) ? !token && LINK_CUT : LINK_ELSEWHERE;
  if (fault) {
    fail(fault);
    drop(token);
    return;
  }
  mayLeave(
    () => void enter(token),
    () => drop(token),
    // Where no session ends, what was kept of the last one is what one signs in for.
    session.get() && unsavedText(unsaved.get()),
  );
};
