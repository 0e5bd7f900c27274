// Serves the page, the package's files, and sessions that only read. `PORT=8080 node server.js`
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { connect } from "plainsql";
import { createSession } from "plainsql/sessions";

const db = connect({ url: process.env.PLAINSQL_URL, key: process.env.PLAINSQL_KEY });
const page = new URL("index.html", import.meta.url);

createServer(async (request, response) => {
  try {
    const file = request.url.match(/^\/plainsql\/(\w+\.js)$/)?.[1];
    if (request.method === "POST" && request.url === "/session") {
      const { token } = await createSession(db, { scopes: ["read"], expiresInSeconds: 900 });
      send(response, 200, "application/json", JSON.stringify({ url: db.url, token }));
    } else if (file) {
      send(response, 200, "text/javascript", await readFile(new URL(file, import.meta.resolve("plainsql"))));
    } else if (request.url === "/") {
      send(response, 200, "text/html; charset=utf-8", await readFile(page));
    } else {
      send(response, 404, "text/plain", "Not found");
    }
  } catch (error) {
    console.error(error);
    send(response, 500, "text/plain", "Failed");
  }
}).listen(Number(process.env.PORT ?? 8080), "127.0.0.1");

function send(response, status, type, body) {
  response.writeHead(status, { "Content-Type": type }).end(body);
}
