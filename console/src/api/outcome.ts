/** What became of a write whose response was not awaited. */

import { type Outcome, outcomeOf } from "./data.ts";

const ASK_LIMIT_MS = 10_000;
const ASK_AGAIN_MS = 200;
// The service knows a key for 24 hours. Just before, its clock and that of the browser may differ.
const KNOWN_MS = 23.5 * 3_600_000;

/** Whether the service may have no record any more of a write that was first sent at `sentAt`. */
export const mayBeForgotten = (sentAt: number): boolean => Date.now() - sentAt > KNOWN_MS;

/**
 * Asks until the write with this key, which was first sent at `sentAt`, has ended. Without an answer, it is unknown; so
 * it is when the service has no record of a key that it may have forgotten.
 */
export const finalOutcomeOf = async (key: string, database: string, sentAt: number): Promise<Outcome> => {
  const endMs = performance.now() + ASK_LIMIT_MS;
  try {
    while (performance.now() < endMs) {
      const outcome = await outcomeOf(key, database, ASK_LIMIT_MS);
      const isForgotten = outcome === "not_executed" && mayBeForgotten(sentAt);
      if (outcome !== "in_progress") return isForgotten ? "unknown" : outcome;
      await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS));
    }
  } catch {
    // It stays unknown.
  }
  return "unknown";
};
