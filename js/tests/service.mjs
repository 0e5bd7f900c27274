// The service that a test uses, and a table of its own. pytest sets the environment.
import { connect } from "plainsql";

const { PLAINSQL_URL: url, PLAINSQL_KEY: key } = process.env;

export { key, url };
export const open = (settings = {}) => connect({ url, key, ...settings });

/** What the data plane refuses an ended session with. It hears of its end a moment after the control plane. */
export async function refusal(ended) {
  for (;;) {
    const error = await ended.query("select 1").then(
      () => undefined,
      (error) => error,
    );
    if (error) return error;
  }
}

let tables = 0;

/** The name of a table that no other test uses; it is dropped after this one. */
export async function newTable(test, db, columns) {
  tables += 1;
  const name = `js_${process.pid}_${tables}`;
  await db.query(`create table ${name} (${columns})`);
  test.after(() => db.query(`drop table ${name}`));
  return name;
}
