/** API keys: create, rotate and revoke. A secret is shown once. */

import { useState } from "react";
import { createKey, type Key, listKeys, type NewKey, revokeKey, rotateKey } from "../api/control.ts";
import { useStore } from "../api/store.ts";
import { copyText } from "../app/copy.ts";
import { databases } from "../app/databases.ts";
import { ago, moment } from "../app/figures.ts";
import { Marked } from "../app/marked.tsx";
import { Button, Dialog, Field, FormDialog, Menu, PageTable, Problem, useLoaded } from "../app/parts.tsx";
import { toast } from "../app/toast.tsx";

type Scope = Key["scopes"][number];
const SCOPES: readonly { scope: Scope; text: string }[] = [
  { scope: "read", text: "read: SQL that only reads" },
  { scope: "write", text: "write: all SQL" },
  { scope: "admin", text: "admin: databases, keys and usage" },
];

type Asked = { what: "create" } | { what: "rotate" | "revoke"; key: Key };

const HEAD = [
  "Name",
  "Key",
  "State",
  "Scopes",
  "Database",
  "Last used",
  "Expires (UTC)",
  { text: "Actions", isFaint: true },
];

export const KeysPage = () => {
  const { value, error, again } = useLoaded(listKeys, "keys");
  const [asked, ask] = useState<Asked | null>(null);
  const [made, setMade] = useState<NewKey | null>(null);
  const [isAll, setAll] = useState(false);
  const shown = (value ?? []).filter(({ state }) => isAll || state === "active");
  const close = () => ask(null);
  const show = (key: NewKey) => {
    setMade(key);
    again();
  };
  return (
    <div className="page">
      <div className="page-head">
        <h1>API keys</h1>
        <span className="spring" />
        <label className="check">
          <input type="checkbox" checked={isAll} onChange={(event) => setAll(event.target.checked)} /> Also expired and
          revoked ones
        </label>
        <Button kind="main" onClick={() => ask({ what: "create" })}>
          Create key
        </Button>
      </div>
      <Problem error={error} />
      {value && shown.length === 0 && (
        <p className="empty">There is no key. Create one for each program that uses SQL.</p>
      )}
      {shown.length > 0 && (
        <PageTable label="Keys" head={HEAD}>
          {shown.map((key) => (
            <tr key={key.id}>
              <td>
                <b>
                  <Marked>{key.name}</Marked>
                </b>
              </td>
              <td>
                <code>
                  {key.prefix}…{key.last_four}
                </code>
              </td>
              <td>
                <span className={key.state === "active" ? "tag good" : "tag bad"}>{key.state}</span>
              </td>
              <td>{key.scopes.join(", ")}</td>
              <td>{key.database ?? <span className="faint">all</span>}</td>
              <td>{key.last_used_at ? ago(Date.parse(key.last_used_at)) : <span className="faint">never</span>}</td>
              <td>{key.expires_at ? moment(key.expires_at) : <span className="faint">never</span>}</td>
              <td>
                {key.state === "active" && (
                  <Menu
                    label="Actions"
                    describes={key.name}
                    items={[
                      { label: "Rotate…", act: () => ask({ what: "rotate", key }) },
                      { label: "Revoke…", isDanger: true, act: () => ask({ what: "revoke", key }) },
                    ]}
                  />
                )}
              </td>
            </tr>
          ))}
        </PageTable>
      )}
      {asked?.what === "create" && <CreateDialog close={close} show={show} />}
      {asked?.what === "rotate" && <RotateDialog held={asked.key} close={close} show={show} />}
      {asked?.what === "revoke" && <RevokeDialog held={asked.key} close={close} again={again} />}
      {made && (
        <Dialog isFirm title={`The key “${made.name}”`} close={() => setMade(null)}>
          <p>This is the only time that it is shown. Copy it now.</p>
          <div className="secret">
            <code>{made.secret}</code>
            <Button kind="main" onClick={() => void copyText(made.secret)}>
              Copy
            </Button>
          </div>
          <div className="buttons">
            <Button onClick={() => setMade(null)}>Done</Button>
          </div>
        </Dialog>
      )}
    </div>
  );
};

const CreateDialog = ({ close, show }: { close: () => void; show: (key: NewKey) => void }) => {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<Scope[]>(["read"]);
  const [database, setDatabase] = useState("");
  const [days, setDays] = useState("");
  const names = (useStore(databases) ?? []).filter(({ state }) => state === "ready");
  const save = async () => {
    const expiry = days ? new Date(Date.now() + Number(days) * 86_400_000).toISOString() : null;
    const key = await createKey({ name: name.trim(), scopes, database: database || null, expires_at: expiry });
    return () => show(key);
  };
  const toggle = (scope: Scope) =>
    setScopes(scopes.includes(scope) ? scopes.filter((each) => each !== scope) : [...scopes, scope]);
  return (
    <FormDialog
      title="Create key"
      button="Create"
      isReady={scopes.length > 0 && name.trim() !== ""}
      close={close}
      save={save}
    >
      <Field label="Name" hint="For example, the program that will use it.">
        <input type="text" value={name} onChange={(event) => setName(event.target.value)} autoFocus required />
      </Field>
      <fieldset className="checks">
        <legend>Scopes</legend>
        {SCOPES.map(({ scope, text }) => (
          <label key={scope}>
            <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} /> {text}
          </label>
        ))}
      </fieldset>
      <Field label="Database">
        <select value={database} onChange={(event) => setDatabase(event.target.value)}>
          <option value="">all databases</option>
          {names.map(({ id, name: each }) => (
            <option key={id}>{each}</option>
          ))}
        </select>
      </Field>
      <Field label="Expires after days" hint="Empty: never.">
        <input type="number" min="1" max="3650" value={days} onChange={(event) => setDays(event.target.value)} />
      </Field>
    </FormDialog>
  );
};

const RotateDialog = ({ held, close, show }: { held: Key; close: () => void; show: (key: NewKey) => void }) => {
  const [hours, setHours] = useState("1");
  const save = async () => {
    const key = await rotateKey(held.id, Math.round(Number(hours) * 3600));
    return () => show(key);
  };
  return (
    <FormDialog title={`Rotate ${held.name}`} button="Rotate" close={close} save={save}>
      <p>You get a new key with the same scopes. The old one keeps working for a while, so that you can replace it.</p>
      <Field label="The old key works for, in hours">
        <input
          type="number"
          min="0"
          max="720"
          step="any"
          value={hours}
          onChange={(event) => setHours(event.target.value)}
          autoFocus
          required
        />
      </Field>
    </FormDialog>
  );
};

const RevokeDialog = ({ held, close, again }: { held: Key; close: () => void; again: () => void }) => {
  const save = async () => {
    await revokeKey(held.id);
    toast(`${held.name} was revoked.`);
    again();
  };
  return (
    <FormDialog title={`Revoke ${held.name}`} button="Revoke" kind="danger" close={close} save={save}>
      <p>Programs that use it are refused at once, and its sessions end. This can't be undone.</p>
    </FormDialog>
  );
};
