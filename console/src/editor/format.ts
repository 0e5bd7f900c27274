/** Formats SQL. It is loaded when first used. */

import { format } from "sql-formatter";
import { tokens } from "./statements.ts";

/** What matters of a text: everything but spaces and the case of words. */
const meaning = (sql: string): string =>
  tokens(sql)
    .filter(({ kind }) => kind !== "space")
    .map(({ kind, from, to }) => (kind === "word" ? sql.slice(from, to).toLowerCase() : sql.slice(from, to)))
    .join("");

/** Throws if it would change more than spaces. */
export const formatted = (sql: string): string => {
  const done = format(sql, { language: "postgresql", keywordCase: "preserve", tabWidth: 2, linesBetweenQueries: 1 });
  if (meaning(done) !== meaning(sql)) throw new Error("Formatting would change the statement.");
  return done;
};
