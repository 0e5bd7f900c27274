// Calls of the Neon driver, which run on Node and in a page. Returns what each gave, by its name: an answer, or an error.
export async function calls({ neon, neonConfig }, { url, key, table }) {
  const asked = [];
  neonConfig.fetchFunction = (address, init) => fetch(`${url}/sql`, (asked.push(String(address)), init));
  const connect = (options = {}, password = key, database = "main") =>
    neon(`postgresql://app:${encodeURIComponent(password)}@db.plainsql.example/${database}`, {
      disableWarningInBrowsers: true,
      ...options,
    });
  const sql = connect();
  const seen = {};
  const see = async (name, call) => {
    try {
      seen[name] = await call();
    } catch (error) {
      const { name: kind, message, ...fields } = error;
      seen[name] = { error: { kind, message, ...fields } };
    }
  };

  await see("default address", async () => (await sql`select 1`) && asked[0]);
  await see("table", () =>
    sql.query(`create table ${table} (id int8 primary key, amount numeric(20, 4), data bytea, doc json, docb jsonb,
      numbers int[], words text[], at timestamptz, span interval, yes boolean, id2 uuid, ratio float8, nothing text)`),
  );
  const values = [
    "9007199254740993",
    "1234567890123456.7890",
    new Uint8Array([0, 92, 255]),
    JSON.stringify({ a: [1, null, "x"] }),
    { b: { c: "é\"\\" } },
    [1, null, -3],
    ["a,b", 'q"\\', null, ""],
    "2026-11-14T22:15:31.244Z",
    "-1 years +2 mons 3 days -04:05:06.789",
    true,
    "8f14e45f-ceea-467f-a8a6-7c1b3a5d0e11",
    0.1,
    null,
  ];
  await see("inserted", () =>
    sql.query(`insert into ${table} values ($1,$2,'\\x005cff'::bytea || $3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13) returning *`, [
      ...values.slice(0, 2), "", ...values.slice(3),
    ]),
  );
  await see("template", () => sql`select ${42}::int as n, ${"é😀"} || '!' as text, ${new Date(0)}::timestamptz as at`);
  await see("bytes", () => sql`select ${new Uint8Array([0, 92, 255])}::bytea as data`);
  await see("arrays", () => sql.query("select 1 as a, 2 as a", [], { arrayMode: true }));
  await see("full", async () => {
    const { command, rowCount, fields, rows, rowAsArray } = await sql.query(`select id, amount from ${table}`, [], {
      fullResults: true,
    });
    return { command, rowCount, fields, rows, rowAsArray };
  });
  await see("no rows", async () => {
    const { command, rowCount, rows, fields } = await sql.query(`create index on ${table} (at)`, [], {
      fullResults: true,
    });
    return { command, rowCount, rows, fields };
  });
  await see("transaction", () =>
    sql.transaction(
      [sql`select 1 as one`, sql.query(`update ${table} set yes = false where id > $1 returning yes`, [0])],
      { isolationLevel: "RepeatableRead" },
    ),
  );
  await see("arrays in a transaction", () =>
    sql.transaction([sql`select 1 as one`, sql.query("select 2 as two", [], { arrayMode: true })]),
  );
  await see("empty transaction", () => sql.transaction([]));
  await see("read-only", () => sql.transaction([sql.query(`delete from ${table}`)], { readOnly: true }));
  await see("rolled back", () => sql.transaction([sql.query(`delete from ${table}`), sql`select 1/0`]));
  await see("after that", () => sql.query(`select count(*) from ${table}`));
  await see("conflicts", async () => {
    await sql.query(`create table ${table}_n (n int)`);
    await sql.query(`insert into ${table}_n values (0)`);
    const add = () =>
      sql.transaction([sql.query(`select n from ${table}_n`), sql.query(`update ${table}_n set n = n + 1`)]);
    await Promise.all(Array.from({ length: 12 }, add));
    return sql.query(`select n from ${table}_n`);
  });
  await see("conflict", () => sql`do $$ begin raise exception 'a conflict' using errcode = '40001'; end $$`);
  await see("unknown column", () => sql`select nope`);
  await see("syntax error", () => sql`selec 1`);
  await see("duplicate", () => sql.query(`insert into ${table} (id) values ('9007199254740993')`));
  await see("in a function", () => sql`do $$ begin execute 'select 1/0'; end $$`);
  await see("several statements", () => sql`select 1; select 2`);
  await see("transaction control", () => sql`begin`);
  await see("too large", () => sql`select repeat('x', 1000000) from generate_series(1, 70)`);
  await see("bad key", () => connect({}, "svc_k_nonsense")`select 1`);
  await see("no such database", () => connect({}, key, "missing")`select 1`);
  await see("token", () => connect({ authToken: key }, "none")`select 2 as two`);
  return seen;
}
