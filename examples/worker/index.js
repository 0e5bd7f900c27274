// A Cloudflare Worker with three routes. `wrangler.toml` names this file; see the README beside it.
import { connect, PlainSQLError } from "plainsql";

export default {
  async fetch(request, env) {
    const db = connect({ url: env.PLAINSQL_URL, key: env.PLAINSQL_KEY });
    const { pathname } = new URL(request.url);
    try {
      if (pathname === "/notes" && request.method === "POST") {
        const { body } = await request.json();
        const [note] = await db.sql`insert into notes (body) values (${body}) returning id, body`;
        return Response.json(note, { status: 201 });
      }
      if (pathname === "/notes") {
        return Response.json(await db.sql`select id, body from notes order by id desc limit 20`);
      }
      if (pathname === "/export") {
        const rows = db.stream("select id, body from notes order by id");
        return new Response(lines(rows), { headers: { "Content-Type": "application/x-ndjson" } });
      }
      return new Response("Not found", { status: 404 });
    } catch (error) {
      if (!(error instanceof PlainSQLError)) throw error;
      // The message may show SQL and values: it is for your log.
      console.error(error.requestId, error.code, error.message);
      return Response.json({ error: error.code }, { status: error.retryable ? 503 : 500 });
    }
  },
};

// A row per line. The next row is read when the client wants it; when the client goes away, the statement is cancelled.
function lines(rows) {
  const encoder = new TextEncoder();
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await rows.next();
      if (done) controller.close();
      else controller.enqueue(encoder.encode(`${JSON.stringify(value)}\n`));
    },
    cancel: () => rows.return(),
  });
}
