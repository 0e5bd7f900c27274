/** What is typed into the parameters panel, and what is sent for it. */

export type ParameterKind = "text" | "number" | "json" | "null";

export interface Parameter {
  kind: ParameterKind;
  text: string;
}

export const NO_PARAMETER: Parameter = { kind: "text", text: "" };

/** For more values than these, one writes a program. */
export const COUNT_MAX = 100;

/** The values to send. Numbers keep their digits: PostgreSQL reads them from text. Throws if JSON is invalid. */
export const valuesOf = (parameters: readonly Parameter[], count: number): unknown[] => {
  if (count > COUNT_MAX) throw new Error(`The console gives values for up to ${COUNT_MAX} parameters.`);
  return Array.from({ length: count }, (_, index) => {
    const { kind, text } = parameters[index] ?? NO_PARAMETER;
    if (kind === "null") return null;
    if (kind !== "json") return text;
    try {
      return JSON.parse(text) as unknown;
    } catch {
      throw new Error(`Parameter $${index + 1} is not valid JSON.`);
    }
  });
};
