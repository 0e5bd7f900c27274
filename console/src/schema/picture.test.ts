import { expect, it } from "vitest";
import type { DiagramTable } from "./diagram.ts";
import { pathsOf, pictureOf as pictureIn } from "./picture.ts";

const pictureOf = (tables: readonly DiagramTable[], ratio = 1.6) => pictureIn(tables, ratio);

const table = (name: string, columns: readonly string[], ...keys: [string[], string, string[]][]): DiagramTable => ({
  id: name,
  schema: "public",
  name,
  columns: columns.map((column, i) => ({ name: column, type: "bigint", isPrimary: i === 0 })),
  others: 0,
  keys: keys.map(([own, to, referenced], i) => ({
    name: `${name}_${i}`,
    columns: own,
    references: { id: to, schema: "public", name: to, columns: referenced },
    onDelete: "no action",
    onUpdate: "no action",
  })),
});

const SHOP = [
  table("countries", ["id", "name"]),
  table("customers", ["id", "country"], [["country"], "countries", ["id"]]),
  table("lines", ["id", "shop", "number"], [["shop", "number"], "orders", ["shop", "number"]]),
  table("loose", ["id"]),
  table("orders", ["shop", "number", "customer"], [["customer"], "customers", ["id"]], [["x"], "gone", ["id"]]),
  table("tree", ["id", "parent"], [["parent"], "tree", ["id"]]),
];

const picture = pictureOf(SHOP);
const placeOf = (name: string) => {
  const found = picture.tables.find(({ table: each }) => each.name === name);
  if (!found) throw new Error(name);
  return found;
};
const keyOf = (name: string) => {
  const found = picture.keys.find(({ from }) => from.name === name);
  if (!found) throw new Error(name);
  return found;
};

it("shows each table once, and each key whose tables are shown", () => {
  expect(picture.tables.map(({ table: each }) => each.name).sort()).toEqual(SHOP.map(({ name }) => name));
  expect(picture.keys.map(({ id }) => id).sort()).toEqual(["customers.0", "lines.0", "orders.0", "tree.0"]);
});

it("leads from the referencing column to the referenced one", () => {
  const { starts, ends, startSide, endSide } = keyOf("customers");
  const [from, to] = [placeOf("customers"), placeOf("countries")];
  expect([startSide, endSide]).toEqual([1, -1]);
  // The second line of one table and the first of the other.
  expect(starts).toEqual([{ x: from.x + from.width, y: from.y + 32 + 33 }]);
  expect(ends).toEqual([{ x: to.x, y: to.y + 32 + 11 }]);
});

it("leads from all columns of a key to all that they reference", () => {
  const { starts, ends } = keyOf("lines");
  const [from, to] = [placeOf("lines"), placeOf("orders")];
  expect(starts.map(({ y }) => y - from.y)).toEqual([65, 87]);
  expect(ends.map(({ y }) => y - to.y)).toEqual([43, 65]);
  const { line, arrows } = pathsOf(keyOf("lines"));
  expect(line.match(/M/g)).toHaveLength(5);
  expect(arrows.match(/Z/g)).toHaveLength(2);
});

it("draws a key of a table to itself as a loop at its right side", () => {
  const key = keyOf("tree");
  const { x, width } = placeOf("tree");
  expect([...key.starts, ...key.ends].map((point) => point.x)).toEqual([x + width, x + width]);
  expect([key.startSide, key.endSide]).toEqual([1, 1]);
  const { line, arrows } = pathsOf(key);
  expect(line.startsWith(`M${x + width} `)).toBe(true);
  expect(arrows.startsWith(`M${x + width} `)).toBe(true);
});

it("leads back on the other sides where tables reference each other", () => {
  const { keys } = pictureOf([
    table("a", ["id", "b"], [["b"], "b", ["id"]]),
    table("b", ["id", "a"], [["a"], "a", ["id"]]),
  ]);
  expect(keys.map(({ startSide, endSide }) => [startSide, endSide])).toEqual([
    [1, -1],
    [-1, 1],
  ]);
});

it("puts tables without keys below the others", () => {
  const bottom = Math.max(
    ...picture.tables.filter(({ table: each }) => each.name !== "loose").map(({ y, height }) => y + height),
  );
  expect(placeOf("loose").y).toBeGreaterThan(bottom);
  expect(picture.label?.y).toBeGreaterThan(bottom);
  expect(picture.label?.text).toBe("Without foreign keys");
  const alone = table("alone", ["id"], [["id"], "gone", ["id"]]);
  expect(pictureOf([...SHOP, alone]).label?.text).toBe("Not linked with those above");
  // Where there are no others, they need no heading.
  expect(pictureOf([table("a", ["id"])])).toMatchObject({ label: undefined, tables: [{ x: 0, y: 0 }] });
  expect(pictureOf([])).toEqual({ tables: [], keys: [], label: undefined });
});

it("leads to the head where a column is not listed", () => {
  const far = pictureOf([table("a", ["id"], [["hidden"], "b", ["id"]]), table("b", ["id"])]);
  expect((far.keys[0]?.starts[0]?.y ?? 0) - (far.tables.find(({ table: { name } }) => name === "a")?.y ?? 0)).toBe(16);
});

it("lets nothing overlap, and is the same each time", () => {
  const many = Array.from({ length: 200 }, (_, i) => {
    const columns = Array.from({ length: 1 + (i % 13) }, (__, n) => `column_${n}`);
    const keys = [i * 7, i * 3 + 1]
      .slice(0, i % 3)
      .map((to): [string[], string, string[]] => [["column_0"], `t${to % 150}`, ["column_0"]]);
    return table(`t${i}`, columns, ...keys);
  });
  const { tables, keys, label } = pictureOf(many);
  expect(tables).toHaveLength(200);
  expect(keys.length).toBeGreaterThan(150);
  const overlapping = tables.filter((a, i) =>
    tables.some(
      (b, j) => i !== j && a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height,
    ),
  );
  expect(overlapping).toEqual([]);
  expect(pictureOf(many)).toEqual({ tables, keys, label });
  const widthOf = (all: typeof tables) => Math.max(...all.map(({ x, width }) => x + width));
  expect(widthOf(pictureOf(many, 0.6).tables)).toBeLessThan(widthOf(tables));
});
