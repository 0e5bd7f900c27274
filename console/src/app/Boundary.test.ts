import { expect, it } from "vitest";
import { reasonOf } from "./Boundary.tsx";

it("says what could not be shown, and what to do about a file that has gone", () => {
  expect(reasonOf(new RangeError("Invalid array length"), "This page")).toBe(
    "This page can't be shown: Invalid array length",
  );
  const gone = new TypeError("Failed to fetch dynamically imported module: https://x/console/Chart-1.js");
  expect(reasonOf(gone, "This result")).toContain("load the page again");
});
