// Drizzle over HTTP: tables, inserts that return rows, relational queries, and a batch.
import { neon } from "@neondatabase/serverless";
import { eq, relations, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/neon-http";
import { bigint, integer, interval, jsonb, numeric, pgTable, serial, text, timestamp } from "drizzle-orm/pg-core";
import { connection_string, failure, given, print } from "./connect.mjs";

const authors = pgTable(`${given.table}_authors`, {
  id: serial().primaryKey(),
  name: text().notNull().unique(`${given.table}_names`),
  born: timestamp({ withTimezone: true }),
  followers: bigint({ mode: "bigint" }),
  royalty: numeric(),
  profile: jsonb(),
  tags: text().array(),
  break: interval(),
});
const books = pgTable(`${given.table}_books`, {
  id: serial().primaryKey(),
  author_id: integer().references(() => authors.id),
  title: text(),
});
const author_relations = relations(authors, ({ many }) => ({ books: many(books) }));
const book_relations = relations(books, ({ one }) => ({
  author: one(authors, { fields: [books.author_id], references: [authors.id] }),
}));
const db = drizzle({
  client: neon(connection_string),
  schema: { authors, books, author_relations, book_relations },
});

const seen = {};
await db.execute(sql`create table ${authors} (id serial primary key, name text not null
  constraint ${sql.identifier(`${given.table}_names`)} unique, born timestamptz, followers int8, royalty numeric,
  profile jsonb, tags text[], break interval)`);
await db.execute(sql`create table ${books} (id serial primary key, author_id int references ${authors}, title text)`);
seen.inserted = await db
  .insert(authors)
  .values({
    name: "Ann",
    born: new Date(Date.UTC(1990, 1, 3, 4, 5, 6, 789)),
    followers: 9007199254740993n,
    royalty: "0.10",
    profile: { langs: ["de", "en"] },
    tags: ["a,b", 'c"'],
    break: "1 day 02:00:00",
  })
  .returning();
seen.selected = await db.select({ name: authors.name }).from(authors).where(eq(authors.id, 1));
const [added, renamed, listed] = await db.batch([
  db.insert(books).values([{ author_id: 1, title: "One" }, { author_id: 1, title: "Two" }]).returning({ id: books.id }),
  db.update(authors).set({ name: "Anna" }).where(eq(authors.id, 1)),
  db.query.authors.findMany({ columns: { name: true, followers: true }, with: { books: { columns: { title: true } } } }),
]);
seen.batch = [added, renamed.rowCount, listed];
seen.joined = await db.select().from(books).innerJoin(authors, eq(authors.id, books.author_id)).limit(1);
seen.duplicate = await failure(() => db.insert(authors).values({ name: "Anna" }));
seen.unknown = await failure(() => db.execute(sql`select nope`));
seen.failed_batch = await failure(() => db.batch([db.delete(books), db.insert(authors).values({ name: "Anna" })]));
seen.kept = await db.$count(books);
print(seen);
