/** Types of columns that forms offer. Any other one can be typed. */
export const TYPES = [
  "bigint",
  "integer",
  "text",
  "boolean",
  "numeric",
  "numeric(12,2)",
  "double precision",
  "date",
  "timestamptz",
  "timestamp",
  "time",
  "interval",
  "uuid",
  "jsonb",
  "bytea",
  "text[]",
] as const;
