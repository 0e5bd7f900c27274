import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
// Where the server finds them, and from where they get into its package.
const OUT = here("../server/src/plainsql_server/http/control/console_files");

/** Leaves each file compressed only: the server unpacks it for a client that doesn't take gzip. */
const compressed = (): Plugin => ({
  name: "compressed",
  closeBundle() {
    for (const name of readdirSync(OUT)) {
      if (name.endsWith(".gz")) continue;
      const file = `${OUT}/${name}`;
      writeFileSync(`${file}.gz`, gzipSync(readFileSync(file), { level: 9 }));
      rmSync(file);
    }
  },
});

// biome-ignore lint/style/noDefaultExport: Vite wants it
export default defineConfig({
  base: "/console/",
  plugins: [react(), compressed()],
  resolve: { alias: { plainsql: here("../js/src/index.ts") } },
  worker: { format: "es" },
  build: {
    outDir: OUT,
    emptyOutDir: true,
    // Flat: the server has one folder of files.
    assetsDir: "",
    target: "es2022",
    // A data: URL would need another entry in the policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // Which of them the first page needs. A test adds up their sizes.
    manifest: "manifest.json",
    // Its own measure: the test of what the first page loads.
    chunkSizeWarningLimit: 900,
  },
});
