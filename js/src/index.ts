/** SQL over plain HTTPS. Start with `connect`. */

export {
  type Client,
  connect,
  type Options,
  type Result,
  type ResultsOf,
  type TransactionOptions,
  type TransactionResult,
  type WriteOptions,
} from "./client.js";
export { type ErrorFields, type Outcome, PlainSQLError } from "./errors.js";
export type { SessionSource, Settings } from "./settings.js";
export {
  type Expectation,
  identifier,
  type Reference,
  type Row,
  ref,
  type SqlText,
  type Statement,
  sql,
  type TransactionStatement,
} from "./statement.js";
export type { StreamEnd } from "./stream.js";
export type { Notice } from "./transport.js";
export type { Numbers } from "./values.js";
