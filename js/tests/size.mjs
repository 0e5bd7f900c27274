// Measures what a bundler makes of each entry, minified and compressed with gzip -9, in bytes. What the entry loads only
// when it is needed is a file of its own. Prints JSON.
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const entries = ["index", "sessions", "kysely", "drizzle"];
const { metafile, outputFiles } = await build({
  entryPoints: entries.map((name) => `dist/${name}.js`),
  bundle: true,
  minify: true,
  splitting: true,
  format: "esm",
  external: ["kysely", "drizzle-orm"],
  metafile: true,
  write: false,
  outdir: "out",
});
const sizes = new Map(
  outputFiles.map(({ path, contents }) => [
    path.slice(process.cwd().length + 1),
    gzipSync(contents, { level: 9 }).length,
  ]),
);

/** The sizes of a file and of all that it loads at once. */
function loaded(path, seen = new Set()) {
  if (seen.has(path) || !sizes.has(path)) return 0;
  seen.add(path);
  const now = metafile.outputs[path].imports.filter(({ kind }) => kind === "import-statement");
  return now.reduce((sum, { path: next }) => sum + loaded(next, seen), sizes.get(path));
}

console.log(JSON.stringify(Object.fromEntries(entries.map((name) => [name, loaded(`out/${name}.js`)]))));
