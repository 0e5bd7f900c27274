/** What was run, saved queries, and closed tabs. */

import { useState } from "react";
import { useStore } from "../api/store.ts";
import { ago, duration } from "../app/figures.ts";
import { Button, TabList } from "../app/parts.tsx";
import type { Drafts } from "./drafts.ts";
import type { History } from "./history.ts";
import { isGood, wordsOf } from "./ran.ts";

interface Props {
  history: History;
  drafts: Drafts;
  open: (sql: string) => void;
  close: () => void;
}

const LISTS = ["Run", "Saved", "Closed"] as const;

export const HistoryPanel = ({ history, drafts, open, close }: Props) => {
  const [list, setList] = useState<(typeof LISTS)[number]>("Run");
  const [text, setText] = useState("");
  const ran = useStore(history.ran);
  const saved = useStore(history.saved);
  const has = (sql: string) => sql.toLowerCase().includes(text.toLowerCase());
  return (
    <aside
      className="panel"
      aria-label="History"
      onKeyDown={(event) => event.key === "Escape" && !event.defaultPrevented && close()}
    >
      <div className="bar">
        <TabList label="Lists" names={LISTS} chosen={list} choose={setList} />
        <span className="spring" />
        <Button kind="icon" aria-label="Close the history" onClick={close}>
          ×
        </Button>
      </div>
      <input
        type="search"
        aria-label="Search"
        placeholder="Search"
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
      <ul className="entries">
        {list === "Run" &&
          ran
            .filter(({ sql }) => has(sql))
            .map((each) => (
              <li key={`${each.at} ${each.sql.length}`}>
                <button type="button" onClick={() => open(each.sql)}>
                  <code>{each.sql.slice(0, 240)}</code>
                  <small>
                    <b className={isGood(each) ? "good" : "bad"}>{wordsOf(each)}</b> · {duration(each.ms)} ·{" "}
                    {each.database || "default database"} · {ago(each.at)}
                  </small>
                  {each.effect === "unknown" && (
                    <small>
                      Look at the data before you run it again.{each.key && ` Its idempotency key is ${each.key}.`}
                    </small>
                  )}
                </button>
              </li>
            ))}
        {list === "Saved" &&
          saved
            .filter(({ sql, name }) => has(sql + name))
            .map((each) => (
              <li key={each.name}>
                <button type="button" onClick={() => open(each.sql)}>
                  <b>{each.name}</b>
                  <code>{each.sql.slice(0, 240)}</code>
                </button>
                <Button kind="icon" aria-label={`Delete ${each.name}`} onClick={() => history.forget(each.name)}>
                  ×
                </Button>
              </li>
            ))}
        {list === "Closed" &&
          drafts.closed
            .filter(({ sql }) => has(sql))
            .map((each) => (
              <li key={each.id}>
                <button type="button" onClick={() => drafts.reopen(each.id)}>
                  <b>{each.title}</b>
                  <code>{each.sql.slice(0, 240)}</code>
                </button>
              </li>
            ))}
      </ul>
      {list === "Run" && ran.length === 0 && (
        <p className="faint">What you run is listed here, in this browser only.</p>
      )}
      {list === "Saved" && saved.length === 0 && (
        <p className="faint">Save a query with “Save query…” in the menu “More”.</p>
      )}
      {list === "Closed" && drafts.closed.length === 0 && <p className="faint">Tabs that you close are kept here.</p>}
      {list === "Run" && ran.length > 0 && <Button onClick={() => history.clear()}>Clear</Button>}
    </aside>
  );
};
