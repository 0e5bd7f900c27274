// What the compiler knows of the package's users' code. Only compiled, never run.

import { integer, pgTable, text } from "drizzle-orm/pg-core";
import { Kysely } from "kysely";
import { connect, identifier, type PlainSQLError, type Row, ref, type StreamEnd, sql } from "plainsql";
import { drizzle, transaction } from "plainsql/drizzle";
import { PlainSQLDialect, toStatement } from "plainsql/kysely";
import { createSession } from "plainsql/sessions";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const same = <A, B>(_: Equal<A, B>): void => undefined;

interface Note {
  id: number;
  body: string | null;
}

const db = connect({ url: "https://localhost:8400", key: "svc_k_…", int8: "bigint" });

export const queries = async (): Promise<void> => {
  const rows = await db.sql<Note>`select id, body from notes where id = ${1}`;
  same<typeof rows, Note[]>(true);
  const untyped = await db.sql`select 1`;
  same<typeof untyped, Row[]>(true);
  const { rows: arrays } = await db.query<[number]>("select 1", [], { rowFormat: "array", maxRows: 1 });
  same<typeof arrays, [number][]>(true);
  const typed = await db.query(sql<Note>`select id, body from ${identifier("notes")}`);
  same<typeof typed.rows, Note[]>(true);
  for await (const note of db.stream<Note>("select id, body from notes")) same<typeof note, Note>(true);
  const end = await db.stream<Note>("select id, body from notes").return({} as StreamEnd);
  same<(typeof end)["done"], boolean | undefined>(true);
  // @ts-expect-error: neither a key nor an address in the options of a call
  await db.query("select 1", [], { key: "x" });
  // @ts-expect-error: a number is no text
  await db.query(1);
};

export const transactions = async (): Promise<void> => {
  const { results } = await db.transaction([
    sql<{ id: number }>`insert into notes default values returning id`,
    { sql: "update notes set body = $1 where id = $2", params: ["x", ref(0, "id")], expect: { affectedRows: 1 } },
    "select 1",
  ]);
  same<(typeof results)[0]["rows"], { id: number }[]>(true);
  same<(typeof results)[1]["rows"], Row[]>(true);
  same<(typeof results)["length"], 3>(true);
  // @ts-expect-error: no such expectation
  await db.transaction([sql`select 1`.expecting({ rows: 1 })]);
};

export const errors = (error: PlainSQLError): void => {
  same<typeof error.code, string>(true);
  same<typeof error.outcome, "committed" | "rolled_back" | "not_executed" | "unknown" | undefined>(true);
  same<typeof error.position, number | undefined>(true);
  same<typeof error.retryable, boolean>(true);
};

const notes = pgTable("notes", { id: integer().primaryKey(), body: text() });

export const others = async (): Promise<void> => {
  const { token } = await createSession(db, { scopes: ["read"], expiresInSeconds: 900 });
  same<typeof token, string>(true);
  const kysely = new Kysely<{ notes: Note }>({ dialect: new PlainSQLDialect(db) });
  const { results } = await db.transaction([toStatement(kysely.selectFrom("notes").select("body"))]);
  same<(typeof results)[0]["rows"], { body: string | null }[]>(true);
  const orm = drizzle(db, { schema: { notes } });
  const found = await orm.query.notes.findMany();
  same<typeof found, { id: number; body: string | null }[]>(true);
  const [read] = await transaction(db, { schema: { notes } }, (tx) => [tx.select({ id: notes.id }).from(notes)]);
  same<typeof read, { id: number }[]>(true);
};
