/** What was run, saved queries, and closed tabs. */

import { useState } from "react";
import { useStore } from "../api/store.ts";
import { ago, duration } from "../app/figures.ts";
import { Marked } from "../app/marked.tsx";
import { Button, Search, TabList, tabPanel, useWork } from "../app/parts.tsx";
import { toast } from "../app/toast.tsx";
import type { Drafts } from "./drafts.ts";
import type { History } from "./history.ts";
import { cutText, isCut, isGood, type Ran, wordsOf } from "./ran.ts";
import { runs } from "./running.ts";

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
  const active = Object.values(useStore(runs)).filter(({ endedAt }) => endedAt === null);
  /** Whether it runs in this page. */
  const isActive = ({ id, end }: Ran) => end === "sent" && active.some(({ entry }) => entry === id);
  const has = (sql: string) => sql.toLowerCase().includes(text.toLowerCase());
  return (
    <aside
      className="panel"
      aria-label="History"
      onKeyDown={(event) => event.key === "Escape" && !event.defaultPrevented && close()}
    >
      <div className="bar">
        <TabList label="Lists" panel="history-list" names={LISTS} chosen={list} choose={setList} />
        <span className="spring" />
        <Button kind="icon" aria-label="Close the history" onClick={close}>
          ×
        </Button>
      </div>
      <Search label="Search" value={text} change={setText} />
      <div className="tab-panel" {...tabPanel("history-list", LISTS.indexOf(list))}>
        <ul className="entries">
          {list === "Run" &&
            ran
              .filter(({ sql }) => has(sql))
              .map((each) => (
                <li key={each.id ?? `${each.at} ${each.sql.length}`}>
                  <button type="button" aria-disabled={isCut(each)} onClick={() => isCut(each) || open(each.sql)}>
                    <code>
                      <Marked>{each.sql.slice(0, 240)}</Marked>
                    </code>
                    {isCut(each) && <small>{cutText(each)}</small>}
                    <small>
                      {isActive(each) ? "Running" : <b className={isGood(each) ? "good" : "bad"}>{wordsOf(each)}</b>} ·{" "}
                      {each.end !== "sent" && `${duration(each.ms)} · `}
                      {each.database || "default database"} · {ago(each.at)}
                    </small>
                    {each.effect === "unknown" && !isActive(each) && (
                      <small>
                        Look at the data before you run it again.{each.key && ` Its idempotency key is ${each.key}.`}
                      </small>
                    )}
                  </button>
                  {each.effect === "unknown" && each.key && !isActive(each) && <Ask history={history} ran={each} />}
                </li>
              ))}
          {list === "Saved" &&
            saved
              .filter(({ sql, name }) => has(sql + name))
              .map((each) => (
                <li key={each.name}>
                  <button type="button" onClick={() => open(each.sql)}>
                    <b>
                      <Marked>{each.name}</Marked>
                    </b>
                    <code>
                      <Marked>{each.sql.slice(0, 240)}</Marked>
                    </code>
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
                    <b>
                      <Marked>{each.title}</Marked>
                    </b>
                    <code>
                      <Marked>{each.sql.slice(0, 240)}</Marked>
                    </code>
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
      </div>
    </aside>
  );
};

/** Asks what became of a write whose response never came. */
const Ask = ({ history, ran }: { history: History; ran: Ran }) => {
  const { isBusy, work } = useWork();
  const ask = async () => {
    if ((await history.ask(ran)) === "unknown") toast("It is still unknown. Ask again later, or look at the data.");
  };
  return (
    <Button disabled={isBusy} onClick={() => work(ask)}>
      {isBusy ? "Asking…" : "Ask again"}
    </Button>
  );
};
