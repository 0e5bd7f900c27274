import { beforeEach, expect, it, vi } from "vitest";

const posted: unknown[] = [];
let hear: (event: { data: unknown }) => void = () => undefined;
const kept = new Map<string, string>();

vi.stubGlobal(
  "BroadcastChannel",
  class {
    postMessage = (message: unknown) => void posted.push(message);
    addEventListener = (_: string, listener: typeof hear) => {
      hear = listener;
    };
  },
);
vi.stubGlobal("sessionStorage", {
  getItem: (key: string) => kept.get(key) ?? null,
  setItem: (key: string, value: string) => void kept.set(key, value),
  removeItem: (key: string) => void kept.delete(key),
});

const { dueOf, end, ended, expire, keep, session } = await import("./session.ts");

const HOUR_MS = 3_600_000;
const inMs = (ms: number) => new Date(Date.now() + ms).toISOString();
const made = (expiresAt: string) =>
  ({ id: "ses_1", token: "t", expiresAt, scopes: [], database: null }) as unknown as Parameters<typeof keep>[0];

beforeEach(() => {
  session.set(undefined);
  posted.length = 0;
});

it("expires in this tab only, and not while it is valid", () => {
  keep(made(inMs(HOUR_MS)));
  expire();
  expect(session.get()).toBeDefined();
  keep(made(inMs(-1)));
  expire();
  expect([session.get(), ended.get(), posted]).toEqual([undefined, "expired", []]);
});

it("tells the other tabs that it was extended, and that it was ended", () => {
  keep(made(inMs(HOUR_MS)));
  const later = inMs(24 * HOUR_MS);
  keep(made(later));
  end("signed out");
  expect(posted).toEqual([
    { id: "ses_1", expiresAt: later },
    { id: "ses_1", why: "signed out" },
  ]);
  expect([...kept.keys()]).toEqual([]);
});

it("takes the later end from another tab, and its sign-out", () => {
  keep(made(inMs(HOUR_MS)));
  const later = inMs(20 * HOUR_MS);
  hear({ data: { id: "ses_1", expiresAt: later } });
  hear({ data: { id: "ses_1", expiresAt: inMs(2 * HOUR_MS) } });
  hear({ data: { id: "ses_2", why: "signed out" } });
  expect(session.get()?.expiresAt).toBe(later);
  hear({ data: { id: "ses_1", why: "signed out" } });
  expect(session.get()).toBeUndefined();
});

it("is extended in its second half, down to its end, unless it can't be", () => {
  expect([13, 11, 5, 0.1, 0].map((hours) => dueOf(hours * HOUR_MS, false))).toEqual([
    "check",
    "refresh",
    "refresh",
    "refresh",
    "ask",
  ]);
  expect(dueOf(5 * HOUR_MS, true)).toBe("check");
});
