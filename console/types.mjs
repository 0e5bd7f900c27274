// Makes the types of both planes' routes from their OpenAPI documents, which come from the server's models.
import { mkdir, readFile, writeFile } from "node:fs/promises";
import openapi, { astToString } from "openapi-typescript";

await mkdir("src/api/generated", { recursive: true });
for (const plane of ["control", "data"]) {
  const file = `src/api/generated/${plane}.ts`;
  const source = new URL(`../docs/openapi/${plane}.json`, import.meta.url);
  const text = astToString(await openapi(source));
  // A file that did not change keeps its time.
  if ((await readFile(file, "utf8").catch(() => "")) !== text) await writeFile(file, text);
}
