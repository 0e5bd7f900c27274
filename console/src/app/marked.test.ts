import { isValidElement } from "react";
import { expect, it } from "vitest";
import { Marked, marked } from "./marked.tsx";

it("marks what is not seen or turns text round, and nothing else", () => {
  expect(marked("a\u202eb\u2066c")).toBe("a⟨U+202E⟩b⟨U+2066⟩c");
  expect(marked("\u200b\u00ad\ufeff\u061c\u0007\u2800\u{e0041}")).toBe(
    "⟨U+200B⟩⟨U+00AD⟩⟨U+FEFF⟩⟨U+061C⟩⟨U+0007⟩⟨U+2800⟩⟨U+E0041⟩",
  );
  expect(marked("\u034f\u17b4\u180b\u180f\u2065\ufff0\ufe00\u{e0100}\u3164")).toBe(
    "⟨U+034F⟩⟨U+17B4⟩⟨U+180B⟩⟨U+180F⟩⟨U+2065⟩⟨U+FFF0⟩⟨U+FE00⟩⟨U+E0100⟩⟨U+3164⟩",
  );
  const plain = "select 'عربي', '👩‍💻',\n\t1 \r\n";
  expect(marked(plain)).toBe(plain);
  expect(Marked({ children: plain })).toBe(plain);
});

it("spares joiners where they join, and nowhere else", () => {
  const used = ["می\u200cشود", "क्\u200dष", "👩🏽\u200d💻", "🏳\ufe0f\u200d🌈", "❤\ufe0f", "1\ufe0f\u20e3"];
  expect(used.map(marked)).toEqual(used);
  const unused = ["users\u200d", "use\u200crs", "می\u200c", "می\u200c\u200cشود", "😀\u200d", "😀\ufe0f", "1\ufe0f"];
  expect(unused.filter((each) => !marked(each).includes("⟨"))).toEqual([]);
  expect(marked("users\u200d")).toBe("users⟨U+200D⟩");
});

it("makes an element for each, and of very many a text", () => {
  const some = Marked({ children: "a\u202eb" }) as unknown[];
  expect(some.map((each) => (isValidElement(each) ? "mark" : each))).toEqual(["a", "mark", "b"]);
  expect(Marked({ children: "\u202e".repeat(1_500) })).toBe("⟨U+202E⟩".repeat(1_500));
});
