import { beforeEach, expect, it, vi } from "vitest";

const nothing = () => undefined;
vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: nothing, removeItem: nothing });
vi.stubGlobal("location", { protocol: "https:", origin: "https://c" });

const { check, signOut } = await import("./control.ts");
const { listTables, missingTables } = await import("./data.ts");
const { keep, leftOver, session } = await import("./session.ts");

const EXPIRES_AT = "2100-01-02T03:04:05Z";

const answers = (status: number, body: unknown) =>
  vi.stubGlobal("fetch", async () => new Response(status === 204 ? null : JSON.stringify(body), { status }));

beforeEach(() => {
  keep({
    token: "t",
    id: "s",
    expiresAt: EXPIRES_AT,
    scopes: [],
    database: null,
    defaultDatabase: null,
    organization: { id: "o", name: "o", tier: "free" },
    dataUrl: "https://d",
    controlUrl: "https://c",
    version: "",
    ownKey: null,
  });
});

it("says until when a session lives that could not be ended", async () => {
  vi.stubGlobal("fetch", async () => {
    throw new TypeError("failed");
  });
  await signOut();
  expect(session.get()).toBeUndefined();
  expect(leftOver.get()).toContain(`valid until ${new Date(EXPIRES_AT).toLocaleString("en")}`);
  expect(leftOver.get()).toContain("No response from c.");
});

it.each([
  [204, undefined],
  [401, { error: { code: "unauthorized", message: "no" } }],
])("has nothing to say if the session has ended: %d", async (status, body) => {
  answers(status, body);
  await signOut();
  expect(leftOver.get()).toBe("");
});

it("keeps the default database of the sign-in, and takes the first one that is made later", async () => {
  const caller = (default_database: string | null) =>
    answers(200, { organization: { id: "o", name: "o", tier: "free" }, credential: {}, default_database });
  const known: (string | null | undefined)[] = [];
  for (const name of [null, "main", "other"]) {
    caller(name);
    await check();
    known.push(session.get()?.defaultDatabase);
  }
  expect(known).toEqual([null, "main", "main"]);
});

it("says if tables are missing from the list", async () => {
  answers(200, { tables: [{}, {}], truncated: true });
  expect(missingTables(await listTables("", "full"))).toContain("Only the first 2 tables are listed");
  answers(200, { tables: [{}], truncated: false });
  expect(missingTables(await listTables("", "full"))).toBeUndefined();
});
