/** Where the tables and foreign keys of a diagram are drawn. Nothing of it is random: the same schema looks the same. */

import { labelOf } from "../app/relations.ts";
import { type DiagramTable, type ForeignKey, foreignColumns, shortType } from "./diagram.ts";
import { type Box, type Link, type Point, placeLayers } from "./layers.ts";

// What style.css makes of a table, in pixels.
export const HEAD_HEIGHT = 32;
export const ROW_HEIGHT = 22;
const FOOT = 5;
const LETTER_WIDTH = 7;
const NAME_LETTER_WIDTH = 7.8;
const TAG_WIDTH = 27;
const PADDING_WIDTH = 34;
const WIDTH_MIN = 150;
const WIDTH_MAX = 330;

const BLOCK_GAP = 72;
const LOOSE_GAP = 24;

const sizeOf = (table: DiagramTable): Box => {
  const foreign = foreignColumns(table);
  const lines = table.columns.map(({ name, type, isPrimary }) => {
    const tags = Number(isPrimary) + Number(foreign.has(name));
    return (name.length + shortType(type).length) * LETTER_WIDTH + tags * TAG_WIDTH + PADDING_WIDTH;
  });
  const width = Math.max(labelOf(table).length * NAME_LETTER_WIDTH + 24, ...lines);
  return {
    width: Math.round(Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, width))),
    height: HEAD_HEIGHT + FOOT + (table.columns.length + (table.others > 0 ? 1 : 0)) * ROW_HEIGHT,
  };
};

/** The middle of a column's line; that of the head for a column that is not listed. */
const lineOf = (table: DiagramTable, column: string): number => {
  const index = table.columns.findIndex(({ name }) => name === column);
  return index < 0 ? HEAD_HEIGHT / 2 : HEAD_HEIGHT + (index + 0.5) * ROW_HEIGHT;
};

const average = (all: readonly number[]): number => all.reduce((a, b) => a + b, 0) / (all.length || 1);

export interface PlacedTable extends Point, Box {
  table: DiagramTable;
}

export interface PlacedKey {
  id: string;
  from: DiagramTable;
  to: DiagramTable;
  key: ForeignKey;
  /** Where it leaves and where it arrives: one point for each column. */
  starts: Point[];
  ends: Point[];
  /** What it passes on its way. */
  way: Point[];
  /** Which sides of the tables these are: 1 for the right, -1 for the left. */
  startSide: 1 | -1;
  endSide: 1 | -1;
}

export interface Picture {
  tables: PlacedTable[];
  keys: PlacedKey[];
  /** What stands above the tables that no key links. Undefined if there are none, or no others. */
  label: (Point & { text: string }) | undefined;
}

interface Reference {
  id: string;
  from: DiagramTable;
  to: DiagramTable;
  key: ForeignKey;
}

/** The keys both of whose tables are shown. */
const referencesOf = (tables: readonly DiagramTable[]): Reference[] => {
  const byId = new Map(tables.map((table) => [table.id, table]));
  return tables.flatMap((from) =>
    from.keys.flatMap((key, i) => {
      const to = byId.get(key.references.id);
      return to ? [{ id: `${from.id}.${i}`, from, to, key }] : [];
    }),
  );
};

/** Tables that are linked with each other, directly or not. */
const groupsOf = (tables: readonly DiagramTable[], references: readonly Reference[]): DiagramTable[][] => {
  const groupOf = new Map(tables.map((table) => [table, [table]]));
  for (const { from, to } of references) {
    const [a, b] = [groupOf.get(from), groupOf.get(to)];
    if (!a || !b || a === b) continue;
    const [large, small] = a.length < b.length ? [b, a] : [a, b];
    for (const table of small) groupOf.set(table, large);
    large.push(...small);
  }
  const place = new Map(tables.map((table, i) => [table, i]));
  const byPlace = (a: DiagramTable, b: DiagramTable) => (place.get(a) ?? 0) - (place.get(b) ?? 0);
  // Large ones first; of the same size, in the order of their first tables.
  return [...new Set(groupOf.values())]
    .map((group) => group.sort(byPlace))
    .sort((a, b) => b.length - a.length || byPlace(a[0] as DiagramTable, b[0] as DiagramTable));
};

