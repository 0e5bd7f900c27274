/**
 * Places boxes in layers, each of which stands to the right of those that lead to it. The same boxes and links always
 * get the same places. `placeLayers` is for boxes that are all linked with each other, directly or not.
 *
 * The steps are those of Sugiyama: break cycles, find layers, order each layer so that few links cross, and find places
 * in this order. A link that passes layers has a slot in each of them.
 */

export interface Box {
  width: number;
  height: number;
}

/** A link from one box to another, by their indexes, with the heights at which it leaves and arrives. */
export interface Link {
  from: number;
  to: number;
  fromY: number;
  toY: number;
}

export interface Point {
  x: number;
  y: number;
}

export interface Placed {
  /** The top left corners, by index. */
  boxes: Point[];
  /** The width of each box: that of the widest one in its layer. */
  widths: number[];
  /** Points that each link passes on its way, by index: both ends of its slot in each layer. */
  ways: Point[][];
  width: number;
  height: number;
}

const GAP_X = 96;
const GAP_Y = 28;
const SLOT_HEIGHT = 10;
const SLOT_GAP_Y = 8;
/** A layer may be that high in any case. */
const HEIGHT_MIN = 640;
const ORDER_ROUNDS = 8;
const PLACE_ROUNDS = 8;

/** A box, or the slot of a link in a layer. */
interface Item {
  /** The index of the box; undefined for a slot. */
  box?: number;
  layer: number;
  height: number;
  y: number;
}

/** A link between items of adjacent layers: `left` is in the layer with the higher number. */
interface Step {
  left: Item;
  right: Item;
  leftY: number;
  rightY: number;
}

/** Which links lead back, so that without them there is no cycle. Links from a box to itself don't count. */
const backLinks = (count: number, links: readonly Link[]): Set<Link> => {
  const back = new Set<Link>();
  const state: ("new" | "open" | "done")[] = Array.from({ length: count }, () => "new");
  const leaving = groups(count, links, ({ from }) => from);
  for (let start = 0; start < count; start += 1) {
    // Not recursive: a chain may have as many boxes as there are.
    const open: { box: number; next: number }[] = [];
    const enter = (box: number) => {
      state[box] = "open";
      open.push({ box, next: 0 });
    };
    if (state[start] === "new") enter(start);
    for (let top = open.at(-1); top; top = open.at(-1)) {
      const link = at(leaving, top.box)[top.next];
      top.next += 1;
      if (!link) {
        state[top.box] = "done";
        open.pop();
      } else if (state[link.to] === "open") back.add(link);
      else if (state[link.to] === "new") enter(link.to);
    }
  }
  return back;
};

const at = <T>(all: readonly T[], index: number): T => {
  const found = all[index];
  if (found === undefined) throw new RangeError(`There is nothing at ${index}.`);
  return found;
};

const groups = <T>(count: number, all: readonly T[], indexOf: (each: T) => number): T[][] => {
  const found: T[][] = Array.from({ length: count }, () => []);
  for (const each of all) at(found, indexOf(each)).push(each);
  return found;
};

const add = <K, T>(all: Map<K, T[]>, key: K, value: T): void => {
  const known = all.get(key);
  if (known) known.push(value);
  else all.set(key, [value]);
};

/** Boxes, each after all that it leads to. */
const sorted = (count: number, links: readonly Link[]): number[] => {
  const waits = groups(count, links, ({ from }) => from).map(({ length }) => length);
  const arriving = groups(count, links, ({ to }) => to);
  const ready = waits.flatMap((wait, box) => (wait === 0 ? [box] : []));
  for (let i = 0; i < ready.length; i += 1) {
    for (const { from } of at(arriving, at(ready, i))) {
      waits[from] = at(waits, from) - 1;
      if (waits[from] === 0) ready.push(from);
    }
  }
  return ready;
};

/**
 * The layer of each box, counted from the right: each link leads to a lower one. A box goes where its links are short,
 * and further to the left if a layer would be higher than the picture should be.
 */
const layersOf = (boxes: readonly Box[], links: readonly Link[], ratio: number): number[] => {
  const leaving = groups(boxes.length, links, ({ from }) => from);
  const arriving = groups(boxes.length, links, ({ to }) => to);
  const order = sorted(boxes.length, links);
  const layers = boxes.map(() => 0);
  const lowest = (box: number) => Math.max(0, ...at(leaving, box).map(({ to }) => at(layers, to) + 1));
  for (const box of order) layers[box] = lowest(box);
  // What more links lead to than leave it goes to the left, next to the nearest of those from which they come.
  for (const box of [...order].reverse()) {
    const coming = at(arriving, box);
    if (coming.length > at(leaving, box).length) {
      layers[box] = Math.min(...coming.map(({ from }) => at(layers, from) - 1));
    }
  }
  const area = boxes.reduce((sum, { width, height }) => sum + (width + GAP_X) * (height + GAP_Y), 0);
  const heightMax = Math.max(HEIGHT_MIN, Math.sqrt(area / ratio), ...boxes.map(({ height }) => height + GAP_Y));
  const heights: number[] = [];
  const wanted = [...layers];
  const places = order.map((box, place) => ({ box, place }));
  places.sort((a, b) => at(wanted, a.box) - at(wanted, b.box) || a.place - b.place);
  for (const { box } of places) {
    const height = at(boxes, box).height + GAP_Y;
    let layer = Math.max(at(wanted, box), lowest(box));
    while ((heights[layer] ?? 0) + height > heightMax && (heights[layer] ?? 0) > 0) layer += 1;
    heights[layer] = (heights[layer] ?? 0) + height;
    layers[box] = layer;
  }
  // A layer between may have remained empty.
  const used = [...new Set(layers)].sort((a, b) => a - b);
  return layers.map((layer) => used.indexOf(layer));
};

