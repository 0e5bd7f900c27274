import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { count, eq, relations, sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { migrate } from "drizzle-orm/pg-proxy/migrator";
import { drizzle, migrations, transaction } from "plainsql/drizzle";
import { open } from "./service.mjs";

const client = open();
const users = pg.pgTable(`js_users_${process.pid}`, {
  id: pg.integer().primaryKey().generatedAlwaysAsIdentity(),
  name: pg.text().notNull(),
});
const posts = pg.pgTable(`js_posts_${process.pid}`, {
  id: pg.bigint({ mode: "bigint" }).primaryKey().generatedAlwaysAsIdentity(),
  userId: pg.integer("user_id").notNull(),
  views: pg.bigint({ mode: "number" }).notNull(),
  price: pg.numeric({ precision: 30, scale: 4 }),
  tags: pg.text().array(),
  data: pg.jsonb(),
  at: pg.timestamp({ withTimezone: true }),
  local: pg.timestamp(),
  day: pg.date(),
  span: pg.interval(),
  ok: pg.boolean(),
  uid: pg.uuid(),
});
const schema = {
  users,
  posts,
  usersRelations: relations(users, ({ many }) => ({ posts: many(posts) })),
  postsRelations: relations(posts, ({ one }) => ({
    user: one(users, { fields: [posts.userId], references: [users.id] }),
  })),
};
const db = drizzle(client, { schema });

test.before(async () => {
  await client.transaction([
    `create table js_users_${process.pid} (id int primary key generated always as identity, name text not null unique)`,
    `create table js_posts_${process.pid} (id int8 primary key generated always as identity, user_id int not null, views int8 not null,
      price numeric(30, 4), tags text[], data jsonb, at timestamptz, local timestamp, day date, span interval, ok bool, uid uuid)`,
  ]);
});
test.after(() => client.transaction([`drop table js_users_${process.pid}`, `drop table js_posts_${process.pid}`]));

const full = {
  userId: 1,
  views: 7,
  price: "12345678901234567890.1250",
  tags: ['a"b', "{}", "c,d"],
  data: { a: [1, null, "x"] },
  at: new Date("2026-11-14T22:15:31.244Z"),
  local: new Date("2026-11-14T22:15:31.244Z"),
  day: "2026-11-14",
  span: "P1Y2D",
  ok: true,
  uid: "4b8b1c1e-6f5e-4d0b-9d3c-0f8d2c5f9f4e",
};

test("Drizzle inserts, reads, updates and deletes, with the values of its columns", async () => {
  const [user] = await db.insert(users).values({ name: "Ada" }).returning();
  assert.deepEqual(user, { id: 1, name: "Ada" });
  const [post] = await db.insert(posts).values(full).returning();
  assert.deepEqual(post, { id: 1n, ...full });
  for (const data of ["123", "text", '{"a": 1}', 5, [true]]) {
    const [{ data: back }] = await db
      .update(posts)
      .set({ data })
      .where(eq(posts.id, 1n))
      .returning({ data: posts.data });
    assert.deepEqual(back, data);
  }
  assert.deepEqual(await db.select({ n: count() }).from(posts), [{ n: 1 }]);
  assert.equal(await db.$count(posts), 1);
  assert.deepEqual(
    await db.select({ u: users.name, v: posts.views }).from(users).innerJoin(posts, eq(posts.userId, users.id)),
    [{ u: "Ada", v: 7 }],
  );
  assert.deepEqual(await db.execute(sql`select ${posts.views} from ${posts}`), [{ views: "7" }]);
  const found = await db.query.users.findFirst({ with: { posts: { columns: { views: true, tags: true } } } });
  assert.deepEqual(found, { id: 1, name: "Ada", posts: [{ views: 7, tags: full.tags }] });
});

test("queries of Drizzle run as one transaction, in their order, with typed results", async () => {
  const [inserted, names, executed, related] = await transaction(client, { schema }, (tx) => [
    tx.insert(users).values({ name: "Grace" }).returning({ name: users.name }),
    tx.select({ name: users.name }).from(users).where(eq(users.name, "Grace")),
    tx.execute(sql`select 'x' as a, '"s"'::jsonb as j`),
    tx.query.users.findMany({ columns: { name: true }, where: eq(users.name, "Grace") }),
  ]);
  const grace = [{ name: "Grace" }];
  assert.deepEqual([inserted, names, executed, related], [grace, grace, [{ a: "x", j: '"s"' }], grace]);
  const failing = transaction(client, {}, (tx) => [
    tx.insert(users).values({ name: "Edsger" }),
    tx.insert(users).values({ name: "Grace" }),
  ]);
  await assert.rejects(failing, {
    code: "unique_violation",
    statementIndex: 1,
    constraint: `js_users_${process.pid}_name_key`,
  });
  assert.equal(await db.$count(users, eq(users.name, "Edsger")), 0);
  await assert.rejects(
    transaction(client, {}, () => []),
    { code: "empty_transaction" },
  );
  await assert.rejects(
    db.transaction(async (tx) => tx.select().from(users)),
    /not supported/,
  );
});

test("an error of the service is the cause of Drizzle's", async () => {
  await assert.rejects(
    db.execute(sql`select * from js_nowhere`),
    ({ cause }) => cause.code === "undefined_table" && cause.position === 15,
  );
});

test("migrations run in one transaction, once", async (t) => {
  const migrationsFolder = mkdtempSync(join(tmpdir(), "drizzle-"));
  t.after(() => rmSync(migrationsFolder, { recursive: true }));
  t.after(() => client.transaction(["drop schema drizzle cascade", "drop table if exists js_migrated"]));
  mkdirSync(join(migrationsFolder, "meta"));
  const entry = { idx: 0, version: "7", when: 1, tag: "0000_first", breakpoints: true };
  writeFileSync(
    join(migrationsFolder, "meta/_journal.json"),
    JSON.stringify({ version: "7", dialect: "postgresql", entries: [entry] }),
  );
  writeFileSync(
    join(migrationsFolder, "0000_first.sql"),
    "create table js_migrated (n int);\n--> statement-breakpoint\ninsert into js_migrated values (1);",
  );
  for (const _ of [1, 2]) await migrate(db, migrations(client), { migrationsFolder });
  assert.deepEqual(await client.sql`select n from js_migrated`, [{ n: 1 }]);
});
