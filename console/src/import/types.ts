/** Guesses the types of columns from their first values. */

export const GUESSED = ["bigint", "numeric", "boolean", "date", "timestamptz", "timestamp", "uuid", "jsonb"] as const;
export type Guessed = (typeof GUESSED)[number] | "text";

// A number that begins with zeros is a postal code or the like.
const INTEGER = /^-?(0|[1-9]\d{0,18})$/;
const NUMERIC = /^-?(0|[1-9]\d*)?(\.\d+)?([eE][+-]?\d{1,3})?$/;
const BOOLEAN = /^(true|false|t|f)$/i;
const DATE = /^(\d{4})-(\d\d)-(\d\d)$/;
const TIMESTAMP = /^(\d{4}-\d\d-\d\d)[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d([.,]\d{1,9})?)?$/;
const ZONE = / ?(Z|[+-]\d\d(:?\d\d)?)$/i;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

const BIGINT_MAX = 2n ** 63n;

const isDate = (text: string): boolean => {
  const [, year, month, day] = DATE.exec(text) ?? [];
  if (!year) return false;
  const date = new Date(Date.UTC(Number(year), Number(month) - 1, Number(day)));
  return date.getUTCMonth() === Number(month) - 1 && date.getUTCDate() === Number(day) && Number(year) > 0;
};

const isTimestamp = (text: string): boolean => {
  const [, date] = TIMESTAMP.exec(text) ?? [];
  return date !== undefined && isDate(date);
};

const isJson = (text: string): boolean => {
  if (!/^\s*[[{]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

const FITS: Record<(typeof GUESSED)[number], (text: string) => boolean> = {
  bigint: (text) => INTEGER.test(text) && BigInt(text) < BIGINT_MAX && BigInt(text) >= -BIGINT_MAX,
  numeric: (text) => /\d/.test(text) && NUMERIC.test(text),
  boolean: (text) => BOOLEAN.test(text),
  date: isDate,
  // Without a zone, its time would depend on the session's.
  timestamptz: (text) => ZONE.test(text) && isTimestamp(text.replace(ZONE, "")),
  timestamp: isTimestamp,
  uuid: (text) => UUID.test(text),
  jsonb: isJson,
};

/** The first type that fits all values; text if there are none. */
export const typeOf = (values: readonly (string | null | undefined)[]): Guessed => {
  const there = values.filter((value): value is string => Boolean(value));
  if (there.length === 0) return "text";
  return GUESSED.find((type) => there.every(FITS[type])) ?? "text";
};
