import { expect, it } from "vitest";
import { afterWait, firstOf, matching, onEnter } from "./matching.ts";

const of = (...names: string[]) => names.map((name) => ({ name, act: () => undefined }));
const commands = [
  { name: "Go to Tables", title: "Tables", act: () => undefined },
  ...of("Go to Databases", "Use database orders"),
];
const found = (text: string, ...others: string[]) => matching([commands, of(...others)], text);
const names = (text: string, ...others: string[]) => found(text, ...others).map(({ command }) => command.name);

const after = (text: string, ...others: string[]) => {
  const loaded = of(...others);
  return afterWait(matching([commands, loaded], text), loaded, firstOf(matching([commands], text)))?.name;
};

it("has an exact name first, then what begins with the text, has it, and has its letters", () => {
  expect(names("orders", "o_r_d_e_r_s", "old_orders", "orders_old", "orders")).toEqual([
    "orders",
    "orders_old",
    "Use database orders",
    "old_orders",
    "o_r_d_e_r_s",
  ]);
  expect(names(" ORDERS ", "orders")[0]).toBe("orders");
  expect(names("gtt")).toEqual(["Go to Tables", "Go to Databases"]);
  expect(names("nothing")).toEqual([]);
});

it("has commands before tables that fit as well, and a page by its own name", () => {
  expect(names("tables", "tables")).toEqual(["Go to Tables", "tables"]);
  expect(names("go", "go_1", "go_2").slice(0, 2)).toEqual(["Go to Tables", "Go to Databases"]);
  expect(names("", "a")).toEqual(["Go to Tables", "Go to Databases", "Use database orders", "a"]);
});

it("takes no weak match on Enter while tables are being loaded", () => {
  const enter = (text: string, ...others: string[]) => onEnter(found(text, ...others)[0], others.length === 0);
  // Of its letters, "Go to Databases" has all of "oa", and "Use database orders" has all of "users".
  expect(["oa", "users", "orders", "nothing"].map((text) => enter(text))).toEqual(Array(4).fill("wait"));
  expect(["tables", "go to t", "", "use database orders"].map((text) => enter(text))).toEqual(Array(4).fill("take"));
  // Then what is chosen is seen.
  expect([enter("users", "x"), enter("orders", "orders"), enter("nothing", "x")]).toEqual(["take", "take", "nothing"]);
});

it("takes after the wait a table that is what was typed, begins with it, or alone has it", () => {
  expect(after("users", "old_users", "users_2", "users")).toBe("users");
  expect(after("users", "old_users", "users_2", "users_3")).toBe("users_2");
  expect(after("items", "sales.items", "i_t_e_m_s")).toBe("sales.items");
  expect(after("items", "sales.items", "old_items")).toBeUndefined();
  // Of "Use database orders", these are only letters, in order.
  expect([after("users", "x"), after("nothing", "x")]).toEqual([undefined, undefined]);
});

it("takes after the wait the command that was the first before, unless a table fits better", () => {
  expect(after("to data", "x")).toBe("Go to Databases");
  expect(after("orders", "sales.orders")).toBe("Use database orders");
  expect(after("orders", "sales.orders", "orders")).toBe("orders");
});

it("takes after the wait no command that was not there before, such as a database that was listed meanwhile", () => {
  const before = of("Switch between dark and light");
  const listed = (...databases: string[]) => [
    ...of(...databases.map((name) => `Use database ${name}`)),
    ...of("Switch between dark and light"),
  ];
  const afterListing = (text: string, databases: string[], ...others: string[]) => {
    const loaded = of(...others);
    const first = firstOf(matching([before], text));
    return afterWait(matching([listed(...databases), loaded], text), loaded, first)?.name;
  };
  expect(afterListing("dar", ["dart"])).toBe("Switch between dark and light");
  expect(afterListing("dar", ["dart"], "darts")).toBe("darts");
  expect(afterListing("dart", ["dart"])).toBeUndefined();
  // Of what is loaded, it is not the only one that has the text.
  expect(afterListing("dart", ["dart"], "old_darts")).toBeUndefined();
});
