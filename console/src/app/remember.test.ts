import { expect, it, vi } from "vitest";
import { remember } from "./remember.ts";

it("breaks nothing if the browser's storage is full", () => {
  const setItem = vi.fn().mockImplementationOnce(() => {
    throw new Error("QuotaExceededError");
  });
  vi.stubGlobal("localStorage", { setItem });
  remember("plainsql.theme", "dark");
  remember("plainsql.theme", "light");
  expect(setItem).toHaveBeenLastCalledWith("plainsql.theme", "light");
});
