/**
 * The editor. It lives in a shadow root: there CodeMirror adds its styles by script, which the page's policy allows, and
 * not by <style>, which it forbids.
 */

import {
  autocompletion,
  type Completion,
  type CompletionContext,
  type CompletionResult,
  closeBrackets,
  closeBracketsKeymap,
  closeCompletion,
  completionKeymap,
  completionStatus,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { PostgreSQL, type SQLNamespace, schemaCompletionSource, sql } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { highlightSelectionMatches, search, searchKeymap, searchPanelOpen } from "@codemirror/search";
import {
  type Annotation,
  EditorState,
  type Extension,
  Prec,
  RangeSetBuilder,
  StateEffect,
  StateField,
  Transaction,
} from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  drawSelection,
  EditorView,
  highlightActiveLine,
  keymap,
  lineNumbers,
  MatchDecorator,
  placeholder,
  ViewPlugin,
  type ViewUpdate,
  WidgetType,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { marked, numberOf, UNSEEN, UNSEEN_TITLE } from "../app/marked.tsx";
import { type Completions, inQuotes } from "./schema.ts";
import { statementAt, statementsOf } from "./statements.ts";

export interface EditorActions {
  /** What is completed at the moment. While it loads, only keywords are. */
  completions: () => Promise<Completions>;
  change: (text: string) => void;
  run: () => void;
  runAll: () => void;
  stream: () => void;
  format: () => void;
}

const theme = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", color: "var(--text)", backgroundColor: "var(--page)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { padding: "8px 0", caretColor: "var(--accent)" },
  ".cm-gutters": { backgroundColor: "var(--page)", color: "var(--faint)", border: "none", paddingRight: "4px" },
  ".cm-activeLine": { backgroundColor: "var(--line-hint)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent", color: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--accent)", borderLeftWidth: "2px" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--selection)",
  },
  ".cm-selectionMatch": { backgroundColor: "var(--selection-soft)" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--selection)" },
  ".cm-placeholder": { color: "var(--faint)" },
  ".cm-failed": { textDecoration: "underline wavy var(--danger) 1.5px", textUnderlineOffset: "3px" },
  ".cm-wanted": { boxShadow: "inset 2px 0 var(--accent)" },
  ".unseen-character": {
    padding: "0 3px",
    borderRadius: "3px",
    backgroundColor: "var(--danger-soft)",
    color: "var(--danger)",
    fontFamily: "var(--sans)",
    fontSize: "0.85em",
    fontWeight: "500",
    unicodeBidi: "isolate",
  },
  ".cm-tooltip": {
    backgroundColor: "var(--raised)",
    color: "var(--text)",
    border: "1px solid var(--border)",
    borderRadius: "6px",
    overflow: "hidden",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", fontSize: "12.5px", maxHeight: "16em" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "2px 8px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "inherit", opacity: 0.7, fontStyle: "normal", marginLeft: "1em" },
  ".cm-completionIcon": { opacity: 0.6 },
  ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)" },
  ".cm-panels.cm-panels-top": { borderBottom: "1px solid var(--border)" },
  ".cm-panel.cm-search": { fontFamily: "var(--sans)", fontSize: "12px" },
  ".cm-textfield": { backgroundColor: "var(--page)", color: "var(--text)", border: "1px solid var(--border)" },
  ".cm-button": { backgroundImage: "none", backgroundColor: "var(--page)", border: "1px solid var(--border)" },
});

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--sql-keyword)", fontWeight: "500" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--sql-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--sql-number)" },
  { tag: tags.comment, color: "var(--sql-comment)", fontStyle: "italic" },
  { tag: [tags.typeName, tags.standard(tags.name)], color: "var(--sql-type)" },
]);

const setFailed = StateEffect.define<{ from: number; to: number } | null>();

