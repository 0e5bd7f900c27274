import assert from "node:assert/strict";
import { test } from "node:test";
import { Kysely, Migrator, sql } from "kysely";
import { PlainSQLDialect, toStatement } from "plainsql/kysely";
import { newTable, open } from "./service.mjs";

const client = open();
const db = new Kysely({ dialect: new PlainSQLDialect(client) });

test("Kysely inserts, reads, updates and deletes", async (t) => {
  const notes = await newTable(
    t,
    client,
    "id int generated always as identity, body text, tags jsonb, n int8, at timestamptz",
  );
  const at = new Date("2026-11-14T22:15:31.244Z");
  const inserted = await db
    .insertInto(notes)
    .values({ body: "milk", tags: { a: [1] }, n: 5n, at })
    .returningAll()
    .executeTakeFirstOrThrow();
  assert.deepEqual(inserted, { id: 1, body: "milk", tags: { a: [1] }, n: 5, at: "2026-11-14T22:15:31.244Z" });
  const updated = await db.updateTable(notes).set({ body: "oat milk" }).where("id", "=", 1).executeTakeFirst();
  assert.equal(updated.numUpdatedRows, 1n);
  const read = await db
    .selectFrom(notes)
    .select(["body", (eb) => eb.fn.countAll().over().as("count")])
    .where("id", "in", [1, 2])
    .execute();
  assert.deepEqual(read, [{ body: "oat milk", count: 1 }]);
  assert.equal((await db.deleteFrom(notes).executeTakeFirst()).numDeletedRows, 1n);
  assert.ok((await db.introspection.getTables()).some(({ name }) => name === notes));
});

test("Kysely streams rows", async () => {
  const seen = [];
  for await (const { n } of db.selectFrom(sql`generate_series(1, 1000)`.as("n")).select("n").stream()) {
    if (seen.push(n) === 3) break;
  }
  assert.deepEqual(seen, [1, 2, 3]);
});

test("queries of Kysely are sent together as one transaction", async (t) => {
  const orders = await newTable(t, client, "id int generated always as identity, name text");
  const insert = (name) => toStatement(db.insertInto(orders).values({ name }).returning("id"));
  const { results } = await client.transaction([insert("first"), { ...insert("second"), expect: { affectedRows: 1 } }]);
  assert.deepEqual(
    results.map(({ rows }) => rows),
    [[{ id: 1 }], [{ id: 2 }]],
  );
  await assert.rejects(
    client.transaction([insert("third"), { ...toStatement(db.deleteFrom(orders)), expect: { rowCount: 9 } }]),
    { code: "expectation_failed" },
  );
  assert.equal((await db.selectFrom(orders).selectAll().execute()).length, 2);
  await assert.rejects(
    db.transaction().execute((tx) => tx.selectFrom(orders).selectAll().execute()),
    /holds no transaction open/,
  );
});

test("errors have PostgreSQL's code and position", async () => {
  await assert.rejects(sql`select * from js_nowhere`.execute(db), {
    code: "undefined_table",
    sqlstate: "42P01",
    position: 15,
  });
});

test("migrations run once, one after the other, also from two processes at a time", async (t) => {
  const table = `js_migrated_${process.pid}`;
  const own = { migrationTableName: `${table}_m`, migrationLockTableName: `${table}_l` };
  t.after(() => client.transaction(["", "_m", "_l"].map((end) => `drop table if exists ${table}${end}`)));
  const provider = {
    getMigrations: async () => ({
      "01": {
        up: (each) => each.schema.createTable(table).addColumn("n", "int4").execute(),
        down: (each) => each.schema.dropTable(table).execute(),
      },
      "02": { up: (each) => each.insertInto(table).values({ n: 1 }).execute() },
    }),
  };
  const migrator = () => new Migrator({ db: new Kysely({ dialect: new PlainSQLDialect(client) }), provider, ...own });
  const done = await Promise.all([migrator().migrateToLatest(), migrator().migrateToLatest()]);
  assert.deepEqual(
    done.map(({ error }) => error),
    [undefined, undefined],
  );
  assert.deepEqual(done.map(({ results }) => results.length).sort(), [0, 2]);
  assert.equal((await db.selectFrom(table).selectAll().execute()).length, 1);
  assert.equal((await migrator().migrateTo("01")).error, undefined);
});
