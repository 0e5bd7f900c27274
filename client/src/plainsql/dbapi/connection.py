"""PEP 249's connection: where writes are kept until `commit()`, or are done at once.

Owns the two modes and their honesty: nothing that was done can be rolled back, so `rollback()` says so.
"""

import re
from types import TracebackType
from typing import TYPE_CHECKING, Any

from plainsql.client import Client
from plainsql.client import connect as connect_client
from plainsql.dbapi.exceptions import InterfaceError, NotSupportedError, OperationalError, translating
from plainsql.result import Result
from plainsql.statements import first_word, looks_like_a_read

if TYPE_CHECKING:
    from plainsql.dbapi.cursor import Cursor

_REFUSED = {
    "SAVEPOINT": "Savepoints are not supported: the statements of a transaction are sent together.",
    "RELEASE": "Savepoints are not supported: the statements of a transaction are sent together.",
}

_NEXT_NUMBER = re.compile(r"\s*select\s+(?:nextval|currval|setval)\s*\([^()]*\)\s*", re.IGNORECASE)


def connect(
    url: str | None = None,
    key: str | None = None,
    *,
    database: str | None = None,
    ca_file: str | None = None,
    timeout_s: float = 60.0,
    autocommit: bool = False,
) -> "Connection":
    """A connection with the settings of `plainsql.connect`; buffered unless `autocommit` is true."""
    with translating():
        client = connect_client(url, key, database=database, ca_file=ca_file, timeout_s=timeout_s)
    return Connection(client, autocommit=autocommit)


class Connection:
    """See the module `plainsql.dbapi` for the two modes. Nothing is open at the service between calls."""

    def __init__(self, client: Client, *, autocommit: bool = False) -> None:
        self._client: Client | None = client
        self._autocommit = autocommit
        self._kept: list[tuple[str, list[Any], Cursor]] = []
        self._done_writes = 0

    @property
    def client(self) -> Client:
        """The client below, for what PEP 249 has no word for."""
        if self._client is None:
            raise InterfaceError("The connection is closed.")
        return self._client

    @property
    def autocommit(self) -> bool:
        """Whether statements are committed one by one. It cannot be changed while writes are kept."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        if self._kept and value != self._autocommit:
            raise InterfaceError("Writes are kept: commit() or rollback() first.")
        self._autocommit = value
        self._done_writes = 0

    @property
    def kept_writes(self) -> int:
        """How many writes wait for commit()."""
        return len(self._kept)

    def cursor(self) -> "Cursor":
        from plainsql.dbapi.cursor import Cursor  # noqa: PLC0415  # it imports this module

        _ = self.client
        return Cursor(self)

    def run(self, sql: str, params: list[Any], cursor: "Cursor") -> Result | None:
        """The statement's result, or None if it is kept until commit()."""
        word = first_word(sql)
        if word in _REFUSED or (word == "ROLLBACK" and " TO " in f" {sql.upper()} "):
            raise NotSupportedError(_REFUSED["SAVEPOINT"])
        if self._autocommit:
            with translating():
                result = self.client.query(sql, *params)
            if not result.read_only:
                self.note_write()
            return result
        if not self.is_read(sql):
            self.keep(sql, params, cursor)
            return None
        if _NEXT_NUMBER.fullmatch(sql):
            # Sequences are outside of transactions: nothing that is kept changes them, and no rollback either.
            with translating():
                return self.client.query(sql, *params)
        self.refuse_stale_read()
        # What a SELECT writes could not be rolled back, so it may not write.
        with translating():
            return self.client.query(sql, *params, read_only=True)

    def is_read(self, sql: str) -> bool:
        """Whether it goes out at once. WITH may hold a write, so such a statement is looked at more closely."""
        if first_word(sql) != "WITH":
            return looks_like_a_read(sql)
        words = set(sql.upper().replace("(", " ").split())
        return not words & {"INSERT", "UPDATE", "DELETE", "MERGE"}

    def refuse_stale_read(self) -> None:
        """A read would not see what is kept, and would look as if it did."""
        if self._kept:
            raise OperationalError(
                f"{len(self._kept)} writes are kept until commit(), and this statement would not see them: commit() "
                "first, or use autocommit."
            )

    def keep(self, sql: str, params: list[Any], cursor: "Cursor") -> None:
        """Keeps a write for commit()."""
        _ = self.client
        self._kept.append((sql, params, cursor))

    def note_write(self) -> None:
        """Something was committed that rollback() cannot undo."""
        self._done_writes += 1

    def commit(self) -> None:
        """Sends what is kept as one serializable transaction, and keeps nothing.

        If it raises, nothing was done, unless the error's `outcome` is "unknown" or "committed": then the answer was
        lost, and the cause of the error has the idempotency key to find out with.
        """
        client = self.client
        kept, self._kept = self._kept, []
        self._done_writes = 0
        if not kept:
            return
        together = client.transaction()
        with translating():
            for sql, params, _ in kept:
                together.add(sql, *params)
            results = together.run()
        for (_, _, cursor), result in zip(kept, results, strict=True):
            cursor.take(result)

    def rollback(self) -> None:
        """Forgets what is kept. Raises OperationalError in autocommit mode after a write: it was committed."""
        _ = self.client
        self._kept.clear()
        done, self._done_writes = self._done_writes, 0
        if done:
            raise OperationalError(
                f"{done} writes were committed as they were run (autocommit) and cannot be rolled back."
            )

    def close(self) -> None:
        """Closes the connection and forgets what is kept."""
        client = self.client
        self._client = None
        self._kept.clear()
        client.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self._kept.clear()
        self.close()
