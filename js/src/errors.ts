/** The error class of this package. */

/** Whether anything took effect. */
export type Outcome = "committed" | "rolled_back" | "not_executed" | "unknown";

/** The fields of an error. Those without a value are undefined. */
export interface ErrorFields {
  /** A stable name: PostgreSQL's condition name, the service's code, or one of the client's own. */
  code: string;
  message: string;
  /** PostgreSQL's SQLSTATE; undefined if PostgreSQL did not report the error. */
  sqlstate?: string | undefined;
  /** Whether anything took effect. */
  outcome?: Outcome | undefined;
  /** Where in the SQL the error is, in characters from 1. */
  position?: number | undefined;
  /** Whether the same request may succeed later. */
  retryable?: boolean;
  retryAfterMs?: number | undefined;
  detail?: string | undefined;
  hint?: string | undefined;
  schema?: string | undefined;
  table?: string | undefined;
  column?: string | undefined;
  constraint?: string | undefined;
  /** Which statement of a transaction failed, counted from 0. */
  statementIndex?: number | undefined;
  /** The HTTP status of the response; undefined if none arrived. */
  status?: number | undefined;
  /** Identifies the request in the operator's log. */
  requestId?: string | undefined;
  /** The key of the write, if its outcome may be in doubt: pass it to `outcome()`. */
  idempotencyKey?: string | undefined;
  cause?: unknown;
}

export interface PlainSQLError extends Omit<ErrorFields, "retryable"> {}

/** Every error that the service reports, and every failure to reach it. Check `code` and `outcome`. */
// biome-ignore lint/suspicious/noUnsafeDeclarationMerging: the constructor assigns all fields of the interface
export class PlainSQLError extends Error {
  override name = "PlainSQLError";
  retryable = false;

  constructor(fields: ErrorFields) {
    super(fields.message);
    Object.assign(this, fields);
  }
}
