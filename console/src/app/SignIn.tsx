/** The page where one signs in, which is also where one comes to when the session has ended. */

import { type FormEvent, useState } from "react";
import { signIn } from "../api/control.ts";
import { type Ended, ended } from "../api/session.ts";
import { useStore } from "../api/store.ts";
import { ForgetDialog } from "./ForgetDialog.tsx";
import { storedIn } from "./forget.ts";
import { Button, Field, Problem, useWork } from "./parts.tsx";

const WHY: Record<Ended, string> = {
  "": "",
  "signed out": "You have signed out. Your drafts and history are kept in this browser.",
  forgotten: "You have signed out, and nothing that you worked on is left in this browser.",
  refused: "The session was ended, or its key was revoked. Your drafts are kept.",
  expired: "The session has expired. Your drafts are kept.",
};

export const SignIn = () => {
  const [key, setKey] = useState("");
  const [isForgetOpen, setForgetOpen] = useState(false);
  const { isBusy, error, work } = useWork();
  const why = WHY[useStore(ended)];
  const submit = (event: FormEvent) => {
    event.preventDefault();
    work(async () => {
      await signIn(key.trim());
      setKey("");
    });
  };
  return (
    <main className="sign-in">
      <form onSubmit={submit}>
        <h1>
          <span className="mark" aria-hidden="true" /> PlainSQL
        </h1>
        {why && (
          <p className="note" role="status">
            {why}
          </p>
        )}
        <Field
          label="API key"
          hint={
            <>
              It is exchanged for a session of 24 hours and not stored. <code>plainsql-server dev</code> shows where its
              key is.
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
        {Object.values(storedIn(localStorage)).some(Boolean) && (
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
