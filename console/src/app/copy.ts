/** Copies text, and says so. */

import { toast } from "./toast.tsx";

export const copyText = async (text: string, done = "Copied."): Promise<void> => {
  try {
    await navigator.clipboard.writeText(text);
    toast(done);
  } catch {
    toast("The browser did not allow copying.", "danger");
  }
};
