// A proxy in front of the service, whose answers a test replaces.
import { createServer } from "node:http";
import { url } from "./service.mjs";

/**
 * The address of the proxy. `answer` gets the path of each request and a function that passes it on to the service; it
 * returns the Response that the client gets.
 */
export async function faulty(test, answer) {
  const server = createServer(async (incoming, outgoing) => {
    const { method, url: path, headers } = incoming;
    const chunks = [];
    for await (const chunk of incoming) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    const { host: _, connection: __, "content-length": ___, ...others } = headers;
    const pass = () => fetch(new URL(path, url), { method, headers: others, body: body.length ? body : null });
    const response = await answer({ path, headers, pass });
    // fetch has decompressed it.
    const shown = [...response.headers].filter(([name]) => !/^(content-(length|encoding)|connection)$/.test(name));
    outgoing.writeHead(response.status, Object.fromEntries(shown));
    outgoing.end(Buffer.from(await response.arrayBuffer()));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}
