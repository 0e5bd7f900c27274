/** The tabs of the editor. */

import { type KeyboardEvent, useState } from "react";
import { flushSync } from "react-dom";
import { Marked } from "../app/marked.tsx";
import { Button, tabPanel } from "../app/parts.tsx";
import type { Drafts } from "./drafts.ts";
import { forgetRun } from "./running.ts";

const QUERY_PANEL = "query-panel";

/** The attributes of what the tabs show. */
export const queryPanel = (draft: string) => ({ ...tabPanel(QUERY_PANEL, ""), "aria-labelledby": `tab-${draft}` });

export const Tabs = ({ drafts }: { drafts: Drafts }) => {
  const [renamed, rename] = useState("");
  const active = drafts.active.get();
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || renamed) return;
    const at = drafts.open.findIndex(({ id }) => id === active);
    const next = drafts.open[at + step];
    if (!next) return;
    drafts.active.set(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <div className="tab-strip">
      <div className="tabs" role="tablist" aria-label="Queries" onKeyDown={move}>
        {drafts.open.map(({ id, title }) =>
          id === renamed ? (
            <input
              key={id}
              className="tab-name"
              aria-label="Name of the tab"
              defaultValue={title}
              autoFocus
              onBlur={(event) => {
                drafts.change(id, { title: event.target.value.trim() || title });
                rename("");
              }}
              onKeyDown={(event) => {
                if (event.key !== "Enter" && event.key !== "Escape") return;
                if (event.key === "Escape") event.currentTarget.value = title;
                flushSync(() => event.currentTarget.blur());
                document.getElementById(`tab-${id}`)?.focus();
              }}
            />
          ) : (
            <button
              key={id}
              id={`tab-${id}`}
              type="button"
              role="tab"
              aria-controls={QUERY_PANEL}
              className="tab"
              aria-selected={id === active}
              tabIndex={id === active ? 0 : -1}
              title="Double-click or press F2 to rename"
              onKeyDown={(event) => event.key === "F2" && rename(id)}
              onClick={() => drafts.active.set(id)}
              onDoubleClick={() => rename(id)}
            >
              <Marked>{title}</Marked>
            </button>
          ),
        )}
      </div>
      <Button kind="icon" aria-label="New tab" title="New tab" onClick={() => drafts.add()}>
        +
      </Button>
      <Button
        kind="icon"
        aria-label="Close tab"
        title="Close tab. It can be opened again from the history"
        onClick={() => {
          forgetRun(active);
          drafts.close(active);
        }}
      >
        ×
      </Button>
    </div>
  );
};
