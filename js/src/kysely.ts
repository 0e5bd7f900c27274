/** A Kysely dialect: `new Kysely<Tables>({ dialect: new PlainSQLDialect(connect(…)) })`. */

import {
  type CompiledQuery,
  type DatabaseConnection,
  type DatabaseIntrospector,
  type Dialect,
  type DialectAdapter,
  type Driver,
  type Kysely,
  type MigrationLockOptions,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
  type QueryCompiler,
  type QueryResult,
  sql,
} from "kysely";
import type { Client } from "./client.js";
import type { TransactionStatement } from "./statement.js";

// One migration at a time: how long to wait for the others, and how often to look.
const LOCK_WAIT_MS = 60_000;
const LOCK_PAUSE_MS = 200;

/** Runs Kysely's queries over HTTPS, each in a serializable transaction of its own. */
export class PlainSQLDialect implements Dialect {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  createDriver(): Driver {
    return new HttpDriver(this.#client);
  }

  createQueryCompiler(): QueryCompiler {
    return new PostgresQueryCompiler();
  }

  createAdapter(): DialectAdapter {
    return new HttpAdapter();
  }

  createIntrospector(db: Kysely<unknown>): DatabaseIntrospector {
    return new PostgresIntrospector(db);
  }
}

/**
 * A query of Kysely as a statement of a transaction:
 *
 *     await client.transaction([toStatement(db.insertInto("orders").values(order).returning("id")), …])
 */
export const toStatement = <R>(query: { compile(): CompiledQuery<R> }): TransactionStatement<R> => {
  const { sql: text, parameters } = query.compile();
  return { sql: text, params: parameters };
};

class HttpConnection implements DatabaseConnection {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  async executeQuery<R>({ sql: text, parameters }: CompiledQuery): Promise<QueryResult<R>> {
    const { rows, affectedRows } = await this.#client.query<R>(text, parameters);
    return { rows, numAffectedRows: BigInt(affectedRows) };
  }

  async *streamQuery<R>({ sql: text, parameters }: CompiledQuery): AsyncIterableIterator<QueryResult<R>> {
    for await (const row of this.#client.stream<R>(text, parameters)) yield { rows: [row] };
  }
}

class HttpDriver implements Driver {
  readonly #connection: HttpConnection;

  constructor(client: Client) {
    this.#connection = new HttpConnection(client);
  }

  async acquireConnection(): Promise<DatabaseConnection> {
    return this.#connection;
  }

  async beginTransaction(): Promise<void> {
    throw new Error(
      "PlainSQL holds no transaction open between requests. Send its statements together: " +
        "client.transaction([toStatement(query), …]).",
    );
  }

  // Nothing is opened, so nothing has to be closed.
  async init(): Promise<void> {}
  async releaseConnection(): Promise<void> {}
  async destroy(): Promise<void> {}

  async commitTransaction(): Promise<void> {
    throw new Error("No transaction was begun.");
  }

  async rollbackTransaction(): Promise<void> {
    // Kysely calls this after `beginTransaction` has failed, whose error the caller is to see.
  }
}

/** Migrations run statement by statement, and one at a time: Kysely's row in the lock table says that one runs. */
class HttpAdapter extends PostgresAdapter {
  readonly #holders = new WeakSet<object>();

  override get supportsTransactionalDdl(): boolean {
    return false;
  }

  override async acquireMigrationLock(db: Kysely<unknown>, options: MigrationLockOptions): Promise<void> {
    const end = Date.now() + LOCK_WAIT_MS;
    while (!(await this.#setLocked(db, options, 1))) {
      if (Date.now() > end) {
        const { lockTable, lockRowId } = options;
        throw new Error(
          `Another migration is running, or one was killed. If none runs: update ${lockTable} set is_locked = 0 where id = '${lockRowId}'.`,
        );
      }
      await new Promise((resolve) => setTimeout(resolve, LOCK_PAUSE_MS));
    }
    this.#holders.add(db);
  }

  override async releaseMigrationLock(db: Kysely<unknown>, options: MigrationLockOptions): Promise<void> {
    // Also called if the lock was not acquired.
    if (this.#holders.delete(db)) await this.#setLocked(db, options, 0);
  }

  async #setLocked(db: Kysely<unknown>, options: MigrationLockOptions, isLocked: 0 | 1): Promise<boolean> {
    const { lockTable, lockTableSchema, lockRowId } = options;
    const table = sql.id(...(lockTableSchema ? [lockTableSchema, lockTable] : [lockTable]));
    const { numAffectedRows } = await sql`
      update ${table} set is_locked = ${isLocked} where id = ${lockRowId} and is_locked <> ${isLocked}`.execute(db);
    return numAffectedRows === 1n;
  }
}
