import { afterEach, beforeEach, expect, it, vi } from "vitest";

const sent: string[] = [];
vi.stubGlobal("fetch", (url: string) => {
  sent.push(url);
  return Promise.reject(new TypeError("no network"));
});
vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: () => undefined, removeItem: () => undefined });
vi.stubGlobal("addEventListener", () => undefined);
vi.stubGlobal("location", { hash: "", hostname: "localhost", origin: "https://localhost", pathname: "/console" });

const { link } = await import("../api/link.ts");
const { session } = await import("../api/session.ts");
const { answer, asked, holdUnsaved } = await import("../app/leaving.ts");
const { followLink, linkFault } = await import("./links.ts");

const TOKEN = `svc_s_${"Abc".repeat(12)}42`;
const here = { id: "ses_1", token: "t", organization: { id: "org_1" } } as never;
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
