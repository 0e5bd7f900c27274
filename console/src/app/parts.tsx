/** The small parts that pages are made of. */

import {
  type ButtonHTMLAttributes,
  type CSSProperties,
  type FormEvent,
  type KeyboardEvent,
  type ReactNode,
  type Ref,
  useEffect,
  useLayoutEffect,
  useRef,
  useState,
} from "react";
import { textOf } from "../api/requests.ts";
import { Marked } from "./marked.tsx";

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  ref?: Ref<HTMLButtonElement>;
  kind?: "plain" | "main" | "danger" | "link" | "icon";
}

export const Button = ({ kind = "plain", className = "", ...others }: ButtonProps) => (
  <button type="button" className={`button ${kind} ${className}`} {...others} />
);

export interface Item {
  label: string;
  act: () => void;
  hint?: string;
  isDanger?: boolean;
}

/** Moves the focus among the elements with a role: by two keys, and to the ends. Which one has it now. */
const moveFocus = (
  event: KeyboardEvent,
  host: HTMLElement | null,
  role: string,
  [back, on]: [string, string],
): HTMLElement | undefined => {
  const all = [...(host?.querySelectorAll<HTMLElement>(`[role=${role}]`) ?? [])];
  const at = all.indexOf(document.activeElement as HTMLElement);
  const next = { [back]: at - 1, [on]: at + 1, Home: 0, End: all.length - 1 }[event.key];
  if (next === undefined || at < 0) return undefined;
  event.preventDefault();
  const found = all[(next + all.length) % all.length];
  found?.focus();
  return found;
};

interface TabListProps<T extends string> {
  label: string;
  /** The id of what the tabs show, which has the attributes of `tabPanel`. */
  panel: string;
  names: readonly T[];
  chosen: T;
  choose: (name: T) => void;
  /** What a tab shows, if that is not its name. */
  show?: (name: T) => ReactNode;
}

/** The attributes of the part that a list of tabs shows. */
export const tabPanel = (id: string, chosen: number | string) => ({
  id,
  role: "tabpanel",
  "aria-labelledby": `${id}-tab-${chosen}`,
});

/** Tabs of which one is chosen, by the arrow keys, too. */
export const TabList = <T extends string>({ label, panel, names, chosen, choose, show }: TabListProps<T>) => {
  const host = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const name = moveFocus(event, host.current, "tab", ["ArrowLeft", "ArrowRight"])?.dataset.name;
    const found = names.find((each) => each === name);
    if (found !== undefined) choose(found);
  };
  return (
    <div ref={host} className="tabs small" role="tablist" aria-label={label} onKeyDown={move}>
      {names.map((name, i) => (
        <button
          key={name}
          id={`${panel}-tab-${i}`}
          type="button"
          role="tab"
          aria-controls={panel}
          className="tab"
          data-name={name}
          aria-selected={name === chosen}
          tabIndex={name === chosen ? 0 : -1}
          onClick={() => choose(name)}
        >
          {show?.(name) ?? name}
        </button>
      ))}
    </div>
  );
};

interface MenuProps {
  label: ReactNode;
  /** What it is about, if several menus have the same label. */
  describes?: string;
  items: readonly Item[];
  kind?: ButtonProps["kind"];
}

