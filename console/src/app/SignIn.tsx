/** The page where one signs in, which is also where one comes to when the session has ended. */

import { type FormEvent, useEffect, useState } from "react";
import { signIn, signInByLink } from "../api/control.ts";
import { link, mayUseLinks } from "../api/link.ts";
import { textOf } from "../api/requests.ts";
import { type Ended, ended, leftOver, session } from "../api/session.ts";
import { store, useStore } from "../api/store.ts";
import { ForgetDialog } from "./ForgetDialog.tsx";
import { storedIn } from "./forget.ts";
import { Button, Field, Problem, useWork } from "./parts.tsx";
import { toast } from "./toast.tsx";

const WHY: Record<Ended, string> = {
  "": "",
  "signed out": "You have signed out. Your drafts and history are kept in this browser.",
  forgotten: "You have signed out, and nothing that you worked on is left in this browser.",
  refused: "The session was ended, or its key was revoked. Your drafts are kept.",
  expired: "The session has expired. Your drafts are kept.",
};

/** Why the last link did not sign one in. */
const linkFault = store("");

const LINK_CUT = "A part of this link is missing. Copy the whole line that plainsql-server dev has printed.";

const LINK_ELSEWHERE = "A link signs you in to a service on your own computer only. Sign in with an API key.";

const enter = async (token: string): Promise<void> => {
  try {
    if (!mayUseLinks(location.hostname)) throw new Error(LINK_ELSEWHERE);
    if (!token) throw new Error(LINK_CUT);
    await signInByLink(token);
    if (leftOver.get()) toast(leftOver.get(), "danger");
    linkFault.set("");
  } catch (error) {
    // A session that was there before stays.
    if (session.get()) toast(textOf(error), "danger");
    else linkFault.set(textOf(error));
  } finally {
    if (link.get() === token) link.set(undefined);
  }
};

/** Signs in by the link that was opened. */
export const LinkSignIn = () => {
  const token = useStore(link) ?? "";
  useEffect(() => void enter(token), [token]);
  return (
    <main className="sign-in">
      <p role="status">Signing in…</p>
    </main>
  );
};

export const SignIn = () => {
  const [key, setKey] = useState("");
  const [isForgetOpen, setForgetOpen] = useState(false);
  const { isBusy, error, work } = useWork();
  const why = WHY[useStore(ended)];
  const fault = useStore(linkFault);
  const left = useStore(leftOver);
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
