import { isValidElement } from "react";
import { expect, it } from "vitest";
import { Marked, marked } from "./marked.tsx";

it("marks what is not seen or turns text round, and nothing else", () => {
  expect(marked("a\u202eb\u2066c")).toBe("a⟨U+202E⟩b⟨U+2066⟩c");
  expect(marked("\u200b\u00ad\ufeff\u061c\u0007\u2800\u{e0041}")).toBe(
    "⟨U+200B⟩⟨U+00AD⟩⟨U+FEFF⟩⟨U+061C⟩⟨U+0007⟩⟨U+2800⟩⟨U+E0041⟩",
  );
  const plain = "select 'عربي', '👩‍💻',\n\t1 \r\n";
  expect(marked(plain)).toBe(plain);
  expect(Marked({ children: plain })).toBe(plain);
});

it("makes an element for each, and of very many a text", () => {
  const some = Marked({ children: "a\u202eb" }) as unknown[];
  expect(some.map((each) => (isValidElement(each) ? "mark" : each))).toEqual(["a", "mark", "b"]);
  expect(Marked({ children: "\u202e".repeat(1_500) })).toBe("⟨U+202E⟩".repeat(1_500));
});
