import { afterEach, beforeEach, expect, it, vi } from "vitest";

const sent: string[] = [];
const noNetwork = () => Promise.reject(new TypeError("no network"));
let answered: (route: string) => Promise<Response> = noNetwork;
vi.stubGlobal("fetch", (url: string, { method = "GET" }: RequestInit = {}) => {
  const route = `${method} ${new URL(url).pathname}`;
  sent.push(route);
  return answered(route);
});
vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: () => undefined, removeItem: () => undefined });
vi.stubGlobal("addEventListener", () => undefined);
vi.stubGlobal("location", { hash: "", hostname: "localhost", origin: "https://localhost", pathname: "/console" });

const { NONE, withUpdate } = await import("../schema/edits.ts");
const { changesOf, unsaved } = await import("../schema/unsaved.ts");
const { store } = await import("../api/store.ts");
const { link } = await import("../api/link.ts");
const { session } = await import("../api/session.ts");
const { answer, asked, holdUnsaved, mayLeave } = await import("../app/leaving.ts");
const { followLink, linkFault } = await import("./links.ts");

const TOKEN = `svc_s_${"Abc".repeat(12)}42`;
const here = {
  id: "ses_1",
  token: "t",
  organization: { id: "org_1" },
  controlUrl: "https://localhost",
  ownKey: null,
} as never;
const ANSWERS: Record<string, unknown> = {
  "GET /": { data_url: "https://localhost:1", version: "1" },
  "GET /v1/organizations/current": {
    credential: { id: "ses_2", scopes: ["read"], expires_at: "2100-01-01T00:00:00Z", database: null },
    default_database: "main",
    organization: { id: "org_1" },
  },
  "POST /v1/keys": { key: { id: "key_1", secret: "svc_k_x" } },
  "POST /v1/session": { session: { token: "new" } },
};
/** A service that signs one in, and what is done before it answers. */
const service =
  (before: (route: string) => void) =>
  async (route: string): Promise<Response> => {
    before(route);
    const body = ANSWERS[route];
    return new Response(body ? JSON.stringify(body) : null, { status: body ? 200 : 204 });
  };
const kept = {
  owner: { organization: "org_1", database: "main", schema: "public", table: "t" },
  changes: store(changesOf(withUpdate(NONE, [1], "title", "x"))),
} as never;
let release: () => void = () => undefined;

const follow = (token: string) => {
  link.set(token);
  followLink(token);
};

beforeEach(() => {
  sent.length = 0;
  session.set(here);
  release = holdUnsaved();
});
afterEach(() => {
  answer(false);
  release();
  unsaved.set([]);
  answered = noNetwork;
  location.hostname = "localhost";
});

it("asks one who has something that is not saved, and follows the link only then", async () => {
  follow(TOKEN);
  expect([asked.get() !== undefined, sent]).toEqual([true, []]);
  answer(false);
  expect([link.get(), sent]).toEqual([undefined, []]);
  follow(TOKEN);
  answer(true);
  await vi.waitFor(() => expect(link.get()).toBeUndefined());
  expect(sent.length).toBeGreaterThan(0);
  // It was of no use.
  expect(session.get()).toBe(here);
});

it("asks nothing, and goes nowhere, by a link that was cut off, or to another host", () => {
  follow("");
  location.hostname = "console.example";
  follow(TOKEN);
  expect([asked.get(), link.get(), sent, session.get()]).toEqual([undefined, undefined, [], here]);
  session.set(undefined);
  follow(TOKEN);
  expect(linkFault.get()).toContain("on your own computer only");
});

it("asks about changes of tables that are not shown", () => {
  release();
  unsaved.set([kept]);
  follow(TOKEN);
  expect([asked.get()?.others, sent]).toEqual(["1 change in main: public.t, not saved", []]);
});

it("asks nothing without a session, and keeps what one signs in for", async () => {
  release();
  answered = service(() => undefined);
  session.set(undefined);
  unsaved.set([kept]);
  follow(TOKEN);
  await vi.waitFor(() => expect(link.get()).toBeUndefined());
  expect([asked.get(), session.get()?.id, unsaved.get()]).toEqual([undefined, "ses_2", [kept]]);
});

it.each(["stays", "leaves"])("asks again about what was changed while the link was at work: one %s", async (what) => {
  release();
  answered = service((route) => {
    if (route === "POST /v1/session") release = holdUnsaved();
  });
  follow(TOKEN);
  await vi.waitFor(() => expect(asked.get()).toBeDefined());
  expect(session.get()).toBe(here);
  answer(what === "leaves");
  await vi.waitFor(() => expect(link.get()).toBeUndefined());
  expect(session.get()?.id).toBe(what === "leaves" ? "ses_2" : "ses_1");
  // The key that was made for the session that is not wanted.
  expect(sent.includes("DELETE /v1/keys/key_1")).toBe(what === "stays");
});

it("asks once about what one has agreed to lose", async () => {
  answered = service(() => undefined);
  unsaved.set([kept]);
  follow(TOKEN);
  answer(true);
  await vi.waitFor(() => expect(link.get()).toBeUndefined());
  expect([asked.get(), session.get()?.id, unsaved.get()]).toEqual([undefined, "ses_2", []]);
});

it("stays if one leaves by another way instead", async () => {
  release();
  answered = service((route) => {
    if (route === "POST /v1/session") release = holdUnsaved();
  });
  follow(TOKEN);
  await vi.waitFor(() => expect(asked.get()).toBeDefined());
  mayLeave(() => undefined);
  answer(true);
  await vi.waitFor(() => expect(link.get()).toBeUndefined());
  expect(session.get()).toBe(here);
});
