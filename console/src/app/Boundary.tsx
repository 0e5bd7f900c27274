/** Keeps an error in one part of the page from blanking all of it. */

import { Component, type ReactNode } from "react";
import { Button, type Item } from "./parts.tsx";

interface Props {
  /** What it is that may break, at the beginning of a sentence. */
  what: string;
  /** What else one can do than load the page again. */
  other?: Item | undefined;
  children: ReactNode;
}

// Each browser has words of its own for a file that isn't there any more.
const NOT_LOADED = /dynamically imported module|Importing a module script|error loading/i;

/** What to say of an error in drawing. */
export const reasonOf = (error: unknown, what: string): string => {
  const message = String((error as Error | undefined)?.message ?? error);
  if (NOT_LOADED.test(message)) return `${what} could not be loaded. If the service was updated, load the page again.`;
  return `${what} can't be shown: ${message}`;
};

export class Boundary extends Component<Props, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error: error ?? "unknown error" };
  }

  override render(): ReactNode {
    const { what, other, children } = this.props;
    const { error } = this.state;
    if (error === null) return children;
    return (
      <div className="failure" role="alert">
        <p>
          <b>{reasonOf(error, what)}</b>
        </p>
        <p>
          The tabs of the query page are kept in this browser. Changes of rows and forms that you had not saved are not.
        </p>
        <p>
          <Button onClick={() => location.reload()}>Reload</Button>{" "}
          {other && (
            <Button
              onClick={() => {
                other.act();
                this.setState({ error: null });
              }}
            >
              {other.label}
            </Button>
          )}
        </p>
      </div>
    );
  }
}
