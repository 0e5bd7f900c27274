/** Asks before what is not saved is left. */

import { useEffect } from "react";
import { useStore } from "../api/store.ts";
import { answer, asked } from "./leaving.ts";
import { Button, Dialog } from "./parts.tsx";

export const LeaveDialog = () => {
  const question = useStore(asked);
  // It ends with the session.
  useEffect(() => () => answer(false), []);
  if (!question) return null;
  return (
    <Dialog title="Leave without saving?" close={() => answer(false)}>
      <p>What you have changed here is not saved yet. If you leave, it is lost.</p>
      <div className="buttons">
        <Button onClick={() => answer(false)} autoFocus>
          Stay
        </Button>
        <Button kind="danger" onClick={() => answer(true)}>
          Leave
        </Button>
      </div>
    </Dialog>
  );
};
