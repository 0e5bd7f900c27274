/**
 * The statements of an import. The rows are first stored in a staging table, with the lines on which they are in the
 * file. One transaction then copies them to the table or, if that is new, makes the staging table it. Before, it counts
 * the rows: it fails if one is missing or is there twice.
 */

import type { Statement, TransactionStatement } from "../api/data.ts";
import { literal, qualified, quoteName } from "../results/formats.ts";

export interface ImportColumn {
  /** Which field of a record it is. */
  index: number;
  name: string;
  type: string;
}

export interface Target {
  schema: string;
  name: string;
  isNew: boolean;
  columns: readonly ImportColumn[];
  /** The primary key of a new table. */
  key: string | null;
}

export type Values = (string | null)[];

/** A record whose values are those of the columns. */
export interface ImportRow {
  line: number;
  values: Values;
}

export const LINE = "plainsql_line";

export const newStage = (): string => {
  const bytes = crypto.getRandomValues(new Uint8Array(6));
  return `plainsql_import_${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
};

const TEXT = /^("?char"?|text|character|varchar|bpchar|name|citext)\b/i;

/** Whether an empty text is a value of the type. */
export const isText = (type: string): boolean => TEXT.test(type.trim()) && !type.trim().endsWith("[]");

// A cast would cut a text that is too long. Without one, PostgreSQL refuses it.
const castOf = (type: string): string => {
  if (isText(type)) return "";
  return /^bit\b/i.test(type.trim()) ? "::bit varying" : `::${type.trim()}`;
};

export class Stage {
  readonly target: Target;
  readonly name: string;

  constructor(target: Target, name: string) {
    this.target = target;
    this.name = name;
  }

  get #table(): string {
    return qualified({ schema: this.target.schema, name: this.name });
  }

  get #names(): string {
    return this.target.columns.map(({ name }) => quoteName(name)).join(", ");
  }

  create(): Statement {
    const { isNew, columns } = this.target;
    // What is to become the table is logged; what is copied need not be.
    const sql = isNew
      ? `create table ${this.#table} (${[
          ...columns.map(({ name, type }) => `${quoteName(name)} ${type}`),
          `${LINE} bigint`,
        ].join(", ")})`
      : `create unlogged table ${this.#table} as select ${this.#names}, null::bigint as ${LINE} from ${qualified(this.target)} with no data`;
    return { sql, params: [] };
  }

  insert(rows: readonly ImportRow[]): Statement {
    const { columns } = this.target;
    const places = columns.map((_, i) => `$${i + 1}::text[]`);
    const parts = columns.map((_, i) => `c${i}`);
    const values = columns.map(({ type }, i) => `c${i}${castOf(type)}`);
    return {
      sql:
        `insert into ${this.#table} (${this.#names}, ${LINE}) select ${values.join(", ")}, line` +
        ` from unnest(${places.join(", ")}, $${columns.length + 1}::bigint[]) as r(${parts.join(", ")}, line)`,
      params: [...columns.map((_, i) => rows.map(({ values: each }) => each[i])), rows.map(({ line }) => line)],
    };
  }

  /** One statement for each column, to find out which value is wrong. */
  insertByColumn({ values }: ImportRow): Statement[] {
    return this.target.columns.map(({ name, type }, i) => ({
      sql: `insert into ${this.#table} (${quoteName(name)}) select v${castOf(type)} from unnest($1::text[]) as r(v)`,
      params: [[values[i]]],
    }));
  }

  /** Copies the first rows, or all of them. */
  copy(rows?: number): Statement {
    const limit = rows === undefined ? "" : ` limit ${rows}`;
    const sql = `insert into ${qualified(this.target)} (${this.#names}) select ${this.#names} from ${this.#table} order by ${LINE}${limit}`;
    return { sql, params: [] };
  }

  /** What ends the import: all of it takes effect, or nothing. */
  finish(rows: number): TransactionStatement[] {
    const { isNew, name, key } = this.target;
    const counted = {
      sql: `select 1 from ${this.#table} having count(*) = $1::bigint`,
      params: [rows],
      expect: { rowCount: 1 },
    };
    const of = (sql: string) => ({ sql, params: [] });
    if (!isNew) return [counted, this.copy(), this.drop()];
    const table = qualified(this.target);
    return [
      counted,
      of(`alter table ${this.#table} drop column ${LINE}`),
      of(`alter table ${this.#table} rename to ${quoteName(name)}`),
      ...(key ? [of(`alter table ${table} add primary key (${quoteName(key)})`)] : []),
    ];
  }

  drop(): Statement {
    return { sql: `drop table ${this.#table}`, params: [] };
  }

  /** What someone can run to learn whether the rows of a batch are stored: it counts them. */
  lookForRows([first, last]: readonly [number, number]): string {
    return `select count(*) from ${this.#table} where ${LINE} between ${first} and ${last}`;
  }

  /** What someone can run to learn whether the import has finished: then there is no staging table. */
  lookForEnd(): string {
    return `select to_regclass(${literal(this.#table, "text")}) is null as finished`;
  }

  /** The line of the row with a number, counted from 1. */
  lineOf(row: number): Statement {
    return { sql: `select ${LINE} from ${this.#table} order by ${LINE} limit 1 offset ${row - 1}`, params: [] };
  }

  /** The first row that the primary key of a new table refuses: its line, and that of the row with the same key. */
  keyFault(): Statement {
    const key = quoteName(this.target.key ?? "");
    const before = `first_value(${LINE}) over (partition by ${key} order by ${LINE})`;
    return {
      sql:
        `select ${LINE}, earlier from (select ${LINE}, ${key} is null as is_null, ${before} as earlier from ${this.#table}) r` +
        ` where is_null or earlier < ${LINE} order by ${LINE} limit 1`,
      params: [],
    };
  }
}

/** The smallest number of rows that fail, if all of them do. */
export const firstFailing = async (count: number, fails: (rows: number) => Promise<boolean>): Promise<number> => {
  let good = 0;
  let bad = count;
  while (bad - good > 1) {
    const middle = Math.floor((good + bad) / 2);
    if (await fails(middle)) bad = middle;
    else good = middle;
  }
  return bad;
};
