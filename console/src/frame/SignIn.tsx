/** The page where one signs in, which is also where one comes to when the session has ended. */

import { type FormEvent, useState } from "react";
import { signIn } from "../api/control.ts";
import { type Ended, ended, leftOver } from "../api/session.ts";
import { useStore } from "../api/store.ts";
import { Marked } from "../app/marked.tsx";
import { Button, Field, Problem, useWork } from "../app/parts.tsx";
import { unsaved, unsavedText } from "../schema/unsaved.ts";
import { ForgetDialog } from "./ForgetDialog.tsx";
import { storedIn } from "./forget.ts";
import { linkFault } from "./links.ts";

const WHY: Record<Ended, string> = {
  "": "",
  "signed out": "You have signed out. Your drafts and history are kept in this browser.",
  forgotten: "You have signed out, and nothing that you worked on is left in this browser.",
  refused: "The session was ended, or its key was revoked. Your drafts are kept.",
  expired: "The session has expired. Your drafts are kept.",
};

/** What is shown while a link signs one in who had no session. */
export const SigningIn = () => (
  <main className="sign-in">
    <p role="status">Signing in…</p>
  </main>
);

export const SignIn = () => {
  const [key, setKey] = useState("");
  const [isForgetOpen, setForgetOpen] = useState(false);
  const { isBusy, error, work } = useWork();
  const why = WHY[useStore(ended)];
  const fault = useStore(linkFault);
  const left = useStore(leftOver);
  const tables = useStore(unsaved);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    work(async () => {
      await signIn(key.trim());
      linkFault.set("");
      leftOver.set("");
      setKey("");
    });
  };
  return (
    <main className="sign-in">
      <form onSubmit={submit}>
        <h1>
          <span className="mark" aria-hidden="true" /> PlainSQL
        </h1>
        {fault && <Problem error={new Error(fault)} />}
        {left && <Problem error={new Error(left)} />}
        {why && !fault && (
          <p className="note" role="status">
            {why}
            {tables.length > 0 && (
              <>
                {" "}
                Kept in this tab: <Marked>{unsavedText(tables)}</Marked>. Sign in to the same organization to go on.
              </>
            )}
          </p>
        )}
        <Field
          label="API key"
          hint={
            <>
              It is exchanged for a session of 24 hours and not stored. <code>plainsql-server dev</code> shows where its
              key is, and a link that signs you in without it.
            </>
          }
        >
          <input
            type="password"
            name="key"
            value={key}
            onChange={(event) => setKey(event.target.value)}
            placeholder="svc_k_…"
            autoComplete="off"
            spellCheck={false}
            autoFocus
            required
          />
        </Field>
        <Button kind="main" type="submit" disabled={isBusy || !key.trim()}>
          {isBusy ? "Signing in…" : "Sign in"}
        </Button>
        <Problem error={error} />
        <p className="faint">
          <a href="/">Start page</a> · <a href="/docs">API reference</a>
        </p>
        {(tables.length > 0 || Object.values(storedIn(localStorage)).some(Boolean)) && (
          <p>
            <Button kind="link" onClick={() => setForgetOpen(true)}>
              Forget what is kept in this browser…
            </Button>
          </p>
        )}
      </form>
      {isForgetOpen && <ForgetDialog close={() => setForgetOpen(false)} />}
    </main>
  );
};
