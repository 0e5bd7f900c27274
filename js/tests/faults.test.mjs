import assert from "node:assert/strict";
import { test } from "node:test";
import { faulty } from "./faulty.mjs";
import { open } from "./service.mjs";

test("an event that can't be read breaks the stream, and a comment doesn't", async (t) => {
  let event = ": ping";
  const url = await faulty(t, async ({ pass }) => {
    const response = await pass();
    const text = (await response.text()).replace("event: done", `${event}\n\nevent: done`);
    return new Response(text, { headers: response.headers });
  });
  const read = async () => {
    let count = 0;
    for await (const _ of open({ url }).stream("select n from generate_series(1, 3) n")) count += 1;
    return count;
  };
  assert.equal(await read(), 3);
  for (event of ["event: row", 'data: {"n":4}', "event: row\ndata: {", "x"])
    await assert.rejects(read(), { name: "PlainSQLError", code: "stream_broken" }, event);
});
