import { beforeEach, expect, it, vi } from "vitest";

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

const { StreamedRows } = await import("./stream.ts");

let rows: InstanceType<typeof StreamedRows>;
beforeEach(() => {
  rows = new StreamedRows({ sql: "select 1", params: [] }, "", true);
  FakeWorker.last.say({ kind: "progress", rows: 3, bytes: 9 });
});

it("is read-only if that is wanted", () => {
  expect(FakeWorker.last.said[0]).toMatchObject({ kind: "start", request: { body: { read_only: true } } });
});

it("reads what the worker has", async () => {
  const read = rows.read(1, 9);
  FakeWorker.last.say({ kind: "rows", chunk: 0, rows: [[1], [2], [3]] });
  expect(await read).toEqual([[2], [3]]);
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
