// Measures what a bundler makes of each entry, minified and compressed with gzip -9, in bytes. `stream` is what the core
// loads when the first stream is opened, in addition; `whole` is the core and streams in one file, as a bundler makes that
// doesn't split. Prints JSON.
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const external = ["kysely", "drizzle-orm"];

async function size(entry, others) {
  const options = { bundle: true, minify: true, format: "esm", write: false };
  const { outputFiles } = await build({
    ...options,
    entryPoints: [`dist/${entry}.js`],
    external: [...external, ...others],
  });
  return gzipSync(outputFiles[0].contents, { level: 9 }).length;
}

const shared = ["./errors.js", "./names.js"];
console.log(
  JSON.stringify({
    core: await size("index", ["./stream.js"]),
    whole: await size("index", []),
    stream: await size("stream", shared),
    sessions: await size("sessions", shared),
    kysely: await size("kysely", []),
    drizzle: await size("drizzle", []),
  }),
);
