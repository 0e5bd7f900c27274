import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });
vi.stubGlobal("addEventListener", () => undefined);

const { NONE, editsOf, withInsert } = await import("./edits.ts");
const { changesOf } = await import("./unsaved.ts");
const { ReviewDialog } = await import("./RowDialogs.tsx");

const HOUR_MS = 3_600_000;
const pending = withInsert(NONE, new Map([["title", "new"]]));
const column = { name: "title", type: "text", nullable: true, primary_key: false, default: null };
const none = () => undefined;

/** What changes look like that were sent so long ago, and whose response was lost. */
const shown = (agoMs: number) =>
  renderToStaticMarkup(
    <ReviewDialog
      source={{ schema: "public", name: "t", columns: [column], types: ["text"] } as never}
      edits={editsOf(pending)}
      options={{ database: "main", maxRows: 1 }}
      held={{ ...changesOf(pending), isInDoubt: true, sentAt: Date.now() - agoMs }}
      sending={none}
      close={none}
      saved={none}
    />,
  );

it("offers to save changes in doubt again for as long as the service knows their key", () => {
  expect(shown(23 * HOUR_MS)).toMatch(/<button[^>]*>Save again</);
  const late = shown(24 * HOUR_MS);
  expect(late).not.toContain("Save again");
  expect(late).toContain("they might take effect twice. Discard them");
});