interface Block extends Box {
  tables: PlacedTable[];
  keys: PlacedKey[];
}

const blockOf = (tables: readonly DiagramTable[], references: readonly Reference[], ratio: number): Block => {
  const indexOf = new Map(tables.map((table, i) => [table, i]));
  const links = references.map(
    ({ from, to, key }): Link => ({
      from: indexOf.get(from) ?? 0,
      to: indexOf.get(to) ?? 0,
      fromY: average(key.columns.map((column) => lineOf(from, column))),
      toY: average(key.references.columns.map((column) => lineOf(to, column))),
    }),
  );
  const boxes = tables.map(sizeOf);
  const placed = placeLayers(boxes, links, ratio);
  const shown = tables.map((table, i) => ({
    table,
    ...(placed.boxes[i] as Point),
    width: placed.widths[i] ?? 0,
    height: boxes[i]?.height ?? 0,
  }));
  const keys = references.map((reference, i): PlacedKey => {
    const { from, to, key } = reference;
    const [source, target] = [shown[indexOf.get(from) ?? 0], shown[indexOf.get(to) ?? 0]] as [PlacedTable, PlacedTable];
    const startSide = target.x < source.x ? -1 : 1;
    const endSide = target.x > source.x ? -1 : 1;
    const points = (of: PlacedTable, side: 1 | -1, columns: readonly string[]) =>
      columns.map((column) => ({ x: side > 0 ? of.x + of.width : of.x, y: of.y + lineOf(of.table, column) }));
    return {
      ...reference,
      starts: points(source, startSide, key.columns),
      ends: points(target, endSide, key.references.columns),
      way: placed.ways[i] ?? [],
      startSide,
      endSide,
    };
  });
  return { tables: shown, keys, width: placed.width, height: placed.height };
};

const moved = (block: Block, by: Point): Block => {
  const move = <T extends Point>(point: T): T => ({ ...point, x: point.x + by.x, y: point.y + by.y });
  return {
    ...block,
    tables: block.tables.map(move),
    keys: block.keys.map((key) => ({
      ...key,
      starts: key.starts.map(move),
      ends: key.ends.map(move),
      way: key.way.map(move),
    })),
  };
};

/** Puts blocks in rows, whose width is that of the widest block or in a ratio to the height of all. */
const inRows = (blocks: readonly Block[], ratio: number): { blocks: Block[] } & Box => {
  const area = blocks.reduce((sum, { width, height }) => sum + (width + BLOCK_GAP) * (height + BLOCK_GAP), 0);
  const widthMax = Math.max(Math.sqrt(area * ratio), ...blocks.map(({ width }) => width));
  const corner = { x: 0, y: 0 };
  let rowHeight = 0;
  let width = 0;
  const placed = blocks.map((block) => {
    if (corner.x > 0 && corner.x + block.width > widthMax) {
      corner.x = 0;
      corner.y += rowHeight + BLOCK_GAP;
      rowHeight = 0;
    }
    const at = moved(block, corner);
    corner.x += block.width + BLOCK_GAP;
    rowHeight = Math.max(rowHeight, block.height);
    width = Math.max(width, corner.x - BLOCK_GAP);
    return at;
  });
  return { blocks: placed, width, height: blocks.length ? corner.y + rowHeight : 0 };
};

/** Tables without keys, each in the column that is shortest so far. */
const looseTables = (tables: readonly DiagramTable[], start: Point, wanted: number, ratio: number): PlacedTable[] => {
  const sizes = tables.map(sizeOf);
  const width = Math.max(...sizes.map((size) => size.width));
  const area = sizes.reduce((sum, { height }) => sum + (width + LOOSE_GAP) * (height + LOOSE_GAP), 0);
  const across = Math.max(wanted, Math.sqrt(area * ratio));
  const count = Math.max(1, Math.min(tables.length, Math.floor((across + LOOSE_GAP) / (width + LOOSE_GAP))));
  const bottoms = new Array<number>(count).fill(start.y);
  return tables.map((table, i) => {
    const column = bottoms.indexOf(Math.min(...bottoms));
    const y = bottoms[column] ?? start.y;
    const height = sizes[i]?.height ?? 0;
    bottoms[column] = y + height + LOOSE_GAP;
    return { table, x: start.x + column * (width + LOOSE_GAP), y, width, height };
  });
};

