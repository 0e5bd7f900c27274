/** Tables and views by their names: how they are shown, and the address of each. */

interface Relation {
  schema: string;
  name: string;
}

/** In quotes, as in SQL, where a dot would be taken for the one between both names. */
const part = (name: string): string => (/[."]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);

/** Both names, by which no other one is known: `"sales.2026".orders` is not `sales."2026.orders"`. */
export const idOf = ({ schema, name }: Relation): string => `${part(schema)}.${part(name)}`;

/** The same, without the schema `public`. */
export const labelOf = ({ schema, name }: Relation): string =>
  schema === "public" ? part(name) : idOf({ schema, name });

/** The address of its rows, as `go` makes it. */
export const addressOf = (relation: Relation): string => `#/tables/${encodeURIComponent(idOf(relation))}`;
