/** What became of a write whose response was not awaited. */

import { type Outcome, outcomeOf } from "./data.ts";

const ASK_LIMIT_MS = 10_000;
const ASK_AGAIN_MS = 200;

/** Asks until the write with this key has ended. Without an answer, it is unknown. */
export const finalOutcomeOf = async (key: string, database: string): Promise<Outcome> => {
  const endMs = performance.now() + ASK_LIMIT_MS;
  try {
    while (performance.now() < endMs) {
      const outcome = await outcomeOf(key, database, ASK_LIMIT_MS);
      if (outcome !== "in_progress") return outcome;
      await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS));
    }
  } catch {
    // It stays unknown.
  }
  return "unknown";
};
