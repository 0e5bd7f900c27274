/**
 * Text of someone else, in which characters that are not seen, or that turn text round, are shown by their numbers, in
 * the editor, too: SQL must not look like what it isn't.
 */

/** One of them. Those that end lines are not among them, and neither are those that join letters and emojis. */
export const UNSEEN = /((?![\t\n\r\u200c\u200d])[\p{Cc}\p{Cf}\u2028\u2029\u115f\u1160\u2800\u3164\uffa0\ufffc])/u;
// More of them are no text, and an element for each would make the page slow.
const ELEMENTS_MAX = 1_000;

export const UNSEEN_TITLE = "A character that is not seen, or that turns text round";

export const numberOf = (character: string): string =>
  `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Where there can be no elements, such as in a title. */
export const marked = (text: string): string =>
  UNSEEN.test(text) ? text.replaceAll(new RegExp(UNSEEN, "gu"), (each) => `⟨${numberOf(each)}⟩`) : text;

export const Marked = ({ children: text }: { children: string }) => {
  if (!UNSEEN.test(text)) return text;
  const parts = text.split(UNSEEN);
  if (parts.length > 2 * ELEMENTS_MAX) return marked(text);
  return parts.map((part, i) =>
    i % 2 ? (
      // biome-ignore lint/suspicious/noArrayIndexKey: they never change
      <span key={i} className="unseen-character" title={UNSEEN_TITLE}>
        {numberOf(part)}
      </span>
    ) : (
      part
    ),
  );
};
