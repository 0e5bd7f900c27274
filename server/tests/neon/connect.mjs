// What the programs for query builders share: {url, key, table}, a connection string, and how they print what they saw.
import { neonConfig } from "@neondatabase/serverless";

export const given = JSON.parse(process.argv[2]);
neonConfig.fetchEndpoint = () => `${given.url}/sql`;
export const connection_string = `postgresql://app:${given.key}@localhost/main`;

const exact = (_, value) => (typeof value === "bigint" ? `${value}n` : value);

export function print(seen) {
  console.log(JSON.stringify(seen, exact));
}

export async function failure(call) {
  try {
    await call();
  } catch (error) {
    const { code, position, message, constraint } = error.cause ?? error;
    return { code, position, message, constraint };
  }
}
