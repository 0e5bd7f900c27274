/** Names of fields: the service's have underscores, JavaScript's have capitals. */

/** The fields of an object, such as `affected_rows`, under their JavaScript names, such as `affectedRows`. */
export const camel = (fields: object): Record<string, unknown> =>
  renamed(fields, /_(.)/g, (_, letter: string) => letter.toUpperCase());

/** The opposite. */
export const snake = (fields: object): Record<string, unknown> =>
  renamed(fields, /[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

const renamed = (fields: object, pattern: RegExp, replace: (match: string, letter: string) => string) =>
  Object.fromEntries(
    Object.entries<unknown>(fields as Record<string, unknown>).map(([name, value]) => [
      name.replace(pattern, replace),
      value,
    ]),
  );
