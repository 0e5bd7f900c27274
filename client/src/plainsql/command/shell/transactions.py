"""Transactions in the shell: what runs between BEGIN and COMMIT is one transaction.

On a terminal, each statement shows its result at once, and sees the ones before it; COMMIT makes them take effect (see
`plainsql.interactive`). In a script, the statements are gathered, and COMMIT sends them in one request.
"""

from collections.abc import Iterator

from plainsql.client import Client, Transaction
from plainsql.command.failures import show_notices
from plainsql.command.statements import transaction_word
from plainsql.command.terminal import say
from plainsql.errors import TransactionError
from plainsql.interactive.session import InteractiveSession
from plainsql.result import Result
from plainsql.transport.protocol import Options

_OPTIONS = Options(as_sent=True)


class ShellTransaction:
    """The shell's transaction, if one is open. `run` returns the results that a statement makes available."""

    def __init__(self, *, is_interactive: bool) -> None:
        self._is_interactive = is_interactive
        self._session: InteractiveSession | None = None
        self._gathered: Transaction | None = None

    @property
    def is_open(self) -> bool:
        return self._session is not None or self._gathered is not None

    @property
    def mark(self) -> str:
        """What the prompt shows: `*` in a transaction, `!` if it has failed."""
        if self._session is None:
            return "*" if self.is_open else ""
        return "!" if self._session.unit.has_failed else "*"

    def run(self, db: Client, sql: str) -> Iterator[Result]:
        """Runs a statement in the transaction, or begins or ends one."""
        word = transaction_word(sql)
        if word == "BEGIN":
            self._begin(db)
        elif word == "ROLLBACK":
            say("ROLLBACK" if self.is_open else "No transaction is open.")
            self.forget()
        elif word == "COMMIT":
            yield from self._commit(db)
        elif self._session is not None:
            yield _run_in(self._session, db, sql)
        elif self._gathered is not None:
            self._gathered.add(sql)
        else:
            yield db.query_as_sent(sql)

    def forget(self) -> None:
        """Discards the transaction."""
        self._session = self._gathered = None

    def _begin(self, db: Client) -> None:
        if self.is_open:
            raise ValueError("A transaction is open already.")
        if self._is_interactive:
            self._session = db.interactive(_OPTIONS)
            say("BEGIN")
        else:
            self._gathered = Transaction(db, _OPTIONS, None)

    def _commit(self, db: Client) -> Iterator[Result]:
        session, gathered = self._session, self._gathered
        self.forget()
        if session is not None and session.unit.has_failed:
            say("ROLLBACK: a statement of this transaction failed, so nothing was committed.")
        elif session is not None:
            # What was reported before came with the results.
            session.take_notices()
            db.perform(session.commit())
            show_notices(session.take_notices())
            say("COMMIT")
        elif gathered is not None and gathered.statements:
            done = gathered.run()
            yield from done
            show_notices(done.notices)
        elif gathered is None:
            say("No transaction is open.")


def _run_in(session: InteractiveSession, db: Client, sql: str) -> Result:
    """Runs a statement in the transaction. If an earlier one failed, the message says what to type."""
    try:
        return db.perform(session.query(sql, ()))
    except TransactionError as error:
        if error.code != "in_failed_sql_transaction":
            raise
        # The client's own message is about its rollback().
        message = "An earlier statement of this transaction failed. Type ROLLBACK; to end the transaction."
        raise TransactionError(error.code, error.sqlstate, message) from error
