/** Statements: SQL with its parameters, built by the `sql` tag. */

/** One row: values by column name. */
// biome-ignore lint/suspicious/noExplicitAny: the caller names the type of its rows; without one, values are unchecked
export type Row = Record<string, any>;

/** A value from an earlier result of the same transaction. Make one with `ref`. */
export interface Reference {
  readonly $ref: string;
}

/** A statement to run. `R` is the type of its rows. */
export interface Statement<R = Row> {
  readonly sql: string;
  readonly params?: readonly unknown[] | undefined;
  /** Only for the compiler. */
  readonly rowType?: R;
}

/** What a statement of a transaction must have done, or everything is rolled back. */
export interface Expectation {
  readonly affectedRows?: number;
  readonly rowCount?: number;
}

/** A statement of a transaction. */
export interface TransactionStatement<R = Row> extends Statement<R> {
  readonly expect?: Expectation | undefined;
  /** Name or id of the database in which this statement runs. */
  readonly database?: string | undefined;
}

/** SQL with parameters. As a value in another `sql`, it becomes a part of that one. */
export class SqlText<R = Row> implements Statement<R> {
  declare readonly rowType?: R;
  readonly sql: string;
  readonly params: readonly unknown[] = [];
  readonly #texts: readonly string[];
  readonly #values: readonly unknown[];

  constructor(texts: readonly string[], values: readonly unknown[]) {
    this.#texts = texts;
    this.#values = values;
    this.sql = this.#render(this.params as unknown[]);
  }

  /** The same statement, which must change or return this number of rows. For transactions. */
  expecting(expect: Expectation): TransactionStatement<R> {
    return { ...this, expect };
  }

  /** The SQL, whose parameters are added to `params`. */
  #render(params: unknown[]): string {
    return this.#texts.reduce((sql, text, index) => {
      const value = this.#values[index - 1];
      return (
        sql + (value instanceof SqlText ? (value as SqlText<unknown>).#render(params) : `$${params.push(value)}`) + text
      );
    });
  }
}

/**
 * A statement whose values are sent as parameters, never as SQL text:
 *
 *     sql`select id, body from notes where id = ${id}`
 */
export const sql = <R = Row>(texts: TemplateStringsArray, ...values: readonly unknown[]): SqlText<R> =>
  new SqlText(texts, values);

/** A quoted name of a table, a column or the like: `sql\`select * from ${identifier(table)}\``. */
export const identifier = (...path: readonly string[]): SqlText =>
  new SqlText([path.map((name) => `"${name.replaceAll('"', '""')}"`).join(".")], []);

/** The value that an earlier statement of the same transaction returned in this column. */
export const ref = (statement: number, column: string, row = 0): Reference => ({
  $ref: `${statement}.rows.${row}.${column}`,
});

const READ =
  /^(?:\s|--[^\n]*(?:\n|$)|\/\*(?:[^*]|\*(?!\/))*\*\/|\()*(?:select|values|table|with|show|explain)(?![a-z])/i;

/** Whether to send it read-only first. A wrong guess is harmless: PostgreSQL then rejects any write. */
export const looksLikeARead = (text: string): boolean => READ.test(text);
