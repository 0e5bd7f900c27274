/** Which commands a text finds. */

export interface Command {
  name: string;
  /** What it is also called: the name of a page, without "Go to". */
  title?: string;
  hint?: string;
  act: () => void;
}

/** How well a command fits: the text is its name, begins its name, is in its name, or only its letters are, in order. */
export type Fit = "exact" | "begins" | "inside" | "scattered";
const FITS: readonly Fit[] = ["exact", "begins", "inside", "scattered"];
const SURE: readonly Fit[] = ["exact", "begins"];

export interface Match {
  command: Command;
  fit: Fit;
}

interface Scored extends Match {
  /** Where the whole text is in its name, if it is. */
  at: number;
  /** How many letters are between those of the text. */
  gaps: number;
}

const scoreOf = (command: Command, text: string): Scored | undefined => {
  const name = command.name.toLowerCase();
  const at = name.indexOf(text);
  if (text && [name, command.title?.toLowerCase()].includes(text)) return { command, fit: "exact", at: 0, gaps: 0 };
  if (at >= 0) return { command, fit: at === 0 ? "begins" : "inside", at, gaps: 0 };
  let last = -1;
  let gaps = 0;
  for (const letter of text.replaceAll(" ", "")) {
    const next = name.indexOf(letter, last + 1);
    if (next < 0) return undefined;
    gaps += next - last - 1;
    last = next;
  }
  return { command, fit: "scattered", at: 0, gaps };
};

/**
 * Commands whose names have all letters of the text, in this order. Those that fit better come first, and among those
 * that fit as well, those of the first list, so that what is loaded later does not take their place.
 */
export const matching = (lists: readonly (readonly Command[])[], text: string): Match[] => {
  const wanted = text.trim().toLowerCase();
  const scored = lists.map((list) => list.flatMap((command) => scoreOf(command, wanted) ?? []));
  return FITS.flatMap((fit) =>
    scored.flatMap((list) => list.filter((each) => each.fit === fit).sort((a, b) => a.at - b.at || a.gaps - b.gaps)),
  );
};

/** What Enter does: it takes the best match, waits for those that are still being loaded, or does nothing. */
export const onEnter = (best: Match | undefined, isLoading: boolean): "take" | "wait" | "nothing" => {
  const isSure = best && SURE.includes(best.fit);
  if (isLoading && !isSure) return "wait";
  return best ? "take" : "nothing";
};

/** The command that stands first, if it has the text. By its name: commands are made anew when databases are listed. */
export const firstOf = ([best]: readonly Match[]): string | undefined =>
  best && best.fit !== "scattered" ? best.command.name : undefined;

/**
 * What an Enter that has waited takes: the command that stood `first` when Enter was pressed. Others were not in view.
 * Of what was loaded meanwhile, it takes what is the text or begins with it, or the only one that has it.
 */
export const afterWait = (
  matches: readonly Match[],
  loaded: readonly Command[],
  first: string | undefined,
): Command | undefined => {
  const having = matches.filter(({ fit }) => fit !== "scattered");
  const isLoaded = ({ command }: Match) => loaded.includes(command);
  const found =
    having.find((each) => isLoaded(each) && SURE.includes(each.fit)) ??
    having.find((each) => !isLoaded(each) && each.command.name === first) ??
    having.find((each) => isLoaded(each) && having.length === 1);
  return found?.command;
};
