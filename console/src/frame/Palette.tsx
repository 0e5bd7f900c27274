/** The command palette: every command by its name, and every table and function of the database. */

import { type KeyboardEvent, useEffect, useState } from "react";
import { Marked } from "../app/marked.tsx";
import { Dialog, Problem, useLoaded } from "../app/parts.tsx";
import { find } from "./found.ts";
import { afterWait, type Command, firstOf, matching, onEnter } from "./matching.ts";

interface Props {
  commands: readonly Command[];
  /** Whose tables and functions are found. Null if the session may not read them. */
  database: string | null;
  close: () => void;
}

const SHOWN_MAX = 60;

export const Palette = ({ commands, database, close }: Props) => {
  const [text, setText] = useState("");
  // The one that was moved to.
  const [at, setAt] = useState<number>();
  const loaded = useLoaded(async () => (database === null ? undefined : find(database)), `${database}`);
  // Set if Enter was pressed before the tables were there, with what stood first.
  const [waiting, setWaiting] = useState<{ first: string | undefined }>();
  const matches = matching([commands, loaded.value?.commands ?? []], text).slice(0, SHOWN_MAX);
  const found = matches.map(({ command }) => command);
  const chosen = found[Math.min(at ?? 0, found.length - 1)];
  // biome-ignore lint/correctness/useExhaustiveDependencies: the chosen one may be out of sight
  useEffect(() => {
    // In braces: what it returns is a promise in new browsers, and React would take it for something to call.
    document.querySelector(".palette [aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [at, text]);
  const act = (command: Command | undefined) => {
    close();
    command?.act();
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: what is found belongs to what is loaded
  useEffect(() => {
    if (!waiting || loaded.isLoading) return;
    setWaiting(undefined);
    const next = afterWait(matches, loaded.value?.commands ?? [], waiting.first);
    if (next) act(next);
  }, [waiting, loaded.isLoading]);
  const enter = () => {
    const next = at === undefined ? onEnter(matches[0], loaded.isLoading) : "take";
    if (next === "take") act(chosen);
    else if (next === "wait") setWaiting({ first: firstOf(matches) });
  };
  const move = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      setAt(Math.max(0, Math.min(found.length - 1, (at ?? 0) + step)));
      setWaiting(undefined);
    } else if (event.key === "Enter") enter();
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title="Commands" close={close}>
      <div className="palette">
        <input
          type="text"
          role="combobox"
          aria-label="Command"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={chosen && `command-${found.indexOf(chosen)}`}
          placeholder="Type a command, a page, a database, a table or a function"
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            setAt(undefined);
            setWaiting(undefined);
          }}
          onKeyDown={move}
          autoFocus
        />
        <div id="palette-list" role="listbox" aria-label="Commands" className="palette-list">
          {found.map((command, i) => (
            <div
              key={`${command.name} ${command.hint}`}
              id={`command-${i}`}
              role="option"
              tabIndex={-1}
              aria-selected={command === chosen}
              className="palette-item"
              onClick={() => act(command)}
            >
              <span>
                <Marked>{command.name}</Marked>
              </span>{" "}
              {command.hint && <small>{command.hint}</small>}
            </div>
          ))}
        </div>
        {/* Always there, so that what it says is announced. */}
        <div className="faint" role="status">
          {(found.length === 0 || waiting) &&
            (loaded.isLoading ? "Looking for tables and functions…" : "There is no such command, table or function.")}
        </div>
        <Problem error={loaded.error} />
        {loaded.value?.missing && <p className="note">{loaded.value.missing}</p>}
      </div>
    </Dialog>
  );
};
