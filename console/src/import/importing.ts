/**
 * Imports a file: creates a staging table, stores the rows in it batch by batch, and finishes in one transaction. Each
 * of these requests has an idempotency key and is sent again with the same one, so that a lost response doubles nothing.
 * An import that has stopped keeps what is not confirmed yet, and continues with it.
 */

import { PlainSQLError } from "plainsql";
import { newKey, type Outcome, rehearse, run, runTransaction, type Statement } from "../api/data.ts";
import { finalOutcomeOf } from "../api/outcome.ts";
import { textOf, wasAborted } from "../api/requests.ts";
import { ended, session } from "../api/session.ts";
import { type Store, store } from "../api/store.ts";
import { toast } from "../app/toast.tsx";
import { type Batch, batchesOf, type Reading } from "./batches.ts";
import { FileError } from "./csv.ts";
import { firstFailing, type ImportRow, newStage, Stage, type Target } from "./stage.ts";

export interface Wanted {
  file: File;
  database: string;
  reading: Reading;
  target: Target;
}

/** Why an import has stopped. Nothing of it is in the table. */
export interface Fault {
  message: string;
  line?: number | undefined;
  column?: string | undefined;
  /** Whether it can succeed without another file. */
  canContinue: boolean;
}

/** What was sent and not confirmed: it may have taken effect, or not. */
export type Doubt =
  | { of: "create" | "finish" | "drop" }
  /** The first and last of its rows, counted from 1, and the lines on which these begin. */
  | { of: "batch"; rows: readonly [number, number]; lines: readonly [number, number] };

/** Why it was stopped: by someone, or because the session has ended. */
export type Why = "cancelled" | "session";

export type State =
  | { kind: "loading" }
  | { kind: "finishing" }
  | { kind: "stopped"; why: Why; doubt: Doubt | undefined }
  | { kind: "failed"; fault: Fault; doubt: Doubt | undefined }
  | { kind: "undoing" }
  | { kind: "done" }
  | { kind: "undone" };

export interface Shown {
  state: State;
  /** Of the file, confirmed by the service. */
  bytes: number;
  rows: number;
}

// A rate limit may ask for a minute.
const REQUEST_MS = 150_000;
const TRANSACTION_STATEMENTS = 100;
const UNDEFINED_TABLE = "42P01";
const UNREADABLE = "The file can't be read further: it was changed or moved, or its drive is gone. The browser says: ";

/** Whether it is the fault of a value, and not of the network or the service. */
const isOfValue = (error: unknown): error is PlainSQLError =>
  error instanceof PlainSQLError && /^(22|23)/.test(error.sqlstate ?? "");

const outcomeOf = (error: unknown): Outcome | undefined => (error instanceof PlainSQLError ? error.outcome : undefined);

export class CsvImport {
  readonly wanted: Wanted;
  readonly organization = session.get()?.organization.id ?? "";
  readonly shown: Store<Shown>;
  readonly stage: Stage;
  readonly #batches: AsyncGenerator<Batch, void, void>;
  readonly #keys = { create: newKey(), finish: newKey() };
  #pending: { batch: Batch; key: string } | undefined;
  #isCreated = false;
  // Whether the last batch is stored, after which the import may finish.
  #isLoaded = false;
  #fileError: FileError | undefined;
  // When the finish was first sent, as long as it may have taken effect.
  #finishSentAt: number | undefined;
  #why: Why | undefined;
  #doubt: Doubt | undefined;
  #controller = new AbortController();

  constructor(wanted: Wanted) {
    this.wanted = wanted;
    this.stage = new Stage(wanted.target, newStage());
    this.shown = store<Shown>({ state: { kind: "loading" }, bytes: 0, rows: 0 });
    this.#batches = batchesOf(wanted.file, wanted.reading);
  }

  get isRunning(): boolean {
    return ["loading", "finishing", "undoing"].includes(this.shown.get().state.kind);
  }

  get hasEnded(): boolean {
    return ["done", "undone"].includes(this.shown.get().state.kind);
  }