const failed = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (marks, transaction) => {
    let next = transaction.docChanged ? Decoration.none : marks;
    for (const effect of transaction.effects) {
      if (!effect.is(setFailed)) continue;
      next = effect.value
        ? Decoration.set([Decoration.mark({ class: "cm-failed" }).range(effect.value.from, effect.value.to)])
        : Decoration.none;
    }
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

// In a longer text, finding it would make typing slow.
const MARKED_MAX = 100_000;

/** Marks the lines of the statement that would run, if there are several. */
const wanted = (state: EditorState): DecorationSet => {
  if (state.doc.length > MARKED_MAX) return Decoration.none;
  const text = state.doc.toString();
  const found = statementAt(text, state.selection.main.head);
  if (!found || statementsOf(text).length < 2) return Decoration.none;
  const marks = new RangeSetBuilder<Decoration>();
  for (let at = found.from; at <= found.to; ) {
    const line = state.doc.lineAt(at);
    marks.add(line.from, line.from, Decoration.line({ class: "cm-wanted" }));
    at = line.to + 1;
  }
  return marks.finish();
};

const wantedField = StateField.define<DecorationSet>({
  create: wanted,
  update: (marks, { docChanged, selection, state }) => (docChanged || selection ? wanted(state) : marks),
  provide: (field) => EditorView.decorations.from(field),
});

export class UnseenMark extends WidgetType {
  readonly #character: string;

  constructor(character: string) {
    super();
    this.#character = character;
  }

  override eq(other: UnseenMark): boolean {
    return other.#character === this.#character;
  }

  override toDOM(): HTMLElement {
    const mark = document.createElement("span");
    mark.className = "unseen-character";
    mark.title = UNSEEN_TITLE;
    mark.textContent = numberOf(this.#character);
    return mark;
  }

  override ignoreEvent(): boolean {
    return false;
  }
}

// Not CodeMirror's own marks of special characters: they look again at what is typed only, and whether a joiner is
// marked depends on its neighbours. This looks at the whole line.
const unseen = new MatchDecorator({
  regexp: new RegExp(UNSEEN, "gu"),
  decoration: ([character]) => Decoration.replace({ widget: new UnseenMark(character) }),
});

/** What turns text round, and what is not seen, is marked as elsewhere: the SQL may be someone else's. */
const unseenMarks = ViewPlugin.define(
  (view) => ({
    marks: unseen.createDeco(view),
    update(update: ViewUpdate) {
      this.marks = unseen.updateDeco(update, this.marks);
    },
  }),
  { decorations: ({ marks }) => marks },
);

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

export const RUN_KEY = isMac ? "⌘⏎" : "Ctrl ⏎";

const functionSource =
  (functions: readonly string[]) =>
  (context: CompletionContext): CompletionResult | null => {
    const word = context.matchBefore(/[\w$]+/);
    if (!word || (word.from === word.to && !context.explicit)) return null;
    if (context.state.sliceDoc(word.from - 1, word.from) === ".") return null;
    const options = functions.map((label) => ({ label, type: "function", apply: `${label}(`, boost: -2 }));
    return { from: word.from, options, validFor: /^[\w$]*$/ };
  };

const DEFAULT_SCHEMA = "public";

/** Where a name begins. A word that is a type, such as `bool`, is none for CodeMirror, which would complete what follows. */
const startOf = (context: CompletionContext, { from }: CompletionResult): number =>
  from === context.pos ? (context.matchBefore(/[\w$]+/)?.from ?? from) : from;

/** A name as it is, and as it is shown. */
const withMarks = (option: Completion): Completion => {
  const displayLabel = marked(option.label);
  return displayLabel === option.label ? option : { ...option, displayLabel };
};

/** Completes a name, in quotes where it needs them or someone has begun with one. */
export const completeName = async (
  schema: SQLNamespace,
  context: CompletionContext,
): Promise<CompletionResult | null> => {
  const offered = await schemaCompletionSource({ dialect: PostgreSQL, schema, defaultSchema: DEFAULT_SCHEMA })(context);
  const options = offered?.options.map(withMarks) ?? [];
  const found = offered && { ...offered, options, from: startOf(context, offered) };
  if (!found || context.state.sliceDoc(found.from, found.from + 1) !== '"') return found;
  return { ...found, options: inQuotes(found.options) };
};

/** The sources stay, whatever `completions` says: CodeMirror forgets what was asked of sources that are replaced. */
const language = (completions: EditorActions["completions"]) => {
  const functions = async (context: CompletionContext) => functionSource((await completions()).functions)(context);
  const names = async (context: CompletionContext) => {
    return completeName((await completions()).schema, context);
  };
  return [
    sql({ dialect: PostgreSQL }),
    ...[names, functions].map((autocomplete) => PostgreSQL.language.data.of({ autocomplete })),
  ];
};

const leave = (view: EditorView): boolean => {
  // The list of completions and the search use Escape for themselves.
  if (completionStatus(view.state) === null && !searchPanelOpen(view.state)) view.contentDOM.blur();
  return false;
};

export class SqlEditor {
  readonly #view: EditorView;
  readonly #language: Extension;
  // One for each tab, with what can be undone.
  readonly #states = new Map<string, EditorState>();
  readonly #actions: EditorActions;
  #shown = "";

  constructor(host: HTMLElement, actions: EditorActions) {
    this.#actions = actions;
    this.#language = language(actions.completions);
    const root = host.shadowRoot ?? host.attachShadow({ mode: "open", delegatesFocus: true });
    root.replaceChildren();
    this.#view = new EditorView({ root, parent: root, state: this.#state("") });
  }

  /** Shows a tab. */
  show(id: string, text: string): void {
    if (this.#shown === id) {
      if (this.text !== text) this.#replace(text, Transaction.remote.of(true));
      return;
    }
    if (this.#shown) this.#states.set(this.#shown, this.#view.state);
    const kept = this.#states.get(id);
    this.#shown = id;
    this.#view.setState(kept && kept.doc.toString() === text ? kept : this.#state(text));
  }

  get text(): string {
    return this.#view.state.doc.toString();
  }

  get cursor(): number {
    return this.#view.state.selection.main.head;
  }

  /** What is selected, and where it begins; undefined if nothing is. */
  get selection(): { text: string; from: number } | undefined {
    const { from, to } = this.#view.state.selection.main;
    return from === to ? undefined : { text: this.#view.state.sliceDoc(from, to), from };
  }

  replace(text: string): void {
    this.#replace(text);
  }

  #replace(text: string, ...annotations: Annotation<unknown>[]): void {
    this.#view.dispatch({ changes: { from: 0, to: this.#view.state.doc.length, insert: text }, annotations });
  }

  insert(text: string): void {
    this.#view.dispatch(this.#view.state.replaceSelection(text));
    this.focus();
  }

  /** Puts the caret where an error is, and marks the word there. */
  markFailed(offset: number): void {
    const { doc } = this.#view.state;
    const from = Math.min(offset, doc.length);
    const word = /^(?:[\p{L}\p{N}_$]+|\S|\s)/u.exec(doc.sliceString(from, from + 200))?.[0] ?? "";
    const to = from + word.length;
    const effects = [setFailed.of(to > from ? { from, to } : null), EditorView.scrollIntoView(from, { y: "center" })];
    this.#view.dispatch({ effects, selection: { anchor: from } });
    this.focus();
  }

  clearFailed(): void {
    this.#view.dispatch({ effects: setFailed.of(null) });
  }

  focus(): void {
    this.#view.focus();
  }

  close(): void {
    this.#view.destroy();
  }

  #state(text: string): EditorState {
    const act = (action: () => void) => (view: EditorView) => {
      closeCompletion(view);
      action();
      return true;
    };
    const { run, runAll, stream, format } = this.#actions;
    return EditorState.create({
      doc: text,
      extensions: [
        Prec.highest(
          EditorView.domEventHandlers({
            // CodeMirror closes a list that is open, but not one that is about to open, which would cover a menu.
            blur: (_, view) => {
              closeCompletion(view);
            },
            // A key that is held must not run a statement again and again.
            keydown: (event) =>
              event.repeat && event.key === "Enter" && (event.ctrlKey || event.metaKey || event.altKey),
          }),
        ),
        Prec.highest(
          keymap.of([
            { key: "Mod-Enter", run: act(run) },
            { key: "Mod-Shift-Enter", run: act(runAll) },
            { key: "Alt-Enter", run: act(stream) },
            { key: "Mod-Shift-f", run: act(format) },
            // Tab would be a trap for who uses the keyboard only; Escape, then Tab, leaves.
            { key: "Escape", run: leave },
          ]),
        ),
        lineNumbers(),
        history(),
        drawSelection(),
        highlightActiveLine(),
        unseenMarks,
        highlightSelectionMatches(),
        bracketMatching(),
        closeBrackets(),
        autocompletion({ activateOnTypingDelay: 60 }),
        search({ top: true }),
        indentUnit.of("  "),
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": "SQL", autocapitalize: "off", spellcheck: "false" }),
        placeholder(`select …   ${RUN_KEY} runs the statement at the cursor`),
        keymap.of([
          ...closeBracketsKeymap,
          ...completionKeymap,
          ...defaultKeymap.filter(({ key }) => key !== "Mod-Enter"),
          ...searchKeymap,
          ...historyKeymap,
          indentWithTab,
        ]),
        this.#language,
        syntaxHighlighting(colours),
        theme,
        failed,
        wantedField,
        EditorView.updateListener.of((update) => {
          // What another window has typed is stored. Stored once more, it could undo what was typed there since.
          const isTyped = update.transactions.some((each) => each.docChanged && !each.annotation(Transaction.remote));
          if (isTyped) this.#actions.change(update.state.doc.toString());
        }),
      ],
    });
  }
}
