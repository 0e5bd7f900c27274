// Gives a page a session that only reads, for 15 minutes. First find out who asks, as your other routes do.
import { createSession } from "plainsql/sessions";
import { db } from "../../lib/db.js";

export async function POST() {
  const { token } = await createSession(db, { scopes: ["read"], expiresInSeconds: 900 });
  return Response.json({ url: db.url, token });
}
