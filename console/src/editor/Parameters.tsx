/** The values of $1, $2, … */

import { COUNT_MAX, NO_PARAMETER, type Parameter, type ParameterKind } from "./parameters.ts";

interface Props {
  count: number;
  parameters: readonly Parameter[];
  change: (parameters: Parameter[]) => void;
}

const KINDS: readonly ParameterKind[] = ["text", "number", "json", "null"];

export const Parameters = ({ count, parameters, change }: Props) => {
  const set = (index: number, next: Partial<Parameter>) => {
    const length = Math.min(Math.max(count, parameters.length), COUNT_MAX);
    const all = Array.from({ length }, (_, i) => parameters[i] ?? NO_PARAMETER);
    all[index] = { ...(all[index] ?? NO_PARAMETER), ...next };
    change(all);
  };
  return (
    <fieldset className="parameters">
      <legend>Parameters</legend>
      {Array.from({ length: Math.min(count, COUNT_MAX) }, (_, i) => {
        const { kind, text } = parameters[i] ?? NO_PARAMETER;
        return (
          // biome-ignore lint/suspicious/noArrayIndexKey: the number is what it is known by
          <div className="parameter" key={i}>
            <span>${i + 1}</span>
            <input
              type="text"
              aria-label={`Value of $${i + 1}`}
              value={kind === "null" ? "" : text}
              placeholder={kind === "null" ? "NULL" : ""}
              disabled={kind === "null"}
              spellCheck={false}
              onChange={(event) => set(i, { text: event.target.value })}
            />
            <select
              aria-label={`Kind of $${i + 1}`}
              value={kind}
              onChange={(event) => set(i, { kind: event.target.value as ParameterKind })}
            >
              {KINDS.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </div>
        );
      })}
      {count > COUNT_MAX && (
        <p className="note">
          The text has ${count}, and the console gives values for the first {COUNT_MAX} only.
        </p>
      )}
    </fieldset>
  );
};
