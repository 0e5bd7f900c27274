/** Numbers, sizes and times as people read them. */

const whole = new Intl.NumberFormat("en");

export const number = (value: number): string => whole.format(value);

export const count = (value: number, noun: string, nouns = `${noun}s`): string =>
  `${number(value)} ${value === 1 ? noun : nouns}`;

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export const bytes = (value: number): string => {
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
};

export const duration = (ms: number): string => {
  if (ms < 1) return `${(ms * 1000).toFixed(0)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

export const ago = (at: number, now = Date.now()): string => {
  const s = Math.max(0, (now - at) / 1000);
  if (s < 60) return "just now";
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ago`;
  return new Date(at).toISOString().slice(0, 10);
};

/** A time of the service, in UTC, to the second. */
export const moment = (iso: string | null): string => (iso ? iso.slice(0, 19).replace("T", " ") : "");
