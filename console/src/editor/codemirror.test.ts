import { CompletionContext } from "@codemirror/autocomplete";
import { EditorState } from "@codemirror/state";
import { expect, it, vi } from "vitest";

vi.stubGlobal("navigator", { platform: "" });

const { completeName, UnseenMark } = await import("./codemirror.ts");
const { namesOf } = await import("./schema.ts");

it("draws the number that is shown elsewhere", () => {
  vi.stubGlobal("document", { createElement: () => ({}) });
  expect(new UnseenMark("\u{e0041}").toDOM()).toMatchObject({ className: "unseen-character", textContent: "U+E0041" });
  vi.unstubAllGlobals();
});

it("marks them in names that are completed, and completes the names as they are", async () => {
  const tables = [{ schema: "public", name: "a\u202eb", kind: "table", columns: [] }];
  const state = EditorState.create({ doc: "a" });
  const found = await completeName(namesOf(tables as never), new CompletionContext(state, 1, true));
  const option = found?.options.find(({ label }) => label === "a\u202eb");
  expect(option).toMatchObject({ displayLabel: "a⟨U+202E⟩b", apply: '"a\u202eb"' });
});
