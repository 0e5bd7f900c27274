// Prisma's adapter for the Neon driver over HTTP, as Prisma's client calls it.
import { PrismaNeonHttp } from "@prisma/adapter-neon";
import { connection_string, failure, given, print } from "./connect.mjs";

const db = await new PrismaNeonHttp(connection_string, {}).connect();
const run = (method, sql, args = [], types = []) =>
  db[method]({ sql, args, argTypes: types.map((scalarType) => ({ scalarType, arity: "scalar" })) });
const seen = { provider: db.provider };
await run("executeRaw", `create table ${given.table} (id serial primary key, big int8, amount numeric, data bytea,
  doc jsonb, at timestamptz, tags text[], name text unique)`);
seen.inserted = await run(
  "queryRaw",
  `insert into ${given.table} (big, amount, data, doc, at, tags, name) values ($1,$2,$3,$4,$5,$6,$7) returning *`,
  ["9007199254740993", "0.10", new Uint8Array([1, 0, 255]), '{"a":1}', "2026-11-14T22:15:31.244Z", ["a,b", null], "x"],
  ["bigint", "decimal", "bytes", "json", "datetime", "string", "string"],
);
seen.updated = await run("executeRaw", `update ${given.table} set name = $1`, ["y"], ["string"]);
seen.duplicate = await failure(() => run("executeRaw", `insert into ${given.table} (name) values ('y')`));
seen.transaction = await failure(() => db.startTransaction());
print(seen);
