/** Changes that outlasted a session, of tables that are not shown: what leads to them, and what discards them. */

import { useState } from "react";
import { useStore } from "../api/store.ts";
import { Marked } from "../app/marked.tsx";
import { Button, Question } from "../app/parts.tsx";
import { isOf, type Owner, release, type UnsavedTable, unsaved, wordsOf } from "./unsaved.ts";

interface Props {
  /** The table whose rows are shown, which shows its own. */
  shown: Owner | undefined;
  open: (owner: Owner) => void;
}

export const UnsavedElsewhere = ({ shown, open }: Props) => {
  const [asked, ask] = useState<UnsavedTable>();
  const others = useStore(unsaved).filter(({ owner }) => !shown || !isOf(owner, shown));
  return (
    <>
      {others.map((each) => {
        const text = wordsOf(each);
        return (
          <div key={text} className="note bar">
            <span>
              Still here: <Marked>{text}</Marked>.
            </span>
            <Button onClick={() => open(each.owner)}>Open the table</Button>
            <Button onClick={() => ask(each)}>Discard…</Button>
          </div>
        );
      })}
      {asked && (
        <Question
          title="Discard what is still here?"
          stay="Keep it"
          leave="Discard"
          answer={(isLeaving) => {
            ask(undefined);
            if (isLeaving) release(asked.owner);
          }}
        >
          <p>
            <Marked>{wordsOf(asked)}</Marked>. It can't be brought back.
          </p>
        </Question>
      )}
    </>
  );
};
