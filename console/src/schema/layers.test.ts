import { expect, it } from "vitest";
import { type Box, type Link, type Placed, placeLayers as placeInLayers } from "./layers.ts";

const placeLayers = (all: readonly Box[], links: readonly Link[], ratio = 1.6) => placeInLayers(all, links, ratio);
const box = (height = 60, width = 100) => ({ width, height });
const boxes = (count: number) => Array.from({ length: count }, () => box());
const link = (from: number, to: number): Link => ({ from, to, fromY: 30, toY: 30 });

const overlaps = (all: readonly { width: number; height: number }[], { boxes: places }: Placed): [number, number][] =>
  places.flatMap((a, i) =>
    places.flatMap((b, j): [number, number][] =>
      i < j &&
      a.x < b.x + (all[j]?.width ?? 0) &&
      b.x < a.x + (all[i]?.width ?? 0) &&
      a.y < b.y + (all[j]?.height ?? 0) &&
      b.y < a.y + (all[i]?.height ?? 0)
        ? [[i, j]]
        : [],
    ),
  );

/** Links and boxes that look arbitrary, and are always the same. */
const arbitrary = (count: number, links: number): { all: { width: number; height: number }[]; between: Link[] } => {
  let seed = 42;
  const next = (below: number) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * below);
  };
  return {
    all: Array.from({ length: count }, () => box(40 + next(300), 80 + next(200))),
    between: Array.from({ length: links }, () => link(next(count), next(count))),
  };
};

it("puts what a link leads to at the right, at the same height", () => {
  const { boxes: places, width, height } = placeLayers(boxes(3), [link(0, 1), link(1, 2)]);
  expect(places.map(({ y }) => y)).toEqual([0, 0, 0]);
  expect(places[0]?.x).toBe(0);
  expect(places[1]?.x).toBeGreaterThan(100);
  expect(places[2]?.x).toBeGreaterThan((places[1]?.x ?? 0) + 100);
  expect([width, height]).toEqual([(places[2]?.x ?? 0) + 100, 60]);
});

it("joins the heights at which a link leaves and arrives", () => {
  const { boxes: places } = placeLayers([box(200), box(60)], [{ from: 0, to: 1, fromY: 150, toY: 10 }]);
  expect((places[0]?.y ?? 0) + 150).toBe((places[1]?.y ?? 0) + 10);
});

it("breaks cycles, and takes links from a box to itself", () => {
  const cycle = [link(0, 1), link(1, 2), link(2, 0), link(1, 1)];
  const { boxes: places, ways } = placeLayers(boxes(3), cycle);
  expect(new Set(places.map(({ x }) => x)).size).toBe(3);
  // The one that leads back passes the layer between, from right to left.
  expect(ways.map(({ length }) => length)).toEqual([0, 0, 2, 0]);
  expect(ways[2]?.[0]?.x).toBeGreaterThan(ways[2]?.[1]?.x ?? Number.NaN);
});

it("leads a long link around the boxes that it passes", () => {
  const all = boxes(3);
  const { boxes: places, ways } = placeLayers(all, [link(0, 1), link(1, 2), link(0, 2)]);
  const [way, between] = [ways[2], places[1]];
  expect(way).toHaveLength(2);
  expect(way?.map(({ x }) => x)).toEqual([between?.x, (between?.x ?? 0) + 100]);
  for (const { y } of way ?? []) expect(y < (between?.y ?? 0) || y > (between?.y ?? 0) + 60).toBe(true);
});

it("leads long links to the same place together", () => {
  const links = [link(0, 1), link(1, 2), link(2, 3), link(0, 3), link(1, 3)];
  const { ways } = placeLayers(boxes(4), links);
  expect(ways.map(({ length }) => length)).toEqual([0, 0, 0, 4, 2]);
  expect(ways[3]?.slice(2)).toEqual(ways[4]);
});

it("orders boxes so that links don't cross", () => {
  // As given, 0 → 5, 1 → 4 and 2 → 3 cross.
  const { boxes: places } = placeLayers(boxes(7), [
    link(0, 5),
    link(1, 4),
    link(2, 3),
    link(0, 6),
    link(1, 6),
    link(2, 6),
  ]);
  const byHeight = (...indexes: number[]) => indexes.sort((a, b) => (places[a]?.y ?? 0) - (places[b]?.y ?? 0));
  const left = byHeight(0, 1, 2);
  const right = byHeight(3, 4, 5);
  expect(left.map((index) => 5 - index)).toEqual(right);
});

it("spreads many boxes over several layers", () => {
  const all = boxes(61);
  const links = Array.from({ length: 60 }, (_, i) => link(i + 1, 0));
  const wide = placeLayers(all, links);
  const tall = placeLayers(all, links, 0.6);
  expect(overlaps(all, wide)).toEqual([]);
  expect(overlaps(all, tall)).toEqual([]);
  expect(wide.width / wide.height).toBeGreaterThan(1);
  expect(wide.width / wide.height).toBeLessThan(4);
  expect(tall.width / tall.height).toBeLessThan(1);
});

it("lets no two boxes overlap, and gives the same places again", () => {
  const { all, between } = arbitrary(120, 200);
  const placed = placeLayers(all, between);
  expect(overlaps(all, placed)).toEqual([]);
  expect(Math.min(...placed.boxes.map(({ x }) => x))).toBe(0);
  expect(Math.min(...placed.boxes.map(({ y }) => y))).toBeGreaterThanOrEqual(0);
  expect(placed.boxes.every(({ x }, i) => x + (placed.widths[i] ?? 0) <= placed.width)).toBe(true);
  expect(placeLayers(all, between)).toEqual(placed);
});

it("places a long chain, and nothing", () => {
  const chain = Array.from({ length: 199 }, (_, i) => link(i, i + 1));
  expect(placeLayers(boxes(200), chain).boxes[199]?.x).toBeGreaterThan(199 * 100);
  expect(placeLayers([box()], [])).toMatchObject({ boxes: [{ x: 0, y: 0 }], width: 100, height: 60 });
});
