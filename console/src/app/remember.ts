/** Keeps how the page looks, if the browser has room for it. If not, the page looks so until it is loaded again. */
export const remember = (key: string, value: string): void => {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Nothing depends on it.
  }
};
