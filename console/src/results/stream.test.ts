import { afterEach, beforeEach, expect, it, vi } from "vitest";

class FakeWorker extends EventTarget {
  static last: FakeWorker;
  readonly said: unknown[] = [];
  constructor() {
    super();
    FakeWorker.last = this;
  }
  postMessage = (message: unknown) => void this.said.push(message);
  terminate = () => undefined;
  say = (data: unknown) => this.dispatchEvent(new MessageEvent("message", { data }));
}
vi.stubGlobal("Worker", FakeWorker);
vi.mock("../api/session.ts", () => ({ current: () => ({ dataUrl: "https://d", token: "t" }), end: () => undefined }));

const { MAX_BYTES, StreamedRows } = await import("./stream.ts");

let rows: InstanceType<typeof StreamedRows>;
beforeEach(() => {
  rows = new StreamedRows({ sql: "select 1", params: [] }, "", true);
  FakeWorker.last.say({ kind: "progress", rows: 3, bytes: 9, starts: [0] });
});

afterEach(() => rows.close());

it("keeps so many bytes in all streams of the page together", () => {
  const other = () => new StreamedRows({ sql: "select 1", params: [] }, "", true);
  const start = () => FakeWorker.last.said[0];
  FakeWorker.last.say({ kind: "columns", columns: ["a"], types: ["text"], requestId: "", isBuffered: false });
  FakeWorker.last.say({ kind: "progress", rows: 4, bytes: 200e6, starts: [] });
  const second = other();
  expect(start()).toMatchObject({ request: { maxBytes: MAX_BYTES - 200e6 } });
  const { last: worker } = FakeWorker;
  worker.say({ kind: "progress", rows: 1, bytes: 50e6, starts: [0] });
  const third = other();
  expect(start()).toMatchObject({ request: { maxBytes: MAX_BYTES - 250e6 } });
  expect(worker.said).toHaveLength(1);
  FakeWorker.last.say({ kind: "progress", rows: 1, bytes: 7e6, starts: [0] });
  expect(FakeWorker.last.said.at(-1)).toEqual({ kind: "full" });
  rows.close();
  third.close();
  const fourth = other();
  expect(start()).toMatchObject({ request: { maxBytes: MAX_BYTES - 50e6 } });
  second.close();
  fourth.close();
});

it("is read-only if that is wanted", () => {
  expect(FakeWorker.last.said[0]).toMatchObject({ kind: "start", request: { body: { read_only: true } } });
});

it("reads what the worker has", async () => {
  const read = rows.read(1, 9);
  FakeWorker.last.say({ kind: "rows", chunk: 0, rows: [[1], [2], [3]], bytes: 9 });
  expect(await read).toEqual([[2], [3]]);
});

it("drops what was not used for longest when it is too large", async () => {
  FakeWorker.last.say({ kind: "progress", rows: 6, bytes: 60e6, starts: [3, 4, 5] });
  const said = () => FakeWorker.last.said.filter((each) => (each as { kind: string }).kind === "chunk").length;
  for (const [chunk, count] of [
    [0, 3],
    [1, 1],
    [2, 1],
  ] as const) {
    FakeWorker.last.say({ kind: "rows", chunk, rows: Array(count).fill([chunk]), bytes: 10e6 });
  }
  // However large, what is visible stays; the first one is used once more.
  expect([0, 3, 4, 1].map((row) => rows.at(row))).toEqual([[0], [1], [2], [0]]);
  FakeWorker.last.say({ kind: "rows", chunk: 3, rows: [[3]], bytes: 10e6 });
  expect([0, 4, 5].map((row) => rows.at(row))).toEqual([[0], [2], [3]]);
  expect(said()).toBe(0);
  expect(rows.at(3)).toBeUndefined();
  expect(said()).toBe(1);
});

it("waits for no rows that do not come", async () => {
  const read = rows.read(0, 3);
  rows.close();
  await expect(read).rejects.toThrow("no longer here");
  await expect(rows.read(0, 3)).rejects.toThrow("no longer here");
});

it("ends what waits when its worker fails", async () => {
  const read = rows.read(0, 3);
  FakeWorker.last.dispatchEvent(new Event("error"));
  await expect(read).rejects.toThrow("no longer here");
  expect(rows.state).toMatchObject({ kind: "failed", error: { outcome: "unknown" } });
});
