import { beforeEach, expect, it, vi } from "vitest";

const kept = new Map<string, string>();
vi.stubGlobal("sessionStorage", {
  getItem: (key: string) => kept.get(key) ?? null,
  setItem: (key: string, value: string) => void kept.set(key, value),
  removeItem: (key: string) => void kept.delete(key),
});
vi.stubGlobal("location", new URL("https://console.example/"));

/** Answers the requests for the list of databases, in the order in which they were sent. */
let answers: ((names: string[]) => void)[] = [];
vi.stubGlobal(
  "fetch",
  () =>
    new Promise((resolve) => {
      answers.push((names) => {
        const databases = names.map((name, i) => ({ id: name, name, state: "ready", default: i === 0 }));
        resolve(new Response(JSON.stringify({ databases, next: null })));
      });
    }),
);

const { session } = await import("../api/session.ts");
const { holdUnsaved } = await import("./leaving.ts");
const { choose, database, databases, goneText, loadDatabases, renamed } = await import("./databases.ts");

const signIn = (
  id: string,
  organization = "org_1",
  scopes = ["read", "admin"],
  defaultDatabase: string | null = null,
  bound: string | null = null,
) =>
  session.set({
    id,
    token: id,
    scopes,
    database: bound,
    defaultDatabase,
    organization: { id: organization },
    controlUrl: "https://console.example",
  } as unknown as Parameters<typeof session.set>[0]);

const gone = () => goneText(databases.get(), database.get());

beforeEach(() => {
  session.set(undefined);
  kept.clear();
  answers = [];
});

it("has the name that was chosen before, while the databases are still being listed", async () => {
  kept.set("plainsql.database.org_1", "staging");
  signIn("ses_1");
  const loaded = loadDatabases();
  expect(database.get()).toBe("staging");
  answers[0]?.(["main", "staging"]);
  await loaded;
  expect([database.get(), gone()]).toEqual(["staging", ""]);
});

it("takes the default only if none was chosen", async () => {
  signIn("ses_1");
  const loaded = loadDatabases();
  answers[0]?.(["main", "staging"]);
  await loaded;
  expect(database.get()).toBe("main");
});

it("names the default of the sign-in, without the scope admin as well, and after a reload", async () => {
  signIn("ses_1", "org_1", ["read"], "main");
  await loadDatabases();
  expect([database.get(), answers.length]).toEqual(["main", 0]);
  choose("staging");
  signIn("ses_2", "org_1", ["read"], "other");
  expect(database.get()).toBe("staging");
  choose("");
  signIn("ses_3", "org_1", ["read"], "other");
  expect(database.get()).toBe("other");
});

it("stays in the default of the first sign-in when one signs in again and another one is the default", () => {
  signIn("ses_1", "org_1", ["read"], "main");
  session.set(undefined);
  signIn("ses_2", "org_1", ["read"], "other");
  expect(database.get()).toBe("main");
  // What one session is bound to is not where the next one goes.
  signIn("ses_3", "org_1", ["read"], "main", "bound");
  expect(database.get()).toBe("bound");
  signIn("ses_4", "org_1", ["read"], "other");
  expect(database.get()).toBe("main");
});

it("takes a default that was made after the sign-in, and stays with it", () => {
  signIn("ses_1", "org_1", ["read"]);
  expect(database.get()).toBe("");
  signIn("ses_1", "org_1", ["read"], "main");
  expect(database.get()).toBe("main");
  signIn("ses_1", "org_1", ["read"], "other");
  expect(database.get()).toBe("main");
});

it("takes no default while something is not saved, which would be lost", async () => {
  signIn("ses_1");
  const release = holdUnsaved();
  const loaded = loadDatabases();
  answers[0]?.(["main"]);
  await loaded;
  signIn("ses_1", "org_1", ["read"], "main");
  expect(database.get()).toBe("");
  release();
  signIn("ses_1", "org_1", ["read"], "main");
  expect(database.get()).toBe("main");
});

it("replaces a database that has gone by no other, and says so", async () => {
  kept.set("plainsql.database.org_1", "staging");
  signIn("ses_1");
  const loaded = loadDatabases();
  answers[0]?.(["main"]);
  await loaded;
  expect(database.get()).toBe("staging");
  expect(gone()).toContain("The database staging is not there any more");
  choose("main");
  expect(gone()).toBe("");
});

it("follows a database that is renamed, whatever an older list says", async () => {
  kept.set("plainsql.database.org_1", "staging");
  signIn("ses_1");
  const first = loadDatabases();
  answers[0]?.(["main", "staging"]);
  await first;
  const older = loadDatabases();
  renamed("staging", "trial");
  expect([database.get(), kept.get("plainsql.database.org_1"), gone()]).toEqual(["trial", "trial", ""]);
  const newer = loadDatabases();
  answers[2]?.(["main", "trial"]);
  await newer;
  answers[1]?.(["main", "staging"]);
  await older;
  expect([database.get(), gone()]).toEqual(["trial", ""]);
});

it("keeps the names of one organization from the next", async () => {
  signIn("ses_1");
  const loaded = loadDatabases();
  session.set(undefined);
  kept.set("plainsql.database.org_2", "theirs");
  signIn("ses_2", "org_2");
  expect(database.get()).toBe("theirs");
  answers[0]?.(["ours"]);
  await loaded;
  expect([database.get(), databases.get(), kept.get("plainsql.database.org_2")]).toEqual([
    "theirs",
    undefined,
    "theirs",
  ]);
});
