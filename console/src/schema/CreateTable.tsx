/** The form that creates a table. */

import { type FormEvent, useId, useMemo, useState } from "react";
import { runTransaction } from "../api/data.ts";
import { textOf } from "../api/requests.ts";
import { useUnsaved } from "../app/leaving.ts";
import { Marked } from "../app/marked.tsx";
import { Button, Field, Problem, Suggestions, useWork } from "../app/parts.tsx";
import { TYPES } from "../app/types.ts";
import { createStatement, DEFAULTS, type Faults, type FieldName, faultsOf, fieldOf, type NewColumn } from "./create.ts";

const FIRST: NewColumn = {
  name: "id",
  type: "bigint",
  isNotNull: true,
  default: "generated always as identity",
  isKey: true,
};
const NEXT: NewColumn = { name: "", type: "text", isNotNull: false, default: "", isKey: false };

/** A column with what keeps it in its place while others are removed. */
type Line = NewColumn & { id: number };

const LINES: readonly Line[] = [
  { ...FIRST, id: 0 },
  { ...NEXT, id: 1 },
];

interface Props {
  database: string;
  schemas: readonly string[];
  close: () => void;
  created: (schema: string, name: string) => void;
}

export const CreateTable = ({ database, schemas, close, created }: Props) => {
  const [usual] = useState(schemas.includes("public") ? "public" : (schemas[0] ?? "public"));
  const [schema, setSchema] = useState(usual);
  const [name, setName] = useState("");
  const [lines, setLines] = useState(LINES);
  const [faults, setFaults] = useState<Faults>({});
  const { isBusy, error, work } = useWork();
  const release = useUnsaved(name !== "" || schema !== usual || lines !== LINES);
  const ids = useId();
  const table = useMemo(() => ({ schema, name, columns: lines }), [schema, name, lines]);
  const statement = useMemo(() => createStatement(table), [table]);

  const forget = (field: FieldName) => setFaults(({ [field]: _, ...others }) => others);
  const change = (index: number, next: Partial<NewColumn>) =>
    setLines(lines.map((line, i) => (i === index ? { ...line, ...next } : line)));
  const remove = (index: number) => {
    setLines(lines.filter((_, i) => i !== index));
    setFaults({});
  };
  const show = (found: Faults) => {
    setFaults(found);
    const [first] = Object.keys(found);
    if (first) document.getElementById(`${ids}${first}`)?.focus();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const found = faultsOf(table);
    show(found);
    if (Object.keys(found).length) return;
    work(async () => {
      try {
        await runTransaction([{ sql: statement.sql, params: [] }], { database, maxRows: 1 });
      } catch (failed) {
        const field = fieldOf(failed, statement, table);
        if (!field) throw failed;
        show({ [field]: textOf(failed) });
        return;
      }
      release();
      created(schema, name);
    });
  };
  /** What makes an input the one of a field: its fault is read with it. */
  const of = (field: FieldName) => ({
    id: `${ids}${field}`,
    "aria-invalid": Boolean(faults[field]),
    "aria-describedby": faults[field] ? `${ids}${field}.fault` : undefined,
  });
  const fault = (field: FieldName) =>
    faults[field] && (
      <p className="fault" id={`${ids}${field}.fault`} role="alert">
        <Marked>{faults[field]}</Marked>
      </p>
    );

  return (
    <form className="page create" onSubmit={submit} aria-label="New table" noValidate>
      <div className="page-head">
        <h1>New table</h1>
      </div>
      <div className="create-names">
        <div>
          <Field label="Name">
            <input
              {...of("name")}
              type="text"
              value={name}
              onChange={(event) => {
                setName(event.target.value);
                forget("name");
              }}
              spellCheck={false}
              autoComplete="off"
              autoFocus
            />
          </Field>
          {fault("name")}
        </div>
        <div>
          <Field label="Schema">
            <input
              {...of("schema")}
              type="text"
              list={`${ids}schemas`}
              value={schema}
              onChange={(event) => {
                setSchema(event.target.value);
                forget("schema");
              }}
              spellCheck={false}
              autoComplete="off"
            />
          </Field>
          {fault("schema")}
        </div>
      </div>
      <Suggestions id={`${ids}schemas`} of={schemas} />
      <Suggestions id={`${ids}types`} of={TYPES} />
      <Suggestions id={`${ids}defaults`} of={DEFAULTS} />
      <h2>Columns</h2>
      <ul className="create-columns">
        {lines.map((line, i) => (
          <li key={line.id}>
            <fieldset className="create-column">
              <legend className="unseen">Column {i + 1}</legend>
              {(["name", "type", "default"] as const).map((part) => (
                <div key={part} className="create-part">
                  <Field label={LABELS[part]}>
                    <input
                      {...of(`${i}.${part}`)}
                      type="text"
                      aria-label={`${LABELS[part]} of column ${i + 1}`}
                      list={part === "name" ? undefined : `${ids}${part}s`}
                      value={line[part]}
                      onChange={(event) => {
                        change(i, { [part]: event.target.value });
                        forget(`${i}.${part}`);
                      }}
                      spellCheck={false}
                      autoComplete="off"
                    />
                  </Field>
                  {fault(`${i}.${part}`)}
                </div>
              ))}
              <label className="check">
                <input
                  type="checkbox"
                  checked={line.isNotNull || line.isKey}
                  disabled={line.isKey}
                  onChange={(event) => change(i, { isNotNull: event.target.checked })}
                />
                Not null
              </label>
              <label className="check">
                <input
                  type="checkbox"
                  checked={line.isKey}
                  onChange={(event) => change(i, { isKey: event.target.checked })}
                />
                Primary key
              </label>
              <Button kind="icon" aria-label={`Remove column ${i + 1}`} onClick={() => remove(i)}>
                ×
              </Button>
            </fieldset>
          </li>
        ))}
      </ul>
      <div>
        <Button onClick={() => setLines([...lines, { ...NEXT, id: Math.max(-1, ...lines.map(({ id }) => id)) + 1 }])}>
          Add column
        </Button>
      </div>
      <h2>SQL</h2>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls */}
      <pre className="preview" tabIndex={0} role="region" aria-label="SQL of the table">
        <Marked>{`${statement.sql};`}</Marked>
      </pre>
      <Problem error={error} />
      <div className="page-head">
        <Button kind="main" type="submit" disabled={isBusy}>
          {isBusy ? "Creating…" : "Create table"}
        </Button>
        <Button
          onClick={() => {
            release();
            close();
          }}
        >
          Cancel
        </Button>
      </div>
    </form>
  );
};

const LABELS = { name: "Name", type: "Type", default: "Default" } as const;
