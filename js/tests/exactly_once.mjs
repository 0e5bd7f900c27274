// Writes the numbers from `first` on, `count` of them, four at a time, each once, in the table `js_effects`. Prints what
// became of each as JSON. Arguments: kind of write, first number, count, timeout in ms.
import { open } from "./service.mjs";

const [kind, first, count, timeout] = process.argv.slice(2);
const db = open({ timeoutMs: Number(timeout) });
const writes = {
  query: (n) => db.query("insert into js_effects values ($1)", [n]),
  transaction: (n) =>
    db.transaction([{ sql: "insert into js_effects values ($1)", params: [n], expect: { affectedRows: 1 } }]),
  // It looks like a read.
  function: (n) =>
    db.query("with new as (insert into js_effects values ($1) returning 1) select count(*) from new", [n]),
};
const outcomes = [];
const keys = [];
let next = Number(first);
const end = next + Number(count);

async function work() {
  while (next < end) {
    try {
      const { affectedRows, rows } = await writes[kind](next++);
      outcomes.push(affectedRows === 1 || rows?.[0].count === 1 ? "committed" : "wrong");
    } catch (error) {
      if (error.name !== "PlainSQLError") throw error;
      outcomes.push(`${error.code} ${error.outcome}`);
      keys.push(error.idempotencyKey);
    }
  }
}

await Promise.all([work(), work(), work(), work()]);
console.log(JSON.stringify({ outcomes, keys }));