  /** Begins, or continues with the request that was not confirmed. */
  async go(): Promise<void> {
    this.#controller = new AbortController();
    this.#why = undefined;
    this.#set({ state: { kind: "loading" } });
    try {
      if (!this.#isCreated) await this.#run({ of: "create" }, this.stage.create(), this.#keys.create);
      this.#isCreated = true;
      await this.#load();
      this.#set({ state: { kind: "finishing" } });
      await this.#finish();
      this.#set({ state: { kind: "done" }, bytes: this.wanted.file.size });
    } catch (error) {
      this.#set({ state: await this.#stateAfter(error) });
    }
  }

  /** Stops it. The rows that are stored stay in the staging table. */
  stop(why: Why = "cancelled"): void {
    this.#why = why;
    this.#controller.abort();
  }

  /** Asks what became of the finish, if that is unknown: when the session ended, nobody could. */
  async ask(): Promise<void> {
    const { state } = this.shown.get();
    if ((state.kind !== "stopped" && state.kind !== "failed") || state.doubt?.of !== "finish") return;
    const outcome = await this.#finishOutcome();
    // Unless someone has continued meanwhile.
    if (this.shown.get().state !== state || outcome === "unknown") return;
    this.#set({ state: this.#decided(outcome) ? { kind: "done" } : { ...state, doubt: undefined } });
  }

  /** Drops the staging table. If it is there no more, the import had finished after all. */
  async undo(): Promise<void> {
    this.#set({ state: { kind: "undoing" } });
    try {
      await run(this.stage.drop(), this.#options());
      this.#set({ state: { kind: "undone" } });
    } catch (error) {
      this.#set({ state: await this.#stateAfterDrop(error) });
    }
  }

  async #stateAfterDrop(error: unknown): Promise<State> {
    if (error instanceof PlainSQLError && error.sqlstate === UNDEFINED_TABLE) {
      // The end of the import has removed it, or an earlier drop whose response was lost.
      const outcome = await this.#finishOutcome();
      if (outcome !== "unknown") return { kind: this.#decided(outcome) ? "done" : "undone" };
      this.#doubt = { of: "finish" };
    } else if (outcomeOf(error) === "unknown") this.#doubt = { of: "drop" };
    return { kind: "failed", fault: { message: textOf(error), canContinue: true }, doubt: this.#doubt };
  }

  async #load(): Promise<void> {
    while (!this.#isLoaded) {
      this.#controller.signal.throwIfAborted();
      this.#pending ??= { batch: await this.#next(), key: newKey() };
      const { batch, key } = this.#pending;
      if (batch.rows.length) await this.#run(this.#doubtOf(batch), this.stage.insert(batch.rows), key);
      this.#pending = undefined;
      this.#isLoaded = batch.isLast;
      this.#set({ bytes: batch.bytes, rows: this.shown.get().rows + batch.rows.length });
    }
  }

  /** The next batch. A generator that has failed says that it has ended, so the failure is kept. */
  async #next(): Promise<Batch> {
    if (this.#fileError) throw this.#fileError;
    try {
      const { value } = await this.#batches.next();
      if (value) return value;
      this.#fileError = new FileError("The file ended before its last record.");
    } catch (error) {
      this.#fileError = error instanceof FileError ? error : new FileError(UNREADABLE + textOf(error));
    }
    throw this.#fileError;
  }

  async #finish(): Promise<void> {
    this.#controller.signal.throwIfAborted();
    this.#finishSentAt ??= Date.now();
    const options = { ...this.#options(), signal: this.#controller.signal, idempotencyKey: this.#keys.finish };
    try {
      await this.#confirmed({ of: "finish" }, () => runTransaction(this.stage.finish(this.shown.get().rows), options));
    } finally {
      if (!this.#doubt) this.#finishSentAt = undefined;
    }
  }

  /** What became of the finish, by its key. */
  async #finishOutcome(): Promise<Outcome> {
    if (this.#finishSentAt === undefined) return "not_executed";
    return finalOutcomeOf(this.#keys.finish, this.wanted.database, this.#finishSentAt);
  }

  /** Takes note of an outcome of the finish that is known. Whether all rows are in the table. */
  #decided(outcome: Outcome): boolean {
    this.#doubt = undefined;
    this.#finishSentAt = undefined;
    return outcome === "committed";
  }

  async #stateAfter(error: unknown): Promise<State> {
    // A request that the service refuses because the session has ended is as good as cancelled.
    if (!wasAborted(error) && this.#why !== "session") {
      return { kind: "failed", fault: await this.#faultOf(error), doubt: this.#doubt };
    }
    if (this.#doubt?.of === "finish") {
      const outcome = await this.#finishOutcome();
      if (outcome !== "unknown" && this.#decided(outcome)) return { kind: "done" };
    }
    return { kind: "stopped", why: this.#why ?? "cancelled", doubt: this.#doubt };
  }

  async #faultOf(error: unknown): Promise<Fault> {
    const message = textOf(error);
    if (error instanceof FileError) return { message, line: error.line, canContinue: false };
    if (error instanceof PlainSQLError && error.code === "expectation_failed") {
      // After a crash of PostgreSQL, an unlogged table is empty.
      return { message: "The staging table has lost rows. Import the file again.", canContinue: false };
    }
    const fault: Fault = { message, canContinue: true };
    if (!isOfValue(error)) return fault;
    try {
      return this.#pending
        ? await this.#valueFault(this.#pending.batch.rows, fault)
        : await this.#rowFault(error, fault);
    } catch {
      // What is known is reported.
      return fault;
    }
  }

  /** Which value of a batch is wrong. */
  async #valueFault(rows: readonly ImportRow[], fault: Fault): Promise<Fault> {
    const bad = await firstFailing(rows.length, async (count) => {
      return (await this.#failureOf([this.stage.insert(rows.slice(0, count))])) !== undefined;
    });
    const row = rows[bad - 1] as ImportRow;
    const columns = this.stage.insertByColumn(row);
    for (let from = 0; from < columns.length; from += TRANSACTION_STATEMENTS) {
      const found = await this.#failureOf(columns.slice(from, from + TRANSACTION_STATEMENTS));
      if (!found) continue;
      const column = this.wanted.target.columns[from + (found.statementIndex ?? 0)]?.name;
      return { message: textOf(found), line: row.line, column, canContinue: false };
    }
    return { ...fault, line: row.line, canContinue: false };
  }

  /** Which stored row the table refuses. It may accept it later, if other rows have changed. */
  async #rowFault(error: PlainSQLError, fault: Fault): Promise<Fault> {
    const { column } = error;
    if (this.wanted.target.isNew) {
      const [row] = (await run(this.stage.keyFault(), { ...this.#options(), readOnly: true })).rows;
      if (!row) return fault;
      const [line, earlier] = row.map(Number) as [number, number];
      const message = earlier < line ? `${fault.message} The same key is on line ${earlier}.` : fault.message;
      return { message, line, column: this.wanted.target.key ?? column, canContinue: false };
    }
    const bad = await firstFailing(
      this.shown.get().rows,
      async (count) => (await this.#failureOf([this.stage.copy(count)])) !== undefined,
    );
    const { rows } = await run(this.stage.lineOf(bad), { ...this.#options(), readOnly: true });
    return { ...fault, line: Number(rows[0]?.[0]), column };
  }

  /** How statements fail, if they are executed and rolled back. */
  async #failureOf(statements: readonly Statement[]): Promise<PlainSQLError | undefined> {
    try {
      await rehearse(statements, this.#options());
      return undefined;
    } catch (error) {
      if (isOfValue(error)) return error;
      throw error;
    }
  }

  async #run(doubt: Doubt, statement: Statement, idempotencyKey: string): Promise<void> {
    const options = { ...this.#options(), signal: this.#controller.signal, idempotencyKey };
    await this.#confirmed(doubt, () => run(statement, options));
  }

  /** Sends what takes effect once. It is in doubt until the service says what became of it. */
  async #confirmed(doubt: Doubt, send: () => Promise<unknown>): Promise<void> {
    const wasInDoubt = this.#doubt !== undefined;
    this.#doubt = doubt;
    try {
      await send();
    } catch (error) {
      const outcome = outcomeOf(error);
      // The client has asked by the key: it took effect, and only the response was lost.
      if (outcome !== "committed") {
        const isDoubtful = wasAborted(error) || outcome === "unknown";
        // An attempt that did not run says nothing about the one before it. One that was rolled back had no other before it.
        if (!isDoubtful && (!wasInDoubt || outcome === "rolled_back")) this.#doubt = undefined;
        throw error;
      }
    }
    this.#doubt = undefined;
  }

  #doubtOf({ rows }: Batch): Doubt {
    const before = this.shown.get().rows;
    const [first, last] = [rows[0], rows.at(-1)] as [ImportRow, ImportRow];
    return { of: "batch", rows: [before + 1, before + rows.length], lines: [first.line, last.line] };
  }

  #options() {
    return { database: this.wanted.database, maxRows: 1, timeoutMs: REQUEST_MS };
  }

  #set(next: Partial<Shown>): void {
    this.shown.update((before) => ({ ...before, ...next }));
  }
}

/** The import of this tab. It goes on while other pages are shown. */
export const currentImport = store<CsvImport | undefined>(undefined);

/** Those that were stopped because the session has ended, by organization. */
const stopped = new Map<string, CsvImport>();

const stopWithSession = (here: CsvImport) => {
  here.stop("session");
  if (!here.hasEnded && ended.get() !== "forgotten") stopped.set(here.organization, here);
  currentImport.set(undefined);
};

/** Shows the organization's import again, for someone to continue or discard. */
const comeBack = (organization: string) => {
  const found = stopped.get(organization);
  if (!found) return;
  stopped.delete(organization);
  currentImport.set(found);
  void found.ask();
  toast(`The import of ${found.wanted.file.name} was stopped. You find it under Tables, Import CSV.`);
};

session.follow(() => {
  const now = session.get();
  const here = currentImport.get();
  if (!now && here) stopWithSession(here);
  else if (now && !here) comeBack(now.organization.id);
});

ended.follow(() => ended.get() === "forgotten" && stopped.clear());

addEventListener("beforeunload", (event) => {
  if (currentImport.get()?.isRunning || stopped.size) event.preventDefault();
});
