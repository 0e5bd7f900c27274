/** A driver for Drizzle: `const orm = drizzle(connect(…), { schema })`. */

import { drizzle as drizzleOverProxy, type PgRemoteDatabase } from "drizzle-orm/pg-proxy";
import type { DrizzleConfig } from "drizzle-orm/utils";
import type { Client, Options, Result, TransactionOptions } from "./client.js";
import type { TransactionStatement } from "./statement.js";

type Schema = Record<string, unknown>;

/** What Drizzle asks for. `all` wants rows as arrays. */
type Method = "all" | "execute";

/** A query of Drizzle: something to wait for. */
type Query = PromiseLike<unknown>;

// Drizzle's columns turn text into numbers, as with other drivers for PostgreSQL.
const EXACT: Options = { int8: "string", numeric: "string" };

/** Makes a Drizzle database. Each query runs in a serializable transaction of its own. */
export const drizzle = <S extends Schema = Record<string, never>>(
  client: Client,
  config?: DrizzleConfig<S>,
): PgRemoteDatabase<S> =>
  drizzleOverProxy<S>(async (text, params: unknown[], method, typings) => {
    const statement = statementOf(text, params, typings);
    const result = await client.query(statement, { ...EXACT, rowFormat: formatOf(method) });
    return { rows: rowsOf(result, method) };
  }, config);

/**
 * Runs queries in one serializable transaction: all of them or none. Returns their results in the same order.
 *
 *     const [orders] = await transaction(client, { schema }, (tx) => [
 *       tx.insert(orders).values(order).returning(),
 *       tx.update(stock).set({ left: sql`${stock.left} - 1` }),
 *     ]);
 */
export const transaction = async <S extends Schema, const Q extends readonly Query[]>(
  client: Client,
  config: DrizzleConfig<S>,
  build: (tx: PgRemoteDatabase<S>) => Q,
  options: TransactionOptions = {},
): Promise<{ -readonly [I in keyof Q]: Awaited<Q[I]> }> => {
  const statements: TransactionStatement<unknown>[] = [];
  let collected: () => void = () => undefined;
  let settle: (results: Promise<Result<unknown>[]>) => void = () => undefined;
  const results = new Promise<Result<unknown>[]>((resolve) => {
    settle = resolve;
  });
  const tx = drizzleOverProxy<S>(async (text, params: unknown[], method, typings) => {
    const index = statements.push(statementOf(text, params, typings)) - 1;
    collected();
    const result = (await results)[index] as Result<unknown[]>;
    const rows = rowsOf(result, "all");
    return { rows: method === "all" ? rows : rows.map((row) => objectOf(result.columns, row as unknown[])) };
  }, config);
  const waiting: Promise<unknown>[] = [];
  for (const query of build(tx)) {
    // One after the other: each has handed its SQL over, or has failed, before the next one starts.
    const isCollected = new Promise<void>((resolve) => {
      collected = resolve;
    });
    const answer = Promise.resolve(query);
    waiting.push(answer);
    await Promise.race([isCollected, answer]);
  }
  const rowFormat = "array";
  settle(client.transaction(statements, { ...EXACT, ...options, rowFormat }).then((done) => done.results as Result[]));
  const [, ...answers] = await Promise.all([results, ...waiting]);
  return answers as unknown as { -readonly [I in keyof Q]: Awaited<Q[I]> };
};

/** For `migrate` of `drizzle-orm/pg-proxy/migrator`: runs all migrations that are due in one transaction. */
export const migrations =
  (client: Client) =>
  async (queries: string[]): Promise<void> => {
    if (queries.length) await client.transaction(queries);
  };

const objectOf = (columns: string[], row: unknown[]): Record<string, unknown> =>
  Object.fromEntries(columns.map((column, index) => [column, row[index]]));

const formatOf = (method: Method): "array" | "object" => (method === "all" ? "array" : "object");

const statementOf = (
  sql: string,
  params: readonly unknown[],
  typings: readonly string[] | undefined,
): TransactionStatement<unknown> => ({
  sql,
  // Drizzle has made JSON's text of it. We would send that as a JSON string.
  params: params.map((value, index) =>
    typings?.[index] === "json" && typeof value === "string" ? (JSON.parse(value) as unknown) : value,
  ),
});

/** The rows as Drizzle wants them. */
const rowsOf = ({ rows, columns, types }: Result<unknown>, method: Method): unknown[] => {
  // Drizzle's columns parse strings as JSON, also those that are values.
  const texts = types.flatMap((type, index) => (/^jsonb?$/.test(type) ? [index] : []));
  const found = rows as Record<string | number, unknown>[];
  for (const row of found) {
    for (const index of texts) {
      const name = method === "all" ? index : (columns[index] as string);
      if (typeof row[name] === "string") row[name] = JSON.stringify(row[name]);
    }
  }
  return found;
};
