/** The organization's databases: create, rename, make default, delete and restore. */

import { useState } from "react";
import {
  changeDatabase,
  createDatabase,
  type Database,
  deleteDatabase,
  listDatabases,
  restoreDatabase,
} from "../api/control.ts";
import { choose, loadDatabases, renamed } from "../app/databases.ts";
import { bytes, moment } from "../app/figures.ts";
import { Button, Field, FormDialog, Menu, PageTable, Problem, useLoaded, useWork } from "../app/parts.tsx";
import { go } from "../app/place.ts";
import { toast } from "../app/toast.tsx";

type Asked = { what: "create" } | { what: "rename" | "delete"; database: Database };

const GOOD = new Set(["ready"]);
const BAD = new Set(["failed", "deleting", "deleted"]);

const HEAD = [
  "Name",
  "State",
  { text: "Size", isNumber: true },
  "Created (UTC)",
  "Id",
  { text: "Actions", isFaint: true },
];

export const DatabasesPage = () => {
  const { value, error, again } = useLoaded(listDatabases, "databases");
  const [asked, ask] = useState<Asked | null>(null);
  const { error: failed, work } = useWork();
  const act = (done: Promise<unknown>, text: string) =>
    work(async () => {
      await done;
      toast(text);
      again();
      await loadDatabases();
    });
  const itemsOf = (database: Database) => {
    const { id, name, state } = database;
    if (state === "deleting") {
      return database.restorable_until
        ? [{ label: "Restore", act: () => act(restoreDatabase(id), `${name} is restored.`) }]
        : [];
    }
    const isReady = state === "ready";
    return [
      ...(isReady ? [{ label: "Open in the editor", act: () => openIn(name) }] : []),
      ...(isReady ? [{ label: "Rename…", act: () => ask({ what: "rename", database }) }] : []),
      ...(isReady && !database.default
        ? [{ label: "Make default", act: () => act(changeDatabase(id, { default: true }), `${name} is the default.`) }]
        : []),
      { label: "Delete…", isDanger: true, act: () => ask({ what: "delete", database }) },
    ];
  };
  const shown = value?.filter(({ state }) => state !== "deleted") ?? [];
  return (
    <div className="page">
      <div className="page-head">
        <h1>Databases</h1>
        <span className="spring" />
        <Button kind="main" onClick={() => ask({ what: "create" })}>
          Create database
        </Button>
      </div>
      <Problem error={error ?? failed} />
      {value && shown.length === 0 && <p className="empty">There is no database yet. Create one to run SQL in it.</p>}
      {shown.length > 0 && (
        <PageTable label="Databases" head={HEAD}>
          {shown.map((database) => (
            <tr key={database.id}>
              <td>
                <b>{database.name}</b> {database.default && <span className="tag">default</span>}
              </td>
              <td>
                <span className={`tag ${GOOD.has(database.state) ? "good" : BAD.has(database.state) ? "bad" : ""}`}>
                  {database.state}
                </span>{" "}
                {database.state === "deleting" && database.restorable_until && (
                  <small>restorable until {moment(database.restorable_until)}</small>
                )}
              </td>
              <td className="number">{database.size_bytes === null ? "" : bytes(database.size_bytes)}</td>
              <td>{moment(database.created_at)}</td>
              <td>
                <code className="faint">{database.id}</code>
              </td>
              <td>
                <Menu label="Actions" describes={database.name} items={itemsOf(database)} />
              </td>
            </tr>
          ))}
        </PageTable>
      )}
      {asked?.what === "create" && (
        <NameDialog
          title="Create database"
          button="Create"
          name=""
          close={() => ask(null)}
          save={async (name) => {
            await createDatabase(name);
            toast(`${name} was created.`);
            again();
            await loadDatabases();
          }}
        />
      )}
      {asked?.what === "rename" && (
        <NameDialog
          title={`Rename ${asked.database.name}`}
          button="Rename"
          name={asked.database.name}
          close={() => ask(null)}
          save={async (name) => {
            await changeDatabase(asked.database.id, { name });
            renamed(asked.database.name, name);
            toast(`It is called ${name} now.`);
            again();
            await loadDatabases();
          }}
        />
      )}
      {asked?.what === "delete" && (
        <DeleteDialog
          database={asked.database}
          close={() => ask(null)}
          done={() => {
            again();
            void loadDatabases();
          }}
        />
      )}
    </div>
  );
};

const openIn = (name: string) => {
  choose(name);
  go("query");
};

interface NameProps {
  title: string;
  button: string;
  name: string;
  close: () => void;
  save: (name: string) => Promise<void>;
}

const NameDialog = ({ title, button, name, close, save }: NameProps) => {
  const [text, setText] = useState(name);
  return (
    <FormDialog title={title} button={button} isReady={text !== name} close={close} save={() => save(text.trim())}>
      <Field label="Name" hint="Lower-case letters, digits, - and _; the first is a letter.">
        <input
          type="text"
          value={text}
          onChange={(event) => setText(event.target.value)}
          pattern="[a-z][a-z0-9_\-]{0,62}"
          spellCheck={false}
          autoFocus
          required
        />
      </Field>
    </FormDialog>
  );
};

const DeleteDialog = ({ database, close, done }: { database: Database; close: () => void; done: () => void }) => {
  const [text, setText] = useState("");
  const save = async () => {
    const { restorable_until: until } = await deleteDatabase(database.id);
    toast(
      until
        ? `${database.name} was deleted. It can be restored until ${moment(until)}.`
        : `${database.name} was deleted.`,
    );
    done();
  };
  return (
    <FormDialog
      title={`Delete ${database.name}`}
      button="Delete"
      kind="danger"
      isReady={text === database.name}
      close={close}
      save={save}
    >
      <p>Requests to it fail from now on. It can be restored for a limited time, which is shown afterwards.</p>
      <Field label={`Type ${database.name} to confirm`}>
        <input
          type="text"
          value={text}
          onChange={(event) => setText(event.target.value)}
          spellCheck={false}
          autoComplete="off"
          autoFocus
        />
      </Field>
    </FormDialog>
  );
};
