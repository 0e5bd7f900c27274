/**
 * Text of someone else, in which characters that are not seen, or that turn text round, are shown by their numbers, in
 * the editor, too: SQL must not look like what it isn't.
 */

// Those that Unicode says are not seen, and others of which nothing is seen in most fonts.
const SUSPECTS = String.raw`[\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\u2028\u2029\u2800\ufffc]`;

const JOINED = (
  "Arabic Syriac Nko Mongolian Devanagari Bengali Gurmukhi Gujarati Oriya Tamil Telugu Kannada Malayalam Sinhala Khmer" +
  " Myanmar Tibetan"
)
  .split(" ")
  .map((script) => String.raw`\p{Script=${script}}`)
  .join("");
const EMOJI = String.raw`\p{Extended_Pictographic}`;

/** What ends lines, and what changes how the text beside it looks: there, and only there, it is part of writing. */
const SPARED = [
  String.raw`[\t\n\r]`,
  // Joiners between letters of a script that has them, or between emojis.
  String.raw`(?<=[${JOINED}])[\u200c\u200d](?=[${JOINED}])`,
  String.raw`(?<=${EMOJI}[\ufe0f\p{Emoji_Modifier}]?)\u200d(?=${EMOJI})`,
  // What makes an emoji of a character that is a text without it.
  String.raw`(?<=(?!\p{Emoji_Presentation})${EMOJI})\ufe0f`,
  String.raw`(?<=[#*0-9])\ufe0f(?=\u20e3)`,
].join("|");

/** One of them. What is seldom is looked for first, so that long texts are soon looked through. */
export const UNSEEN = new RegExp(`((?=${SUSPECTS})(?!${SPARED})[^])`, "u");
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
