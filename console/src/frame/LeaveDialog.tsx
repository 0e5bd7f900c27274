/** Asks before what is not saved is left. */

import { useEffect } from "react";
import { useStore } from "../api/store.ts";
import { answer, asked } from "../app/leaving.ts";
import { Marked } from "../app/marked.tsx";
import { Question } from "../app/parts.tsx";

export const LeaveDialog = () => {
  const question = useStore(asked);
  // It ends with the session.
  useEffect(() => () => answer(false), []);
  if (!question) return null;
  return (
    <Question title="Leave without saving?" stay="Stay" leave="Leave" answer={answer}>
      <p>What you have changed is not saved yet. If you leave, it is lost.</p>
      {question.others && (
        <p>
          In tables that are not shown: <Marked>{question.others}</Marked>.
        </p>
      )}
    </Question>
  );
};