/** How many steps between two layers cross. */
const crossings = (steps: readonly Step[], placeOf: Map<Item, number>): number => {
  const place = (item: Item) => placeOf.get(item) ?? 0;
  const rights = [...steps]
    .sort((a, b) => place(a.left) - place(b.left) || place(a.right) - place(b.right))
    .map(({ right }) => place(right));
  // Those before it that arrive further down, counted in a tree of sums.
  const sums = new Array<number>(Math.max(0, ...rights) + 2).fill(0);
  let count = 0;
  rights.forEach((right, before) => {
    let notBelow = 0;
    for (let i = right + 1; i > 0; i -= i & -i) notBelow += at(sums, i);
    count += before - notBelow;
    for (let i = right + 1; i < sums.length; i += i & -i) sums[i] = at(sums, i) + 1;
  });
  return count;
};

/** Puts the items of each layer into an order in which few steps cross. */
const order = (layers: readonly Item[][], steps: readonly Step[]): Item[][] => {
  const byLeft = groups(layers.length, steps, ({ left }) => left.layer);
  const total = (all: readonly Item[][]) => {
    const placeOf = new Map(all.flatMap((items) => items.map((item, place) => [item, place] as const)));
    return byLeft.reduce((sum, between) => sum + crossings(between, placeOf), 0);
  };
  let now = layers.map((items) => [...items]);
  let best = now;
  let least = total(now);
  for (let round = 0; round < ORDER_ROUNDS; round += 1) {
    now = round % 2 ? swept(now, steps, "left", "right") : swept(now, steps, "right", "left");
    const found = total(now);
    // Of orders that are as good, a later one is more even: slots go to the middle of what passes them.
    if (found <= least) {
      best = now;
      least = found;
    }
  }
  return best;
};

/** Orders each layer by the average places of the neighbours on one side, layer by layer from that side. */
const swept = (
  layers: readonly Item[][],
  steps: readonly Step[],
  side: "left" | "right",
  self: "left" | "right",
): Item[][] => {
  const neighbours = new Map<Item, Item[]>();
  for (const step of steps) add(neighbours, step[self], step[side]);
  const result = layers.map((items) => [...items]);
  const placeOf = new Map<Item, number>();
  const numbers = result.map((_, i) => i);
  for (const number of side === "right" ? numbers : numbers.reverse()) {
    const items = at(result, number);
    const wanted = new Map(
      items.map((item, place) => {
        const places = (neighbours.get(item) ?? []).map((each) => placeOf.get(each) ?? 0);
        // Without neighbours it stays where it is.
        return [item, places.length ? places.reduce((a, b) => a + b) / places.length : place];
      }),
    );
    items.sort((a, b) => (wanted.get(a) ?? 0) - (wanted.get(b) ?? 0));
    items.forEach((item, place) => {
      placeOf.set(item, place);
    });
  }
  return result;
};

const gapBetween = (a: Item, b: Item): number => (a.box === undefined && b.box === undefined ? SLOT_GAP_Y : GAP_Y);

/**
 * Sets where the items of a layer begin, as close as their order allows to where they want to be: neighbours that would
 * overlap form a block, which goes where its members want to be on average.
 */
const settle = (items: readonly Item[], wanted: ReadonlyMap<Item, number>): void => {
  const blocks: { items: Item[]; offsets: number[]; sum: number; end: number }[] = [];
  const startOf = ({ sum, items: members }: { sum: number; items: Item[] }) => sum / members.length;
  for (const item of items) {
    let block = { items: [item], offsets: [0], sum: wanted.get(item) ?? item.y, end: item.height };
    for (let before = blocks.at(-1); before; before = blocks.at(-1)) {
      const gap = gapBetween(at(before.items, before.items.length - 1), at(block.items, 0));
      const shift = before.end + gap;
      if (startOf(before) + shift <= startOf(block)) break;
      blocks.pop();
      block = {
        items: [...before.items, ...block.items],
        offsets: [...before.offsets, ...block.offsets.map((offset) => offset + shift)],
        sum: before.sum + block.sum - shift * block.items.length,
        end: shift + block.end,
      };
    }
    blocks.push(block);
  }
  for (const block of blocks) {
    block.items.forEach((item, i) => {
      item.y = startOf(block) + at(block.offsets, i);
    });
  }
};

