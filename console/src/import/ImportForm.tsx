/** The form of an import: the file, the table, and which field goes into which column. */

import { type DragEvent, type FormEvent, useId, useMemo, useState } from "react";
import type { Table } from "../api/data.ts";
import { bytes } from "../app/figures.ts";
import { Marked, marked } from "../app/marked.tsx";
import { Button, Field, PageTable, Problem, Suggestions, useWork } from "../app/parts.tsx";
import { idOf } from "../app/relations.ts";
import { TYPES } from "../app/types.ts";
import { DELIMITERS, type Delimiter } from "./csv.ts";
import { CsvImport, currentImport } from "./importing.ts";
import { type Sample, type Sampled, sampledOf, sampleOfFile } from "./sample.ts";
import type { ImportColumn, Target } from "./stage.ts";

interface Props {
  database: string;
  tables: readonly Table[];
  schemas: readonly string[];
}

export const ImportForm = ({ database, tables, schemas }: Props) => {
  const [sample, setSample] = useState<Sample>();
  const { error, work } = useWork();
  const choose = (file: File | undefined) => {
    if (file) work(async () => setSample(await sampleOfFile(file)));
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    choose(event.dataTransfer.files[0]);
  };
  return (
    <div className="page-form">
      <label className="drop" onDragOver={(event) => event.preventDefault()} onDrop={drop}>
        <span>
          <Marked>
            {sample ? `${sample.file.name}, ${bytes(sample.file.size)}` : "Choose a file, or drop it here"}
          </Marked>
        </span>
        <input
          type="file"
          aria-label="CSV file"
          accept=".csv,.tsv,.txt,text/csv,text/tab-separated-values"
          onChange={(event) => choose(event.target.files?.[0])}
        />
      </label>
      <Problem error={error} />
      {sample && (
        <Choices
          key={`${sample.file.name} ${sample.file.size} ${sample.file.lastModified}`}
          sample={sample}
          database={database}
          tables={tables}
          schemas={schemas}
        />
      )}
    </div>
  );
};

const NEW = "";

/** What was changed of a field: its name or type in a new table, or its column of an existing one. */
type Change = Partial<{ name: string; type: string; column: string; isLeftOut: boolean }>;

