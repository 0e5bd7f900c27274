/** Which commands a text finds. */

export interface Command {
  name: string;
  hint?: string;
  act: () => void;
}

interface Scored {
  command: Command;
  /** Where the whole text is in its name, if it is. */
  at: number;
  /** How many letters are between those of the text. */
  gaps: number;
}

const scoreOf = (command: Command, text: string): Scored | undefined => {
  const name = command.name.toLowerCase();
  let last = -1;
  let gaps = 0;
  for (const letter of text.replaceAll(" ", "")) {
    const next = name.indexOf(letter, last + 1);
    if (next < 0) return undefined;
    gaps += next - last - 1;
    last = next;
  }
  return { command, at: name.indexOf(text), gaps };
};

/**
 * Commands whose names have all letters of the text, in this order. First those that have the text as it is, and among
 * them those of the first list, so that what is loaded later does not take their place.
 */
export const matching = (lists: readonly (readonly Command[])[], text: string): Command[] => {
  const wanted = text.toLowerCase();
  const scored = lists.map((list) => list.flatMap((command) => scoreOf(command, wanted) ?? []));
  const whole = scored.map((list) => list.filter(({ at }) => at >= 0).sort((a, b) => a.at - b.at));
  const scattered = scored.map((list) => list.filter(({ at }) => at < 0).sort((a, b) => a.gaps - b.gaps));
  return [...whole, ...scattered].flat().map(({ command }) => command);
};
