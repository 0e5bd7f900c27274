/** Links that carry SQL after the #, which browsers do not send. */

const BEFORE = "#/query?sql=";

export const linkTo = (sql: string): string =>
  `${location.origin}${location.pathname}${BEFORE}${encodeURIComponent(sql)}`;

/** The SQL of a link, which is then taken out of the address. */
export const takeShared = (): string | undefined => {
  if (!location.hash.startsWith(BEFORE)) return undefined;
  const text = location.hash.slice(BEFORE.length);
  history.replaceState(null, "", "#/query");
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
};
