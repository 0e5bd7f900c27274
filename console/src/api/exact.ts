/**
 * Values of json and jsonb as the text in which they came. JSON.parse would round their numbers to those of JavaScript
 * and drop their spaces, so in a response they are made texts before it is parsed.
 */

/** As PostgreSQL's types are in JSON; those that would lose digits as their text. */
export type Value = unknown;
export type Row = Value[];

const JSON_TYPE = /^jsonb?(\[\])?$/;

/** Whether the values of a type are JSON's text: those of json and jsonb, and arrays of them. */
export const isJson = (type: string | undefined): boolean => JSON_TYPE.test(type ?? "");

const stringEnd = (text: string, start: number): number => {
  for (let end = text.indexOf('"', start + 1); end > 0; end = text.indexOf('"', end + 1)) {
    let backslashes = 0;
    while (text[end - 1 - backslashes] === "\\") backslashes += 1;
    if (backslashes % 2 === 0) return end;
  }
  throw new SyntaxError("The JSON has a string without an end.");
};

/** The texts of an array's elements, or of an object's members. */
export const partsOf = (text: string): string[] => {
  const parts: string[] = [];
  let depth = 0;
  let from = 0;
  const close = (end: number) => {
    const part = text.slice(from, end).trim();
    if (part) parts.push(part);
    from = end + 1;
  };
  for (let at = 0; at < text.length; at += 1) {
    const letter = text[at];
    if (letter === '"') at = stringEnd(text, at);
    else if (letter === "[" || letter === "{") {
      depth += 1;
      if (depth === 1) from = at + 1;
    } else if (letter === "]" || letter === "}") {
      depth -= 1;
      if (depth === 0) close(at);
    } else if (letter === "," && depth === 1) close(at);
  }
  return parts;
};

const rowWithTexts = (row: string, types: readonly string[]): string =>
  `[${partsOf(row)
    .map((cell, i) => (isJson(types[i]) && cell !== "null" ? JSON.stringify(cell) : cell))
    .join(",")}]`;

/** A row of a stream. */
export const rowOf = (line: string, types: readonly string[]): Row =>
  JSON.parse(types.some(isJson) ? rowWithTexts(line, types) : line) as Row;

/** A response with one result or several, in which the values of json and jsonb are strings. */
export const withTexts = (body: string): string => {
  if (!/"jsonb?(\[\])?"/.test(body)) return body;
  const members = partsOf(body).map((member) => {
    const end = stringEnd(member, 0) + 1;
    return { name: JSON.parse(member.slice(0, end)) as string, value: member.slice(member.indexOf(":", end) + 1) };
  });
  const types = JSON.parse(members.find(({ name }) => name === "types")?.value ?? "[]") as string[];
  const changed = members.map(({ name, value }) => {
    const part = name === "rows" ? (row: string) => rowWithTexts(row, types) : name === "results" && withTexts;
    return `${JSON.stringify(name)}:${part ? `[${partsOf(value).map(part).join(",")}]` : value}`;
  });
  return `{${changed.join(",")}}`;
};

/** Fetches a response of the data plane with such texts. */
export const exactFetch: typeof fetch = async (url, init) => {
  const response = await fetch(url, init);
  const { status, statusText, headers } = response;
  const body = status === 204 ? null : withTexts(await response.text());
  return new Response(body, { status, statusText, headers });
};

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** JSON on lines that are indented. No other part of it is changed. */
export const indented = (json: string): string => {
  let depth = 0;
  let before = "";
  let written = "";
  for (const [token] of json.matchAll(TOKEN)) {
    const isEnd = token === "}" || token === "]";
    if (isEnd) depth -= 1;
    // An empty object or array stays on its line.
    const isFirst = before === "{" || before === "[";
    if (isFirst !== isEnd || before === ",") written += `\n${"  ".repeat(depth)}`;
    written += token === ":" ? ": " : token;
    if (token === "{" || token === "[") depth += 1;
    before = token;
  }
  return written.trimStart();
};
