/** Dark or light: the browser's choice, or the user's. */

import { store } from "../api/store.ts";
import { remember } from "./remember.ts";

export type Theme = "system" | "light" | "dark";

const KEY = "plainsql.theme";
const THEMES: readonly Theme[] = ["system", "light", "dark"];

export const theme = store<Theme>(THEMES.find((each) => each === localStorage.getItem(KEY)) ?? "system");

const show = () => {
  const chosen = theme.get();
  if (chosen === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = chosen;
};

show();

export const setTheme = (next: Theme): void => {
  theme.set(next);
  remember(KEY, next);
  show();
};

/** The opposite of what is seen. */
export const toggleTheme = (): void => {
  const isDark = theme.get() === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme.get() === "dark";
  setTheme(isDark ? "light" : "dark");
};
