import { db } from "../../lib/db.js";

export async function GET() {
  return Response.json(await db.sql`select id, body from notes order by id desc limit 20`);
}

export async function POST(request) {
  const { body, tags } = await request.json();
  // The note and its tags, or neither.
  const { results } = await db.transaction([
    { sql: "insert into notes (body) values ($1) returning id, body", params: [body] },
    { sql: "insert into tags (note, tag) select $1, unnest($2::text[])", params: [{ $ref: "0.rows.0.id" }, tags ?? []] },
  ]);
  return Response.json(results[0].rows[0], { status: 201 });
}