/** Finds heights at which the steps are as straight as the order allows. */
const straighten = (layers: readonly Item[][], steps: readonly Step[]): void => {
  for (const items of layers) {
    let y = 0;
    for (const item of items) {
      item.y = y;
      y += item.height + GAP_Y;
    }
  }
  const wishes = new Map<Item, { other: Item; by: number }[]>();
  for (const { left, right, leftY, rightY } of steps) {
    add(wishes, left, { other: right, by: rightY - leftY });
    add(wishes, right, { other: left, by: leftY - rightY });
  }
  const numbers = layers.map((_, i) => i);
  for (let round = 0; round < PLACE_ROUNDS; round += 1) {
    for (const number of round % 2 ? [...numbers].reverse() : numbers) {
      const items = at(layers, number);
      const wanted = new Map(
        items.map((item) => {
          const all = wishes.get(item) ?? [];
          const sum = all.reduce((before, { other, by }) => before + other.y + by, 0);
          return [item, all.length ? sum / all.length : item.y];
        }),
      );
      settle(items, wanted);
    }
  }
};

/**
 * Adds to each layer the slots of the links that pass it. Links to the same place share a slot, and go on together. All
 * steps, and the slots of each link.
 */
const throughLayers = (
  items: readonly Item[],
  layers: readonly Item[][],
  links: readonly Link[],
): { slots: Item[][]; steps: Step[] } => {
  const known = new Map<string, Item>();
  const steps: Step[] = [];
  const slots = links.map(({ from, to, fromY, toY }) => {
    const own: Item[] = [];
    let [left, leftY] = [at(items, from), fromY];
    // Where it meets another one, the steps from there on are those of both.
    let isAlone = from !== to;
    for (let layer = left.layer - 1; layer > at(items, to).layer; layer -= 1) {
      const place = `${to} ${toY} ${layer}`;
      const slot: Item = known.get(place) ?? { layer, height: SLOT_HEIGHT, y: 0 };
      if (isAlone) steps.push({ left, right: slot, leftY, rightY: SLOT_HEIGHT / 2 });
      isAlone = !known.has(place);
      if (isAlone) {
        known.set(place, slot);
        at(layers, layer).push(slot);
      }
      own.push(slot);
      [left, leftY] = [slot, SLOT_HEIGHT / 2];
    }
    if (isAlone) steps.push({ left, right: at(items, to), leftY, rightY: toY });
    return own;
  });
  return { slots, steps };
};

/** `ratio` is that of the width that is wanted to the height. */
export const placeLayers = (boxes: readonly Box[], links: readonly Link[], ratio: number): Placed => {
  const back = backLinks(
    boxes.length,
    links.filter(({ from, to }) => from !== to),
  );
  const isForward = (link: Link) => !back.has(link);
  // In the direction of the layers.
  const turned = links.map((link) =>
    isForward(link) ? link : { from: link.to, to: link.from, fromY: link.toY, toY: link.fromY },
  );
  const layerOf = layersOf(
    boxes,
    turned.filter(({ from, to }) => from !== to),
    ratio,
  );
  const items: Item[] = boxes.map(({ height }, box) => ({ box, layer: at(layerOf, box), height, y: 0 }));
  const layers: Item[][] = groups(Math.max(-1, ...layerOf) + 1, items, ({ layer }) => layer);
  const { slots, steps } = throughLayers(items, layers, turned);
  const ordered = order(layers, steps);
  straighten(ordered, steps);
  return placed(boxes, items, slots, ordered, links.map(isForward));
};

/** From layers to coordinates: the layer with the highest number begins at the left. */
const placed = (
  boxes: readonly Box[],
  items: readonly Item[],
  slots: readonly Item[][],
  layers: readonly Item[][],
  forward: readonly boolean[],
): Placed => {
  const widths = layers.map((members) =>
    Math.max(0, ...members.map(({ box }) => (box === undefined ? 0 : at(boxes, box).width))),
  );
  const lefts: number[] = [];
  let x = 0;
  for (let layer = layers.length - 1; layer >= 0; layer -= 1) {
    lefts[layer] = x;
    x += at(widths, layer) + GAP_X;
  }
  const all = layers.flat();
  const top = Math.min(...all.map(({ y }) => y));
  const bottom = Math.max(...all.map(({ y, height }) => y + height));
  const wayOf = (own: readonly Item[]) =>
    own.flatMap(({ layer, y }) => {
      const left = at(lefts, layer);
      const middle = Math.round(y - top + SLOT_HEIGHT / 2);
      return [
        { x: left, y: middle },
        { x: left + at(widths, layer), y: middle },
      ];
    });
  return {
    boxes: items.map(({ layer, y }) => ({ x: at(lefts, layer), y: Math.round(y - top) })),
    widths: items.map(({ layer }) => at(widths, layer)),
    ways: slots.map((own, i) => (forward[i] ? wayOf(own) : wayOf(own).reverse())),
    width: Math.max(0, x - GAP_X),
    height: Math.ceil(bottom - top),
  };
};
