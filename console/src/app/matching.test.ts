import { expect, it } from "vitest";
import { matching } from "./matching.ts";

const of = (...names: string[]) => names.map((name) => ({ name, act: () => undefined }));
const commands = of("Go to Tables", "Go to Databases", "Use database orders");
const names = (text: string, ...others: string[]) => matching([commands, of(...others)], text).map(({ name }) => name);

it("has commands before tables, and the whole text before its letters", () => {
  expect(names("orders", "orders", "old_orders", "o_r_d_e_r_s")).toEqual([
    "Use database orders",
    "orders",
    "old_orders",
    "o_r_d_e_r_s",
  ]);
  expect(names("ORD", "orders")[1]).toBe("orders");
  expect(names("gtt")).toEqual(["Go to Tables", "Go to Databases"]);
  expect(names("nothing")).toEqual([]);
});
