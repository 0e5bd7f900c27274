/** Says what is lost, and asks, before what this browser has of one's work is removed. */

import { useState } from "react";
import { session } from "../api/session.ts";
import { count } from "../app/figures.ts";
import { hasUnsaved } from "../app/leaving.ts";
import { Button, Dialog } from "../app/parts.tsx";
import { unsaved } from "../schema/unsaved.ts";
import { forgetAll, storedIn } from "./forget.ts";

export const ForgetDialog = ({ close }: { close: () => void }) => {
  const [{ open, closed, ran, saved }] = useState(() => storedIn(localStorage));
  const title = session.get() ? "Sign out and forget" : "Forget";
  const lost = [
    open && count(open, "open tab"),
    closed && count(closed, "closed tab"),
    saved && count(saved, "saved query", "saved queries"),
    ran && count(ran, "statement in the history", "statements in the history"),
    (hasUnsaved() || unsaved.get().length > 0) && "changes that are not saved",
  ].filter((each) => typeof each === "string");
  return (
    <Dialog title={title} close={close}>
      <p>
        This signs out all tabs of the console in this browser, stops what runs in them, and removes what the console
        has stored here, of all organizations:
      </p>
      <ul className="lost">
        {lost.length === 0 ? <li>nothing but the session</li> : lost.map((each) => <li key={each}>{each}</li>)}
      </ul>
      <p>It can't be undone. Your databases don't change.</p>
      <p className="faint">
        The browser's own list of visited pages may have names of tables. The console can't change that list.
      </p>
      <div className="buttons">
        <Button onClick={close} autoFocus>
          Cancel
        </Button>
        <Button
          kind="danger"
          onClick={() => {
            close();
            forgetAll();
          }}
        >
          {title}
        </Button>
      </div>
    </Dialog>
  );
};