/** A button that opens a list of commands. */
export const Menu = ({ label, describes, items, kind }: MenuProps) => {
  const [isOpen, setOpen] = useState(false);
  const [place, setPlace] = useState<CSSProperties>({});
  const host = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const box = host.current?.getBoundingClientRect();
    if (!isOpen || !box) return;
    // Where the page is, not in a table that would cut it off.
    const isAbove = box.bottom > innerHeight * 0.7;
    setPlace({
      ...(isAbove ? { bottom: innerHeight - box.top + 4 } : { top: box.bottom + 4 }),
      ...(box.left > innerWidth / 2 ? { right: innerWidth - box.right } : { left: box.left }),
    });
  }, [isOpen]);
  useEffect(() => {
    if (!isOpen) return;
    host.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const leave = (event: PointerEvent) => {
      if (!host.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("pointerdown", leave);
    return () => removeEventListener("pointerdown", leave);
  }, [isOpen]);
  const focusButton = () => host.current?.querySelector<HTMLElement>("button")?.focus();
  const move = (event: KeyboardEvent) => {
    if (!isOpen) return;
    if (event.key === "Escape" || event.key === "Tab") {
      setOpen(false);
      if (event.key === "Escape") focusButton();
      return;
    }
    moveFocus(event, host.current, "menuitem", ["ArrowUp", "ArrowDown"]);
  };
  return (
    <div className="menu" ref={host} onKeyDown={move} role="presentation">
      <Button
        kind={kind ?? "plain"}
        aria-haspopup="menu"
        aria-expanded={isOpen}
        aria-label={describes && `${label} of ${describes}`}
        onClick={() => setOpen(!isOpen)}
      >
        {label} <span aria-hidden="true">▾</span>
      </Button>
      {isOpen && (
        <div className="menu-items" role="menu" style={place}>
          {items.map(({ label: text, act, hint, isDanger }) => (
            <button
              key={text}
              type="button"
              role="menuitem"
              className={isDanger ? "menu-item danger" : "menu-item"}
              onClick={() => {
                setOpen(false);
                // A dialog that it opens returns the focus to it.
                focusButton();
                act();
              }}
            >
              {text} {hint && <kbd>{hint}</kbd>}
            </button>
          ))}
        </div>
      )}
    </div>
  );
};

interface DialogProps {
  title: string;
  close: () => void;
  /** Whether only its own buttons close it, for what is shown but once. */
  isFirm?: boolean;
  /** Whether `close` may leave it open, since it asks first: then it stays open until it is no longer there. */
  mayRefuse?: boolean;
  children: ReactNode;
}

/** What has the focus; the editor has it in a shadow root. */
const focused = (): HTMLElement | null => {
  let found = document.activeElement;
  while (found?.shadowRoot?.activeElement) found = found.shadowRoot.activeElement;
  return found === document.body ? null : (found as HTMLElement | null);
};

/** A dialog that holds the focus until it is closed. */
export const Dialog = ({ title, close, isFirm = false, mayRefuse = false, children }: DialogProps) => {
  // Who selects text in it and lets go outside does not want to close it.
  const isPressedOutside = useRef(false);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = focused();
    dialog.current?.showModal();
    return () => (before?.isConnected ? before : document.getElementById("content"))?.focus();
  }, []);
  return (
    <dialog
      ref={dialog}
      className="dialog"
      aria-label={title}
      onCancel={(event) => {
        if (isFirm || mayRefuse) event.preventDefault();
        if (mayRefuse) close();
      }}
      onClose={() => {
        // A second Escape closes it nevertheless.
        if (isFirm || mayRefuse) dialog.current?.showModal();
        if (!isFirm) close();
      }}
      onPointerDown={(event) => {
        isPressedOutside.current = event.target === dialog.current;
      }}
      onClick={(event) => !isFirm && isPressedOutside.current && event.target === dialog.current && close()}
    >
      <div className="dialog-inner">
        <h2>
          <Marked>{title}</Marked>
        </h2>
        {children}
      </div>
    </dialog>
  );
};

interface QuestionProps {
  title: string;
  /** The two buttons. Escape is the first one. */
  stay: string;
  leave: string;
  answer: (isLeaving: boolean) => void;
  children: ReactNode;
}

/** Asks before something is lost. */
export const Question = ({ title, stay, leave, answer, children }: QuestionProps) => (
  <Dialog title={title} close={() => answer(false)}>
    {children}
    <div className="buttons">
      <Button onClick={() => answer(false)} autoFocus>
        {stay}
      </Button>
      <Button kind="danger" onClick={() => answer(true)}>
        {leave}
      </Button>
    </div>
  </Dialog>
);

interface FormDialogProps {
  title: string;
  button: string;
  kind?: "main" | "danger";
  /** Whether what is in the form can be sent. */
  isReady?: boolean;
  close: () => void;
  /** What Cancel and Escape do instead, which may ask first. */
  leave?: () => void;
  /** What the button does. It may fail, which is then said. A function that it returns is called after it is closed. */
  save: () => unknown;
  children: ReactNode;
}

