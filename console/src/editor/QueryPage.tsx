/** The page for SQL: tabs, the editor, parameters and results. */

import { type RefObject, useEffect, useRef, useState } from "react";
import { current } from "../api/session.ts";
import { useStore } from "../api/store.ts";
import { copyText } from "../app/copy.ts";
import { database, databases, goneText, loadDatabases, useGone } from "../app/databases.ts";
import { duration } from "../app/figures.ts";
import { marked } from "../app/marked.tsx";
import { Button, Menu } from "../app/parts.tsx";
import { remember } from "../app/remember.ts";
import { toast } from "../app/toast.tsx";
import { completionsOf } from "./catalog.ts";
import { RUN_KEY, type SqlEditor } from "./codemirror.ts";
import { type Draft, type Drafts, draftsOf } from "./drafts.ts";
import { HistoryPanel } from "./HistoryPanel.tsx";
import { historyOf } from "./history.ts";
import { Parameters } from "./Parameters.tsx";
import { valuesOf } from "./parameters.ts";
import { type Language, programFor } from "./programs.ts";
import { Results } from "./Results.tsx";
import { ranOf } from "./ran.ts";
import type { Mode, Shown } from "./run.ts";
import { isRunning, runs, start, type Wanted } from "./running.ts";
import { SqlField } from "./SqlField.tsx";
import { isIncomplete, linkTo, takeShared } from "./share.ts";
import { type Found, paramCountOf, statementAt, statementsOf } from "./statements.ts";
import { queryPanel, Tabs } from "./Tabs.tsx";

const useDrafts = (): Drafts => {
  const organization = current().organization.id;
  const drafts = draftsOf(organization);
  useEffect(() => {
    const open = () => {
      const shared = takeShared();
      if (shared === undefined) return;
      drafts.add(shared, "Shared");
    };
    open();
    addEventListener("hashchange", open);
    return () => {
      removeEventListener("hashchange", open);
    };
  }, [drafts]);
  useStore(drafts.all);
  useStore(drafts.active);
  return drafts;
};

// The last run whose error was marked: when the page is shown again, it is not marked again.
let lastMarked = 0;

const STILL_RUNNING = "Still running. Cancel it first.";