/**
 * Where everything is drawn. The same tables, in the same order, are always drawn in the same places. `ratio` is that of
 * the width that is wanted to the height.
 */
export const pictureOf = (tables: readonly DiagramTable[], ratio: number): Picture => {
  const references = referencesOf(tables);
  const linked = new Set(references.flatMap(({ from, to }) => [from, to]));
  const blocks = groupsOf(
    tables.filter((table) => linked.has(table)),
    references,
  ).map((group) =>
    blockOf(
      group,
      references.filter(({ from }) => group.includes(from)),
      ratio,
    ),
  );
  const placed = inRows(blocks, ratio);
  const loose = tables.filter((table) => !linked.has(table));
  const hasBoth = loose.length > 0 && blocks.length > 0;
  const start = { x: 0, y: hasBoth ? placed.height + BLOCK_GAP + HEAD_HEIGHT : 0 };
  // What they reference may not be shown.
  const text = loose.some(({ keys }) => keys.length > 0) ? "Not linked with those above" : "Without foreign keys";
  return {
    tables: [
      ...placed.blocks.flatMap((block) => block.tables),
      ...(loose.length ? looseTables(loose, start, placed.width, ratio) : []),
    ],
    keys: placed.blocks.flatMap((block) => block.keys),
    label: hasBoth ? { x: 0, y: start.y - HEAD_HEIGHT, text } : undefined,
  };
};

const STUB = 16;
const LOOP = 34;
const ARROW = { length: 8, half: 4 };

const curve = (a: Point, b: Point, aSide: number, bSide: number): string => {
  const reach = Math.max(24, Math.abs(b.x - a.x) / 2);
  return `C${a.x + aSide * reach} ${a.y} ${b.x + bSide * reach} ${b.y} ${b.x} ${b.y}`;
};

/** The line of a key and its arrows, as paths of SVG. Of several columns, lines join and part again. */
export const pathsOf = ({
  from,
  to,
  starts,
  ends,
  way,
  startSide,
  endSide,
}: PlacedKey): {
  line: string;
  arrows: string;
} => {
  const middle = (points: readonly Point[], side: number, distance: number): Point => ({
    x: (points[0]?.x ?? 0) + side * distance,
    y: average(points.map(({ y }) => y)),
  });
  const isLoop = from === to;
  const start = middle(starts, startSide, starts.length > 1 ? STUB : 0);
  const end = middle(ends, endSide, ends.length > 1 ? STUB + ARROW.length : ARROW.length);
  const parts: string[] = [];
  for (const { x, y } of starts.length > 1 ? starts : []) {
    parts.push(`M${x} ${y}Q${start.x} ${y} ${start.x} ${start.y}`);
  }
  parts.push(`M${start.x} ${start.y}`);
  if (isLoop) {
    const x = Math.max(start.x, end.x) + LOOP;
    parts.push(`C${x} ${start.y} ${x} ${end.y} ${end.x} ${end.y}`);
  } else {
    let before = start;
    way.forEach((point, i) => {
      // From layer to layer a curve, and straight on within a layer.
      parts.push(i % 2 ? `L${point.x} ${point.y}` : curve(before, point, startSide, -startSide));
      before = point;
    });
    parts.push(curve(before, end, startSide, endSide));
  }
  for (const { x, y } of ends.length > 1 ? ends : []) {
    parts.push(`M${end.x} ${end.y}Q${end.x} ${y} ${x + endSide * ARROW.length} ${y}`);
  }
  const arrows = ends.map(({ x, y }) => {
    const back = x + endSide * ARROW.length;
    return `M${x} ${y}L${back} ${y - ARROW.half}L${back} ${y + ARROW.half}Z`;
  });
  return { line: parts.join(""), arrows: arrows.join("") };
};
