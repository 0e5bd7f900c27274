import { useEffect } from "react";
import { createRoot } from "react-dom/client";
import { forgetClient } from "./api/data.ts";
import { link } from "./api/link.ts";
import { session } from "./api/session.ts";
import { useStore } from "./api/store.ts";
import { Boundary } from "./app/Boundary.tsx";
import { forgetCatalogs } from "./editor/catalog.ts";
import { followLink } from "./frame/links.ts";
import { Shell } from "./frame/Shell.tsx";
import { SignIn, SigningIn } from "./frame/SignIn.tsx";
import "./app/theme.ts";
import { Toasts } from "./app/toast.tsx";
import { forgetAllRuns } from "./editor/running.ts";
import "./style.css";

// What was shown belongs to the session.
session.follow(() => {
  if (session.get()) return;
  forgetAllRuns();
  forgetCatalogs();
  forgetClient();
});

const Console = () => {
  const here = useStore(session);
  const token = useStore(link);
  useEffect(() => {
    if (token !== undefined) followLink(token);
  }, [token]);
  return (
    <Boundary what="The console">
      {here ? <Shell key={here.id} /> : token === undefined ? <SignIn /> : <SigningIn />}
      <Toasts />
    </Boundary>
  );
};

const root = document.getElementById("root");
if (root) createRoot(root).render(<Console />);