export const QueryPage = () => {
  const drafts = useDrafts();
  const isFull = useStore(drafts.isFull);
  const isLinkIncomplete = useStore(isIncomplete);
  const history = historyOf(current().organization.id);
  const [isHistoryOpen, setHistoryOpen] = useState(false);
  const name = useStore(database);
  const gone = useGone();
  const all = useStore(runs);
  const editor = useRef<SqlEditor>(null);
  const historyButton = useRef<HTMLButtonElement>(null);
  const draft = drafts.open.find(({ id }) => id === drafts.active.get()) ?? drafts.open[0];
  const run = draft && all[draft.id];
  const isActive = run !== undefined && run.endedAt === null;

  // So that they are there when somebody types.
  useEffect(() => void completionsOf(name), [name]);

  // The caret goes where the error is.
  const failedAt = run?.failed?.offset;
  // biome-ignore lint/correctness/useExhaustiveDependencies: once for each run
  useEffect(() => {
    if (failedAt === undefined || !run || run.id <= lastMarked) return;
    lastMarked = run.id;
    // Who has typed on meanwhile keeps the focus and the caret.
    if (editor.current?.text === run.text) editor.current.markFailed(failedAt);
  }, [run?.id, failedAt]);

  if (!draft) return null;

  const begin = (mode: Mode, found: Found[]) => {
    if (isRunning(draft.id)) return toast(STILL_RUNNING);
    // As it is now: a key may be pressed before the page is drawn again.
    const chosen = database.get();
    const fault = goneText(databases.get(), chosen);
    if (fault) {
      // It may be ready by now.
      loadDatabases().catch(() => undefined);
      return toast(fault, "danger");
    }
    if (found.length === 0) return toast("There is no statement here.");
    let statements: Wanted["statements"];
    try {
      statements = found.map((each) => ({ found: each, params: valuesOf(draft.parameters, each.params) }));
    } catch (error) {
      return toast((error as Error).message, "danger");
    }
    editor.current?.clearFailed();
    const text = editor.current?.text ?? draft.sql;
    start({ draft: draft.id, mode, database: chosen, statements, text }, (done) => {
      const ran = ranOf(
        done,
        found.map(({ sql }) => sql),
      );
      history.add(ran);
      if (/\b(create|alter|drop)\b/i.test(ran.sql)) void completionsOf(name, true);
    });
  };
  const wanted = (): Found[] => {
    const selection = editor.current?.selection;
    if (selection) {
      return statementsOf(selection.text).map((each) => ({
        ...each,
        from: each.from + selection.from,
        to: each.to + selection.from,
      }));
    }
    const found = statementAt(editor.current?.text ?? draft.sql, editor.current?.cursor ?? 0);
    return found ? [found] : [];
  };
  const runWanted = () => {
    const found = wanted();
    begin(found.length > 1 ? "transaction" : "statement", found);
  };
  const runAll = () => begin("transaction", statementsOf(draft.sql));
  const stream = () => begin("stream", wanted().slice(0, 1));
  const rehearse = () => begin("rehearsal", editor.current?.selection ? wanted() : statementsOf(draft.sql));
  const explain = () => {
    const found = wanted().slice(0, 1);
    begin("explain", found[0]?.command === "explain" ? [] : found);
  };
  const format = async () => {
    const text = editor.current?.text ?? draft.sql;
    try {
      const { formatted } = await import("./format.ts");
      const isSame = drafts.active.get() === draft.id && editor.current?.text === text;
      // Loading takes a while, in which one may type on, or look at another tab.
      if (isSame) editor.current?.replace(formatted(text));
    } catch {
      toast("This SQL could not be formatted.", "danger");
    }
  };
  const streamAll = ({ sql, params }: Shown) => {
    const [found] = statementsOf(sql);
    if (!found || !run) return;
    const from = draft.sql.indexOf(sql);
    const moved = { ...found, from: Math.max(0, from) };
    // Where it was run, and only to read it again: what writes has taken effect already, and must not do so twice.
    const statements = [{ found: moved, params }];
    start(
      { draft: draft.id, mode: "stream", database: run.database, statements, text: draft.sql, isRead: true },
      () => undefined,
    );
  };
  const program = (language: Language) => {
    const [found] = wanted();
    if (!found) return toast("There is no statement here.");
    try {
      const params = valuesOf(draft.parameters, found.params);
      void copyText(programFor(language, { sql: found.sql, params }, current().dataUrl, name));
    } catch (error) {
      toast((error as Error).message, "danger");
    }
  };
  const save = () => {
    const title = prompt("Save this query as", draft.title);
    if (!title) return;
    if (history.replaces(title, draft.sql) && !confirm(`Replace the saved query “${marked(title)}”?`)) return;
    if (!history.save(title, draft.sql)) {
      return toast(
        "The browser's storage is full: the query is not saved. Delete saved queries that you no longer need.",
        "danger",
      );
    }
    drafts.change(draft.id, { title });
  };
  const paramCount = paramCountOf(statementsOf(draft.sql));

  return (
    <div className={isHistoryOpen ? "query with-panel" : "query"}>
      <div className="query-main">
        <Tabs drafts={drafts} />
        <div className="bar">
          {isActive ? (
            <Button kind="danger" onClick={run.abort}>
              Cancel
            </Button>
          ) : (
            <Button
              kind="main"
              onClick={runWanted}
              disabled={gone !== ""}
              title={`Run the statement at the cursor, or the selection (${RUN_KEY})`}
            >
              Run <kbd>{RUN_KEY}</kbd>
            </Button>
          )}
          <Menu
            label="More"
            items={[
              { label: "Run all in one transaction", hint: "Ctrl ⇧ ⏎", act: runAll },
              { label: "Run as a stream", hint: "Alt ⏎", act: stream },
              { label: "Rehearse: run, then roll back", act: rehearse },
              { label: "Explain: run, measure, roll back", act: explain },
              { label: "Format", hint: "Ctrl ⇧ F", act: () => void format() },
              { label: "Save query…", act: save },
              { label: "Copy link", act: () => void copyText(linkTo(draft.sql)) },
              { label: "Copy as curl", act: () => program("curl") },
              { label: "Copy as Python", act: () => program("Python") },
              { label: "Copy as JavaScript", act: () => program("JavaScript") },
            ]}
          />
          {isActive && <Clock from={run.startedAt} />}
          <span className="spring" />
          <Button ref={historyButton} aria-pressed={isHistoryOpen} onClick={() => setHistoryOpen(!isHistoryOpen)}>
            History
          </Button>
        </div>
        {gone && (
          <p className="problem" role="alert">
            {gone}
          </p>
        )}
        {isLinkIncomplete && (
          <p className="problem" role="alert">
            This link is incomplete: a part of its SQL is missing, so nothing was opened. Copy the whole link, or ask
            for it again.
          </p>
        )}
        {isFull && (
          <p className="problem" role="alert">
            The browser's storage is full, though the history was dropped: what you type now is only in this page. Copy
            it to a file, delete saved queries, or close large tabs, which then can't be opened again.
          </p>
        )}
        <Split
          panel={queryPanel(draft.id)}
          top={
            <SqlField
              id={draft.id}
              text={draft.sql}
              editor={editor}
              actions={{
                completions: () => completionsOf(name),
                change: (sql) => drafts.change(draft.id, { sql }),
                run: runWanted,
                runAll,
                stream,
                format: () => void format(),
              }}
            />
          }
          bottom={
            <>
              {paramCount > 0 && (
                <Parameters
                  count={paramCount}
                  parameters={draft.parameters}
                  change={(parameters) => drafts.change(draft.id, { parameters })}
                />
              )}
              <Results run={run} streamAll={streamAll} />
            </>
          }
        />
      </div>
      {isHistoryOpen && (
        <HistoryPanel
          history={history}
          drafts={drafts}
          open={(sql) => openIn(drafts, draft, sql, editor)}
          close={() => {
            setHistoryOpen(false);
            historyButton.current?.focus();
          }}
        />
      )}
    </div>
  );
};

