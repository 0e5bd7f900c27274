/** A statement as a program: curl, Python or JavaScript. The key stays in the environment. */

import type { Statement } from "../api/data.ts";

export type Language = "curl" | "Python" | "JavaScript";

const shell = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

const python = (value: unknown): string => {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value as object)
      .map(([name, each]) => `${python(name)}: ${python(each)}`)
      .join(", ")}}`;
  }
  // JSON's strings and numbers are Python's, too.
  return JSON.stringify(value);
};

const pythonText = (sql: string): string => (/["\\]/.test(sql) || !sql.includes("\n") ? python(sql) : `"""${sql}"""`);

const scriptText = (sql: string): string =>
  sql.includes("\n") ? `\`${sql.replaceAll(/[`\\]|\$\{/g, "\\$&")}\`` : JSON.stringify(sql);

const pythonProgram = (sql: string, params: unknown[], dataUrl: string, database: string): string => {
  const where = database ? `, database=${python(database)}` : "";
  const others = params.map((each) => `, ${python(each)}`).join("");
  return [
    "import os",
    "import plainsql",
    "",
    `with plainsql.connect(${python(dataUrl)}, os.environ["PLAINSQL_KEY"]${where}) as db:`,
    `    for row in db.query(${pythonText(sql)}${others}):`,
    "        print(row)",
    "",
  ].join("\n");
};

export const programFor = (
  language: Language,
  { sql, params }: Statement,
  dataUrl: string,
  database: string,
): string => {
  const named = database ? { database } : {};
  const content = params.length ? { sql, params, ...named } : { sql, ...named };
  if (language === "curl") {
    const body = shell(JSON.stringify(content));
    return `curl -sS ${dataUrl}/v1/query \\\n  -H "Authorization: Bearer $PLAINSQL_KEY" \\\n  --json ${body}\n`;
  }
  if (language === "Python") return pythonProgram(sql, params, dataUrl, database);
  const settings = `url: ${JSON.stringify(dataUrl)}, key: process.env.PLAINSQL_KEY${database ? `, database: ${JSON.stringify(database)}` : ""}`;
  const others = params.length ? `, ${JSON.stringify(params)}` : "";
  return [
    'import { connect } from "plainsql";',
    "",
    `const db = connect({ ${settings} });`,
    `const { rows } = await db.query(${scriptText(sql)}${others});`,
    "console.log(rows);",
    "",
  ].join("\n");
};
