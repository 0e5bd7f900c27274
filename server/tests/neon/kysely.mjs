// Kysely with its dialect for the Neon driver.
import { neon } from "@neondatabase/serverless";
import { Kysely, sql } from "kysely";
import { NeonDialect } from "kysely-neon";
import { connection_string, failure, given, print } from "./connect.mjs";

const db = new Kysely({ dialect: new NeonDialect({ neon: neon(connection_string) }) });
const { table } = given;
const seen = {};
await db.schema
  .createTable(table)
  .addColumn("id", "serial", (column) => column.primaryKey())
  .addColumn("name", "text", (column) => column.notNull().unique())
  .addColumn("amount", "numeric")
  .addColumn("doc", "jsonb")
  .addColumn("at", "timestamptz")
  .execute();
seen.inserted = await db
  .insertInto(table)
  .values([
    { name: "a", amount: "12345678901234567890.5", doc: JSON.stringify([1, { b: null }]), at: new Date(1234567890123) },
    { name: "b", amount: null, doc: null, at: null },
  ])
  .returningAll()
  .execute();
seen.updated = await db.updateTable(table).set({ name: "c" }).where("id", "=", 2).executeTakeFirst();
seen.selected = await db.selectFrom(table).select(["id", "name"]).where("name", "in", ["a", "c"]).orderBy("id").execute();
seen.raw = (await sql`select ${1}::int + ${2}::int as sum`.execute(db)).rows;
seen.duplicate = await failure(() => db.insertInto(table).values({ name: "a" }).execute());
seen.unknown = await failure(() => db.selectFrom(table).select("nope").execute());
seen.tables = (await db.introspection.getTables()).filter((each) => each.name === table).map((each) => each.columns.length);
print(seen);