/** In this tab if it is empty, else in a new one: nothing that was typed is replaced. */
const openIn = (drafts: Drafts, draft: Draft, sql: string, editor: RefObject<SqlEditor | null>) => {
  if (draft.sql.trim()) drafts.add(sql);
  else drafts.change(draft.id, { sql });
  editor.current?.focus();
};

const Clock = ({ from }: { from: number }) => {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 100);
    return () => clearInterval(timer);
  }, []);
  return <span className="clock">{duration(Math.max(1, now - from))}</span>;
};

const SPLIT_KEY = "plainsql.split";

interface SplitProps {
  top: React.ReactNode;
  bottom: React.ReactNode;
  panel: ReturnType<typeof queryPanel>;
}

/** Two parts, one above the other, with a line between them that can be moved. */
const Split = ({ top, bottom, panel }: SplitProps) => {
  const [percent, setPercent] = useState(Number(localStorage.getItem(SPLIT_KEY)) || 38);
  const host = useRef<HTMLDivElement>(null);
  const set = (next: number) => {
    const within = Math.max(12, Math.min(85, next));
    setPercent(within);
    remember(SPLIT_KEY, String(Math.round(within)));
  };
  const drag = (event: React.PointerEvent) => {
    event.preventDefault();
    const move = (moved: PointerEvent) => {
      const box = host.current?.getBoundingClientRect();
      if (box) set(((moved.clientY - box.top) / box.height) * 100);
    };
    const stop = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", stop);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
  };
  return (
    <div className="split" ref={host} {...panel}>
      <div className="split-top" style={{ flexBasis: `${percent}%` }}>
        {top}
      </div>
      <div
        className="split-line"
        role="separator"
        aria-label="Height of the editor"
        aria-orientation="horizontal"
        aria-valuenow={Math.round(percent)}
        aria-valuemin={12}
        aria-valuemax={85}
        tabIndex={0}
        onPointerDown={drag}
        onKeyDown={({ key }) => {
          if (key === "ArrowUp") set(percent - 4);
          if (key === "ArrowDown") set(percent + 4);
          if (key === "Home") set(0);
          if (key === "End") set(100);
        }}
      />
      <div className="split-bottom">{bottom}</div>
    </div>
  );
};