export const Choices = ({ sample, database, tables, schemas }: Props & { sample: Sample }) => {
  const [delimiter, setDelimiter] = useState<Delimiter>(sample.delimiter);
  const [hasHeader, setHeader] = useState(true);
  const [isEmptyText, setEmptyText] = useState(false);
  const [into, setInto] = useState(NEW);
  const [schema, setSchema] = useState(schemas[0] ?? "public");
  const [name, setName] = useState(sample.name);
  const [key, setKey] = useState(NEW);
  const [changes, setChanges] = useState<Record<number, Change>>({});
  const [error, setError] = useState<unknown>();
  const ids = useId();
  const sampled = useMemo(() => sampledOf(sample, delimiter, hasHeader), [sample, delimiter, hasHeader]);
  const writable = tables.filter(({ kind }) => /table$/.test(kind) && kind !== "foreign_table");
  const existing = writable.find((table) => idOf(table) === into);
  const columns = existing ? intoExisting(existing, sampled, changes) : intoNew(sampled, changes);
  const target: Target = existing
    ? { schema: existing.schema, name: existing.name, isNew: false, columns, key: null }
    : { schema, name, isNew: true, columns, key: columns.some((each) => each.name === key) ? key : null };

  const change = (index: number, next: Change) => setChanges({ ...changes, [index]: { ...changes[index], ...next } });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const fault = faultOf(target, sampled);
    setError(fault && new Error(fault));
    if (fault) return;
    const reading = { delimiter, hasHeader, isEmptyText, columns, width: sampled.fields.length };
    const next = new CsvImport({ file: sample.file, database, reading, target });
    currentImport.set(next);
    void next.go();
  };

  return (
    <form className="page-form" onSubmit={submit} aria-label="Import">
      <div className="import-choices">
        <Field label="Fields are separated by">
          <select
            value={delimiter}
            onChange={(event) => {
              setDelimiter(event.target.value as Delimiter);
              setChanges({});
            }}
          >
            {Object.entries(DELIMITERS).map(([value, label]) => (
              <option key={value} value={value}>
                {label}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Empty fields are">
          <select value={String(isEmptyText)} onChange={(event) => setEmptyText(event.target.value === "true")}>
            <option value="false">NULL</option>
            <option value="true">empty text</option>
          </select>
        </Field>
        <Field label="Table">
          <select
            value={into}
            onChange={(event) => {
              setInto(event.target.value);
              setChanges({});
            }}
          >
            <option value={NEW}>a new table</option>
            {writable.map((table) => (
              <option key={idOf(table)} value={idOf(table)}>
                {marked(idOf(table))}
              </option>
            ))}
          </select>
        </Field>
        {!existing && (
          <>
            <Field label="Name of the table">
              <input type="text" value={name} onChange={(event) => setName(event.target.value)} spellCheck={false} />
            </Field>
            <Field label="Schema">
              <input
                type="text"
                list={`${ids}schemas`}
                value={schema}
                onChange={(event) => setSchema(event.target.value)}
                spellCheck={false}
              />
            </Field>
            <Field label="Primary key">
              <select value={target.key ?? NEW} onChange={(event) => setKey(event.target.value)}>
                <option value={NEW}>none</option>
                {columns.map((column) => (
                  <option key={column.index} value={column.name}>
                    {marked(column.name)}
                  </option>
                ))}
              </select>
            </Field>
          </>
        )}
        <label className="check">
          <input
            type="checkbox"
            checked={hasHeader}
            onChange={(event) => {
              setHeader(event.target.checked);
              setChanges({});
            }}
          />
          The first line is a header
        </label>
      </div>
      <Suggestions id={`${ids}schemas`} of={schemas} />
      <Suggestions id={`${ids}types`} of={TYPES} />
      <PageTable label="Columns" head={["Field", "First values", "Column", "Type"]}>
        {sampled.fields.map((field, i) => {
          const column = columns.find(({ index }) => index === i);
          return (
            // biome-ignore lint/suspicious/noArrayIndexKey: a field is its place
            <tr key={i}>
              <td>
                <Marked>{field.label}</Marked>
              </td>
              <td className="import-values">
                <code>
                  <Marked>{field.values.filter(Boolean).join(" · ")}</Marked>
                </code>
              </td>
              <td>
                {existing ? (
                  <select
                    aria-label={`Column of field ${i + 1}`}
                    value={column?.name ?? NEW}
                    onChange={(event) => change(i, { column: event.target.value })}
                  >
                    <option value={NEW}>(not imported)</option>
                    {columnsOf(existing).map((each) => (
                      <option key={each.name} value={each.name}>
                        {marked(each.name)}
                      </option>
                    ))}
                  </select>
                ) : (
                  <span className="import-name">
                    <input
                      type="checkbox"
                      aria-label={`Import field ${i + 1}`}
                      checked={Boolean(column)}
                      onChange={(event) => change(i, { isLeftOut: !event.target.checked })}
                    />
                    <input
                      type="text"
                      aria-label={`Column of field ${i + 1}`}
                      disabled={!column}
                      value={changes[i]?.name ?? field.name}
                      onChange={(event) => change(i, { name: event.target.value })}
                      spellCheck={false}
                    />
                  </span>
                )}
              </td>
              <td>
                {existing ? (
                  <code>
                    <Marked>{column?.type ?? ""}</Marked>
                  </code>
                ) : (
                  <input
                    type="text"
                    aria-label={`Type of field ${i + 1}`}
                    list={`${ids}types`}
                    disabled={!column}
                    value={changes[i]?.type ?? field.type}
                    onChange={(event) => change(i, { type: event.target.value })}
                    spellCheck={false}
                  />
                )}
              </td>
            </tr>
          );
        })}
      </PageTable>
      <Problem error={sampled.error ?? error} />
      <p className="faint">
        All rows are imported, or none. Each is imported once, even if a response is lost on the way.
      </p>
      <div>
        <Button kind="main" type="submit" disabled={Boolean(sampled.error)}>
          Import
        </Button>
      </div>
    </form>
  );
};

/** The columns into which values can be written. */
const columnsOf = (table: Table) =>
  (table.columns ?? []).filter(({ generated, identity }) => !generated && identity !== "always");

const intoNew = ({ fields }: Sampled, changes: Record<number, Change>): ImportColumn[] =>
  fields.flatMap(({ name, type }, index) => {
    const { isLeftOut, name: changed = name, type: wanted = type } = changes[index] ?? {};
    return isLeftOut ? [] : [{ index, name: changed, type: wanted.trim() }];
  });

/** Each field into the column that was chosen for it, or that has its name. */
const intoExisting = (table: Table, { fields }: Sampled, changes: Record<number, Change>): ImportColumn[] =>
  fields.flatMap(({ name }, index) => {
    const all = columnsOf(table);
    const like = all.filter((column) => column.name.toLowerCase() === name.toLowerCase());
    const same = like.find((column) => column.name === name) ?? (like.length === 1 ? like[0] : undefined);
    const chosen = changes[index]?.column;
    const column = chosen === undefined ? same : all.find((each) => each.name === chosen);
    return column ? [{ index, name: column.name, type: column.type }] : [];
  });

const faultOf = ({ name, schema, columns }: Target, { fields }: Sampled): string | undefined => {
  if (!name || !schema) return "The table needs a name and a schema.";
  if (columns.length === 0) return "Choose at least one column.";
  for (const column of columns) {
    if (!column.name || !column.type) return `Field ${column.index + 1} needs the name and the type of a column.`;
    const other = columns.find((each) => each.name === column.name) as ImportColumn;
    if (other !== column)
      return `Both ${fields[other.index]?.label} and ${fields[column.index]?.label} go to ${column.name}.`;
  }
  return undefined;
};
