/**
 * A statement as a program: curl, Python or JavaScript. The key stays in the environment.
 *
 * The SQL may be someone else's, from a link. So every value is one line of printable ASCII, in which nothing means
 * anything to a shell: a program that is pasted into a shell by mistake runs no part of the SQL, and a terminal shows
 * all of it.
 */

import type { Statement } from "../api/data.ts";

export type Language = "curl" | "Python" | "JavaScript";

// In double quotes, a shell expands $, ` and !. A single quote would end the quotes around curl's body.
const ESCAPED = /\\\\|[^\x20-\x7e]|[$`!']/g;

const unit = (code: number): string => `\\u${code.toString(16).padStart(4, "0")}`;

/** A value as JSON, which JavaScript reads, too. */
const json = (value: unknown): string =>
  // A backslash is escaped once more, because some shells read two of them as one.
  JSON.stringify(value).replaceAll(ESCAPED, (found) => unit(found.charCodeAt(0)));

/** A value as Python, whose texts have whole characters, not their halves in UTF-16. */
const python = (value: unknown): string => {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value as object)
      .map(([name, each]) => `${python(name)}: ${python(each)}`)
      .join(", ")}}`;
  }
  return json(value).replaceAll(/\\u(d[89ab]..)\\u(d[c-f]..)/g, (_, high: string, low: string) => {
    const code = String.fromCharCode(Number.parseInt(high, 16), Number.parseInt(low, 16)).codePointAt(0) ?? 0;
    return `\\U${code.toString(16).padStart(8, "0")}`;
  });
};

const curlProgram = (content: object, dataUrl: string): string =>
  [
    `curl -sS '${new URL(dataUrl).origin}/v1/query' \\`,
    '  -H "Authorization: Bearer $PLAINSQL_KEY" \\',
    `  --json '${json(content)}'`,
    "",
  ].join("\n");

const pythonProgram = (sql: string, params: unknown[], dataUrl: string, database: string): string => {
  const where = database ? `, database=${python(database)}` : "";
  const others = params.map((each) => `, ${python(each)}`).join("");
  return [
    "import os",
    "import plainsql",
    "",
    `with plainsql.connect(${python(dataUrl)}, os.environ["PLAINSQL_KEY"]${where}) as db:`,
    `    for row in db.query(${python(sql)}${others}):`,
    "        print(row)",
    "",
  ].join("\n");
};

const scriptProgram = (sql: string, params: unknown[], dataUrl: string, database: string): string => {
  const where = database ? `, database: ${json(database)}` : "";
  const others = params.length ? `, ${json(params)}` : "";
  return [
    'import { connect } from "plainsql";',
    "",
    `const db = connect({ url: ${json(dataUrl)}, key: process.env.PLAINSQL_KEY${where} });`,
    `const { rows } = await db.query(${json(sql)}${others});`,
    "console.log(rows);",
    "",
  ].join("\n");
};

export const programFor = (
  language: Language,
  { sql, params }: Statement,
  dataUrl: string,
  database: string,
): string => {
  if (language === "Python") return pythonProgram(sql, params, dataUrl, database);
  if (language === "JavaScript") return scriptProgram(sql, params, dataUrl, database);
  return curlProgram({ sql, ...(params.length && { params }), ...(database && { database }) }, dataUrl);
};
