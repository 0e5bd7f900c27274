// Serves what has the shape of a worker's or a route's handler over HTTP, as its platform would. Prints the port.
// Arguments: `worker FILE`, or `routes FOLDER`, whose `NAME/route.js` have functions named by methods.
import { createServer } from "node:http";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pathToFileURL } from "node:url";

const [kind, path] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(file));

async function respond(request) {
  if (kind === "worker") return (await load(path)).default.fetch(request, process.env, {});
  const handlers = await load(join(path, new URL(request.url).pathname, "route.js"));
  return handlers[request.method](request);
}

const server = createServer(async (incoming, outgoing) => {
  const hasBody = incoming.method !== "GET";
  const request = new Request(`http://localhost${incoming.url}`, {
    method: incoming.method,
    ...(hasBody && { body: Readable.toWeb(incoming), duplex: "half" }),
  });
  const response = await respond(request);
  outgoing.writeHead(response.status, Object.fromEntries(response.headers));
  const body = Readable.fromWeb(response.body);
  body.on("error", () => outgoing.destroy());
  outgoing.on("close", () => body.destroy());
  body.pipe(outgoing);
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
