/** Finds the statements in a text, by PostgreSQL's rules for strings, comments and functions' bodies. */

export interface Found {
  /** Where the statement begins and ends, without its semicolon, in UTF-16 units. */
  from: number;
  to: number;
  sql: string;
  /** The highest $n in it, as far as PostgreSQL takes parameters. */
  params: number;
  /** Its first word, in lower case. */
  command: string;
}

type Kind = "space" | "comment" | "string" | "word" | "param" | "semicolon" | "open" | "close" | "other";

interface Token {
  kind: Kind;
  from: number;
  to: number;
}

const WORD = /[\p{L}_][\p{L}\p{N}_$]*/uy;
const PARAM = /\$\d+/y;
const DOLLAR_QUOTE = /\$(?:[\p{L}_][\p{L}\p{N}_]*)?\$/uy;
const SPACE = /\s+/y;
const LINE_COMMENT = /--[^\n]*/y;

const match = (pattern: RegExp, text: string, at: number): string | undefined => {
  pattern.lastIndex = at;
  return pattern.exec(text)?.[0];
};

/** The end of a quoted text that begins at `at`. */
const endOfQuoted = (text: string, at: number, quote: string, hasEscapes: boolean): number => {
  for (let i = at + 1; i < text.length; i += 1) {
    if (hasEscapes && text[i] === "\\") i += 1;
    else if (text[i] === quote) {
      if (text[i + 1] !== quote) return i + 1;
      i += 1;
    }
  }
  return text.length;
};

/** The end of a comment, in which others may be nested. */
const endOfComment = (text: string, at: number): number => {
  let depth = 0;
  for (let i = at; i < text.length; i += 1) {
    const two = text.slice(i, i + 2);
    if (two === "/*") depth += 1;
    else if (two === "*/") depth -= 1;
    else continue;
    i += 1;
    if (depth === 0) return i + 1;
  }
  return text.length;
};

const tokenAt = (text: string, at: number): Token => {
  const until = (kind: Kind, to: number): Token => ({ kind, from: at, to });
  const first = text[at] as string;
  const space = match(SPACE, text, at);
  if (space) return until("space", at + space.length);
  const line = match(LINE_COMMENT, text, at);
  if (line) return until("comment", at + line.length);
  if (text.startsWith("/*", at)) return until("comment", endOfComment(text, at));
  if ((first === "e" || first === "E") && text[at + 1] === "'") {
    return until("string", endOfQuoted(text, at + 1, "'", true));
  }
  if (first === "'" || first === '"') return until("string", endOfQuoted(text, at, first, false));
  const word = match(WORD, text, at);
  if (word) return until("word", at + word.length);
  const param = match(PARAM, text, at);
  if (param) return until("param", at + param.length);
  const dollar = match(DOLLAR_QUOTE, text, at);
  if (dollar) {
    const end = text.indexOf(dollar, at + dollar.length);
    return until("string", end < 0 ? text.length : end + dollar.length);
  }
  const kinds: Record<string, Kind> = { ";": "semicolon", "(": "open", ")": "close" };
  return until(kinds[first] ?? "other", at + 1);
};

/** The protocol counts them with 16 bits. A higher $n is left to PostgreSQL, which refuses it. */
const PARAMS_MAX = 65_535;

const paramOf = (text: string): number => {
  const number = Number(text.slice(1));
  return number <= PARAMS_MAX ? number : 0;
};

export const tokens = (text: string): Token[] => {
  const found: Token[] = [];
  for (let at = 0; at < text.length; ) {
    const token = tokenAt(text, at);
    found.push(token);
    at = token.to;
  }
  return found;
};

/** What the tokens before a semicolon say about it: only outside of brackets and of BEGIN ATOMIC does it end anything. */
class Nesting {
  #brackets = 0;
  #blocks = 0;
  readonly #words: string[] = [];

  add(token: Token, text: string): void {
    if (token.kind === "open") this.#brackets += 1;
    else if (token.kind === "close") this.#brackets = Math.max(0, this.#brackets - 1);
    else if (token.kind === "word") this.#addWord(text.slice(token.from, token.to).toLowerCase());
  }

  get isOutside(): boolean {
    return this.#brackets === 0 && this.#blocks === 0;
  }

