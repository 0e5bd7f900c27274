/** The command palette: every command by its name. */

import { type KeyboardEvent, useEffect, useState } from "react";
import { Dialog } from "./parts.tsx";

export interface Command {
  name: string;
  hint?: string;
  act: () => void;
}

/** Commands whose names have all letters of the text, in this order; those where they are close together first. */
export const matching = (commands: readonly Command[], text: string): Command[] => {
  const wanted = text.toLowerCase().replaceAll(" ", "");
  const scored = commands.flatMap((command) => {
    const name = command.name.toLowerCase();
    let at = -1;
    let gaps = 0;
    for (const letter of wanted) {
      const next = name.indexOf(letter, at + 1);
      if (next < 0) return [];
      gaps += next - at - 1;
      at = next;
    }
    return [{ command, score: name.includes(text.toLowerCase()) ? -1000 + name.indexOf(text.toLowerCase()) : gaps }];
  });
  return scored.sort((a, b) => a.score - b.score).map(({ command }) => command);
};

export const Palette = ({ commands, close }: { commands: readonly Command[]; close: () => void }) => {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const found = matching(commands, text).slice(0, 60);
  const chosen = found[Math.min(at, found.length - 1)];
  // biome-ignore lint/correctness/useExhaustiveDependencies: the chosen one may be out of sight
  useEffect(() => {
    // In braces: what it returns is a promise in new browsers, and React would take it for something to call.
    document.querySelector(".palette [aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [at, text]);
  const act = (command: Command | undefined) => {
    close();
    command?.act();
  };
  const move = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) setAt(Math.max(0, Math.min(found.length - 1, at + step)));
    else if (event.key === "Enter") act(chosen);
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
          placeholder="Type a command, a page, a database or a table"
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            setAt(0);
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
              {command.name} {command.hint && <small>{command.hint}</small>}
            </div>
          ))}
          {found.length === 0 && <p className="faint">There is no such command.</p>}
        </div>
      </div>
    </Dialog>
  );
};
