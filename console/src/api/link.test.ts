import { expect, it, vi } from "vitest";

const TOKEN = `svc_s_${"Abc".repeat(12)}42`;
let hear: (event: Partial<HashChangeEvent>) => void = () => undefined;
const replaced: string[] = [];
vi.stubGlobal("addEventListener", (_: string, listener: typeof hear) => {
  hear = listener;
});
vi.stubGlobal("location", { hash: `#/sign-in?token=${TOKEN}`, pathname: "/console" });
vi.stubGlobal("history", { replaceState: (_: unknown, __: string, address: string) => void replaced.push(address) });

const { link, mayUseLinks } = await import("./link.ts");

it("takes the token out of the address when the page is loaded", () => {
  expect([link.get(), replaced]).toEqual([TOKEN, ["/console"]]);
});

it.each([
  [`#/sign-in?token=${TOKEN}`, TOKEN],
  [`#/sign-in?token=${TOKEN.slice(0, -1)}`, ""],
  [`#/sign-in?token=${TOKEN.replace("svc_s", "svc_k")}`, ""],
  ["#/sign-in?token=", ""],
  ["#/sign-in", ""],
])("takes it out of %s, which is opened later", (hash, token) => {
  const open = (oldURL: string) => {
    const stopImmediatePropagation = vi.fn();
    location.hash = hash;
    hear({ oldURL, stopImmediatePropagation });
    return [link.get(), replaced.at(-1), stopImmediatePropagation.mock.calls.length];
  };
  expect(open("https://localhost/console")).toEqual([token, "/console", 1]);
  // The page that was shown has its address again.
  expect(open("https://localhost/console#/tables/public.a")).toEqual([token, "#/tables/public.a", 1]);
});

it("is for this computer only", () => {
  expect(["localhost", "127.0.0.1", "[::1]"].every(mayUseLinks)).toBe(true);
  const others = ["control.example", "localhost.example", "127.0.0.1.example", "127.example", "10.0.0.1", ""];
  expect(others.some(mayUseLinks)).toBe(false);
});

it("leaves other addresses alone", () => {
  link.set(undefined);
  replaced.length = 0;
  location.hash = "#/query?check=0&sql=x";
  hear({});
  expect([link.get(), replaced]).toEqual([undefined, []]);
});
