/** Short messages that go away by themselves. */

import { store, useStore } from "../api/store.ts";
import { Marked } from "./marked.tsx";

interface Message {
  id: number;
  text: string;
  kind: "plain" | "danger";
}

const SHOWN_MS = 4_000;
const messages = store<Message[]>([]);
let last = 0;

export const toast = (text: string, kind: Message["kind"] = "plain"): void => {
  last += 1;
  const id = last;
  messages.update((before) => [...before.slice(-3), { id, text, kind }]);
  setTimeout(() => messages.update((before) => before.filter((each) => each.id !== id)), SHOWN_MS);
};

export const Toasts = () => (
  <div className="toasts" role="status" aria-live="polite">
    {useStore(messages).map(({ id, text, kind }) => (
      <p key={id} className={`toast ${kind}`}>
        <Marked>{text}</Marked>
      </p>
    ))}
  </div>
);
