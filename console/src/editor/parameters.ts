/** What is typed into the parameters panel, and what is sent for it. */

export type ParameterKind = "text" | "number" | "json" | "null";

export interface Parameter {
  kind: ParameterKind;
  text: string;
}

export const NO_PARAMETER: Parameter = { kind: "text", text: "" };

/** For more values than these, one writes a program. */
export const COUNT_MAX = 100;

const NUMBER = /^-?\d+(?:\.\d+)?(?:e[+-]?\d+)?$/i;
const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?/gi;
// A number of JavaScript keeps these digits of any decimal number.
const DIGITS_KEPT = 15;

const digitsOf = (number: string): string =>
  number
    .replace(/e.*$/i, "")
    .replace(/[-.]/g, "")
    .replace(/^0+|0+$/g, "");

/** The first number in JSON that JavaScript would change. */
export const inexactIn = (json: string): string | undefined =>
  (json.match(STRING_OR_NUMBER) ?? []).find(
    (each) =>
      each[0] !== '"' && digitsOf(each).length > DIGITS_KEPT && digitsOf(String(Number(each))) !== digitsOf(each),
  );

/** The values to send. Numbers keep their digits: PostgreSQL reads them from text. Throws if one can't be sent as typed. */
export const valuesOf = (parameters: readonly Parameter[], count: number): unknown[] => {
  if (count > COUNT_MAX) throw new Error(`The console gives values for up to ${COUNT_MAX} parameters.`);
  return Array.from({ length: count }, (_, index) => {
    const { kind, text } = parameters[index] ?? NO_PARAMETER;
    if (kind === "null") return null;
    if (kind === "number" && !NUMBER.test(text.trim())) throw new Error(`Parameter $${index + 1} is not a number.`);
    if (kind !== "json") return kind === "number" ? text.trim() : text;
    const inexact = inexactIn(text);
    if (inexact) {
      throw new Error(
        `Parameter $${index + 1} has the number ${inexact}, which would lose digits. Send it as text, with a cast to jsonb.`,
      );
    }
    try {
      return JSON.parse(text) as unknown;
    } catch {
      throw new Error(`Parameter $${index + 1} is not valid JSON.`);
    }
  });
};