  #addWord(word: string): void {
    if (this.#words.length < 4) this.#words.push(word);
    const [first, ...others] = this.#words;
    const isRoutine = first === "create" && (others.includes("function") || others.includes("procedure"));
    if (!isRoutine) return;
    if (word === "begin" || (word === "case" && this.#blocks > 0)) this.#blocks += 1;
    else if (word === "end" && this.#blocks > 0) this.#blocks -= 1;
  }
}

/** How many parameters the statements have. */
export const paramCountOf = (found: readonly Found[]): number =>
  found.reduce((most, { params }) => Math.max(most, params), 0);

/**
 * All statements of a text. Comments before a statement belong to it, but not those on the line where the one before it
 * ends; a text of comments alone is none.
 */
export const statementsOf = (text: string): Found[] => {
  // It is asked for at every drawing of the page.
  if (text !== last.text) last = { text, found: find(text) };
  return last.found;
};

let last: { text: string; found: Found[] } = { text: "", found: [] };

const find = (text: string): Found[] => {
  const found: Found[] = [];
  let nesting = new Nesting();
  let from = -1;
  let to = 0;
  let params = 0;
  let command = "";
  // Whether nothing but spaces and comments was since the last semicolon, on its line.
  let isSameLine = false;
  const close = () => {
    if (command) found.push({ from, to, sql: text.slice(from, to), params, command });
    nesting = new Nesting();
    from = -1;
    params = 0;
    command = "";
  };
  for (const token of tokens(text)) {
    if (token.kind === "semicolon" && nesting.isOutside) {
      close();
      isSameLine = true;
      continue;
    }
    if (token.kind === "space") {
      isSameLine &&= !text.slice(token.from, token.to).includes("\n");
      continue;
    }
    if (token.kind === "comment" && from < 0 && isSameLine) continue;
    if (from < 0) from = token.from;
    if (token.kind === "comment") continue;
    to = token.to;
    command ||= text.slice(token.from, token.to).toLowerCase();
    if (token.kind === "param") params = Math.max(params, paramOf(text.slice(token.from, token.to)));
    nesting.add(token, text);
  }
  close();
  return found;
};

/**
 * The statement at the cursor: the one around it, else the one that ends before it. A statement that begins after the
 * cursor is never meant, unless there is nothing before it.
 */
export const statementAt = (text: string, cursor: number): Found | undefined => {
  const all = statementsOf(text);
  return all.findLast(({ from }) => from <= cursor) ?? all[0];
};

const BEFORE_TABLE = new Set(["from", "into", "update", "table"]);

/** The name that a token is, as PostgreSQL knows it; undefined if it is none. */
const nameOf = (text: string, token: Token | undefined): string | undefined => {
  if (!token) return undefined;
  const found = text.slice(token.from, token.to);
  if (token.kind === "word") return found.toLowerCase();
  const isWhole = token.kind === "string" && /^"(?:[^"]|"")+"$/.test(found);
  return isWhole ? found.slice(1, -1).replaceAll('""', '"') : undefined;
};

/** The table whose rows a statement returns, with its schema if that is named; else a name for the result. */
export const tableOf = (sql: string): string[] => {
  const all = tokens(sql).filter(({ kind }) => kind !== "space" && kind !== "comment");
  const isDot = (token: Token | undefined) => token !== undefined && sql.slice(token.from, token.to) === ".";
  const at = all.findIndex(
    ({ kind, from, to }) => kind === "word" && BEFORE_TABLE.has(sql.slice(from, to).toLowerCase()),
  );
  const path: string[] = [];
  for (let i = at + 1; at >= 0; i += 2) {
    const name = nameOf(sql, all[i]);
    if (name === undefined) return ["results"];
    path.push(name);
    if (isDot(all[i + 1])) continue;
    // A function's rows are no table's.
    if (all[i + 1]?.kind === "open" && sql.slice(all[at]?.from, all[at]?.to).toLowerCase() === "from")
      return ["results"];
    return path.length <= 2 ? path : ["results"];
  }
  return ["results"];
};

/** Where PostgreSQL's `position`, in characters from 1, is in a text, in UTF-16 units from 0. */
export const offsetOf = (text: string, position: number): number => {
  let offset = 0;
  for (let left = position - 1; left > 0 && offset < text.length; left -= 1) {
    offset += (text.codePointAt(offset) as number) > 0xffff ? 2 : 1;
  }
  return offset;
};