/** A dialog with a form, which closes when what it does is done. */
export const FormDialog = ({
  title,
  button,
  kind = "main",
  isReady = true,
  close,
  leave,
  save,
  children,
}: FormDialogProps) => {
  const { isBusy, error, work } = useWork();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    work(async () => {
      const next = await save();
      close();
      if (typeof next === "function") next();
    });
  };
  return (
    <Dialog title={title} close={leave ?? close} mayRefuse={leave !== undefined}>
      <form className="page-form" onSubmit={submit}>
        {children}
        <Problem error={error} />
        <div className="buttons">
          <Button onClick={leave ?? close}>Cancel</Button>
          <Button kind={kind} type="submit" disabled={isBusy || !isReady}>
            {button}
          </Button>
        </div>
      </form>
    </Dialog>
  );
};

interface Heading {
  text: string;
  /** Whether numbers are below it. */
  isNumber?: boolean;
  isFaint?: boolean;
}

interface TableProps {
  label: string;
  head?: readonly (string | Heading)[];
  children: ReactNode;
}

/** A table that scrolls on a narrow screen, by the keyboard, too. Its children are its rows. */
export const PageTable = ({ label, head, children }: TableProps) => (
  // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls on a narrow screen
  <div className="scroller" tabIndex={0} role="region" aria-label={label}>
    <table>
      {head && (
        <thead>
          <tr>
            {head.map((each) => {
              const { text, isNumber, isFaint }: Heading = typeof each === "string" ? { text: each } : each;
              return (
                <th key={text} className={isNumber ? "number" : undefined}>
                  {isFaint ? <span className="faint">{text}</span> : text}
                </th>
              );
            })}
          </tr>
        </thead>
      )}
      <tbody>{children}</tbody>
    </table>
  </div>
);

interface SearchProps {
  label: string;
  placeholder?: string;
  value: string;
  change: (text: string) => void;
}

export const Search = ({ label, placeholder = "Search", value, change }: SearchProps) => (
  <input
    type="search"
    aria-label={label}
    placeholder={placeholder}
    value={value}
    onChange={(event) => change(event.target.value)}
  />
);

export const Field = ({ label, hint, children }: { label: string; hint?: ReactNode; children: ReactNode }) => (
  // biome-ignore lint/a11y/noLabelWithoutControl: the control is among the children
  <label className="field">
    <span>
      <Marked>{label}</Marked>
    </span>
    {children}
    {hint && <small>{typeof hint === "string" ? <Marked>{hint}</Marked> : hint}</small>}
  </label>
);

/** What an input with this `list` offers. Anything else can be typed. */
export const Suggestions = ({ id, of }: { id: string; of: readonly string[] }) => (
  <datalist id={id}>
    {of.map((each) => (
      <option key={each} value={each} />
    ))}
  </datalist>
);

export const Problem = ({ error }: { error: unknown }) =>
  error !== undefined &&
  error !== null && (
    <p className="problem" role="alert">
      <Marked>{textOf(error)}</Marked>
    </p>
  );

/** A button whose work takes time and may fail. */
export const useWork = (): { isBusy: boolean; error: unknown; work: (act: () => Promise<unknown>) => void } => {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const work = (act: () => Promise<unknown>) => {
    setBusy(true);
    setError(undefined);
    act()
      .catch(setError)
      .finally(() => setBusy(false));
  };
  return { isBusy, error, work };
};

/** What a promise has returned, and a function that asks again. */
export const useLoaded = <T,>(
  load: () => Promise<T>,
  key: string,
): { value: T | undefined; error: unknown; isLoading: boolean; again: () => void } => {
  const [state, setState] = useState<{ key: string; tries: number; value?: T; error?: unknown }>({ key, tries: -1 });
  const [tries, setTries] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key says when to load, and `load` is another one each time
  useEffect(() => {
    let isCurrent = true;
    load().then(
      (value) => isCurrent && setState({ key, tries, value }),
      (error) => isCurrent && setState((before) => ({ ...(before.key === key && before), key, tries, error })),
    );
    return () => {
      isCurrent = false;
    };
  }, [key, tries]);
  const isHere = state.key === key;
  return {
    value: isHere ? state.value : undefined,
    error: isHere ? state.error : undefined,
    isLoading: !isHere || state.tries !== tries,
    again: () => setTries(tries + 1),
  };
};
