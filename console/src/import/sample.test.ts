import { expect, it } from "vitest";
import { sampledOf, sampleOfFile, tableNameOf } from "./sample.ts";

const TEXT = "id;Name;Name;\n1;Anna;x;2026-01-01\n2;;y;\n";

it("takes names and types from the first records", async () => {
  const sample = await sampleOfFile(new File([TEXT], "My sales (2026).csv"));
  expect([sample.delimiter, sample.name, sample.isWhole]).toEqual([";", "my_sales_2026", true]);
  expect(sampledOf(sample, ";", true).fields).toEqual([
    { label: "id", name: "id", type: "bigint", values: ["1", "2"] },
    { label: "Name", name: "Name", type: "text", values: ["Anna", null] },
    { label: "Name", name: "Name_1", type: "text", values: ["x", "y"] },
    { label: "Field 4", name: "column_4", type: "date", values: ["2026-01-01", null] },
  ]);
  expect(sampledOf(sample, ";", false).fields[0]).toMatchObject({ label: "Field 1", name: "column_1", type: "text" });
  expect(sampledOf(sample, ",", true).fields).toHaveLength(1);
});

it("reports a file in which there is nothing, or a quote is open", async () => {
  for (const text of ["", 'a\n"b']) {
    const sample = await sampleOfFile(new File([text], "x.csv"));
    expect(sampledOf(sample, ",", true)).toMatchObject({ fields: [], error: expect.any(Error) });
  }
  expect(tableNameOf("??.csv")).toBe("imported");
});
