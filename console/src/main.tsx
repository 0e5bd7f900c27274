import { createRoot } from "react-dom/client";
import { forgetClient } from "./api/data.ts";
import { link } from "./api/link.ts";
import { session } from "./api/session.ts";
import { useStore } from "./api/store.ts";
import { Boundary } from "./app/Boundary.tsx";
import { forgetCatalogs } from "./app/catalog.ts";
import { Shell } from "./app/Shell.tsx";
import { LinkSignIn, SignIn } from "./app/SignIn.tsx";
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
  const hasLink = useStore(link) !== undefined;
  return (
    <Boundary what="The console">
      {hasLink ? <LinkSignIn /> : here ? <Shell key={here.id} /> : <SignIn />}
      <Toasts />
    </Boundary>
  );
};

const root = document.getElementById("root");
if (root) createRoot(root).render(<Console />);
