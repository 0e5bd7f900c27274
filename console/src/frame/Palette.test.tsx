import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });
vi.stubGlobal("localStorage", { length: 0, key: () => null, getItem: () => null });
vi.stubGlobal("addEventListener", () => undefined);
vi.stubGlobal("location", { hash: "", pathname: "/console" });

const { Palette } = await import("./Palette.tsx");

const html = (names: string[]) => {
  const commands = names.map((name) => ({ name, act: () => undefined }));
  return renderToStaticMarkup(<Palette commands={commands} database={null} close={() => undefined} />);
};

it("has a place for what is announced at any time, and not in the list, which has options only", () => {
  expect(html(["one"])).toMatch(
    /role="listbox"[^>]*><div [^>]*role="option".*<\/div><\/div><div [^>]*role="status"><\/div>/,
  );
  expect(html([])).toMatch(
    /role="listbox"[^>]*><\/div><div [^>]*role="status">Looking for tables and functions…<\/div>/,
  );
});
