"""The DB-API connection: buffers writes until `commit()`, or runs them at once in autocommit mode.

A committed write cannot be rolled back, so `rollback()` after one raises an error.
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
    "SAVEPOINT": "Savepoints aren't supported: the statements of a transaction are sent together.",
    "RELEASE": "Savepoints aren't supported: the statements of a transaction are sent together.",
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
    """Returns a connection, buffered unless `autocommit` is true. The settings are those of `plainsql.connect`."""
    with translating():
        client = connect_client(url, key, database=database, ca_file=ca_file, timeout_s=timeout_s)
    return Connection(client, autocommit=autocommit)


class Connection:
    """A connection in one of the two modes of `plainsql.dbapi`. Between calls, it holds nothing open in the service."""

    def __init__(self, client: Client, *, autocommit: bool = False) -> None:
        self._client: Client | None = client
        self._autocommit = autocommit
        self._kept: list[tuple[str, list[Any], Cursor]] = []
        self._done_writes = 0

    @property
    def client(self) -> Client:
        """The underlying client, for calls that PEP 249 does not have."""
        if self._client is None:
            raise InterfaceError("The connection is closed.")
        return self._client

    @property
    def autocommit(self) -> bool:
        """Whether each statement commits at once. You cannot change it while writes are buffered."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        if self._kept and value != self._autocommit:
            raise InterfaceError("There are buffered writes. Call commit() or rollback() first.")
        self._autocommit = value
        self._done_writes = 0

    @property
    def kept_writes(self) -> int:
        """How many writes are buffered until commit()."""
        return len(self._kept)

    def cursor(self) -> "Cursor":
        from plainsql.dbapi.cursor import Cursor  # noqa: PLC0415  # it imports this module

        _ = self.client
        return Cursor(self)

    def run(self, sql: str, params: list[Any], cursor: "Cursor") -> Result | None:
        """Returns the statement's result, or None if it is buffered until commit()."""
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
            # Sequences are not transactional: buffered writes do not affect them, and neither does a rollback.
            with translating():
                return self.client.query(sql, *params)
        self.refuse_stale_read()
        # A write inside a SELECT could not be rolled back, so the SELECT runs read-only.
        with translating():
            return self.client.query(sql, *params, read_only=True)

    def is_read(self, sql: str) -> bool:
        """Whether a statement runs at once. For WITH, also checks that no part of it writes."""
        if first_word(sql) != "WITH":
            return looks_like_a_read(sql)
        words = set(sql.upper().replace("(", " ").split())
        return not words & {"INSERT", "UPDATE", "DELETE", "MERGE"}

    def refuse_stale_read(self) -> None:
        """Raises an error if writes are buffered, because a read would not see them."""
        if self._kept:
            raise OperationalError(
                f"This statement would not see the {len(self._kept)} buffered writes. Call commit() first, or use "
                "autocommit."
            )

    def keep(self, sql: str, params: list[Any], cursor: "Cursor") -> None:
        """Buffers a write until commit()."""
        _ = self.client
        self._kept.append((sql, params, cursor))

    def note_write(self) -> None:
        """Records that a write was committed, which rollback() cannot undo."""
        self._done_writes += 1

    def commit(self) -> None:
        """Sends the buffered writes as one serializable transaction, and clears the buffer.

        If it raises an error, nothing was written, unless the error's `outcome` is "unknown" or "committed". In that
        case the response was lost; use the idempotency key in the error's `__cause__` to check the outcome.
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
        """Discards the buffered writes. In autocommit mode, raises OperationalError after a write."""
        _ = self.client
        self._kept.clear()
        done, self._done_writes = self._done_writes, 0
        if done:
            raise OperationalError(f"{done} writes were committed at once (autocommit) and cannot be rolled back.")

    def close(self) -> None:
        """Closes the connection and discards the buffered writes."""
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
