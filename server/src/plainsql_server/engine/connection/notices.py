"""Collects the notices and warnings that PostgreSQL sends while a request runs, up to a limit.

    collector.add(result)         # for each notice
    notices = collector.take()    # those that came since the last call

There is one collector per request, made when its first notice arrives.
"""

from typing import Protocol

from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from plainsql_server.core.result import EngineNotice, Notices


class LaneSide(Protocol):
    """The fast lane's side of a connection."""

    def note_notice(self) -> None:
        """Called when PostgreSQL has sent a notice."""


# The most that a request returns. What comes after that is only counted.
MAX_NOTICES = 100
MAX_NOTICE_BYTES = 64 * 1024
# Not LOG and DEBUG: a customer can ask for plans, which have these levels. Those of our own statements show secrets.
_SEVERITIES = frozenset([b"NOTICE", b"WARNING", b"INFO"])

_FIELDS = (
    DiagnosticField.SEVERITY_NONLOCALIZED,
    DiagnosticField.SQLSTATE,
    DiagnosticField.MESSAGE_PRIMARY,
    DiagnosticField.MESSAGE_DETAIL,
    DiagnosticField.MESSAGE_HINT,
)


class NoticeCollector:
    """The notices of one request."""

    def __init__(self) -> None:
        self._count = 0
        self._size_bytes = 0
        self._new: list[EngineNotice] = []
        self._omitted = 0

    def add(self, notice: PGresult) -> None:
        """Keeps a notice, or counts it if there are too many. Ignores messages of other levels."""
        if notice.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) not in _SEVERITIES:
            return
        if self._count >= MAX_NOTICES:
            self._omitted += 1
            return
        fields = [notice.error_field(field) for field in _FIELDS]
        size_bytes = sum([len(field) for field in fields if field is not None])
        if self._size_bytes + size_bytes > MAX_NOTICE_BYTES:
            self._omitted += 1
            return
        self._count += 1
        self._size_bytes += size_bytes
        severity, code, message, detail, hint = [
            None if field is None else field.decode(errors="replace") for field in fields
        ]
        self._new.append(EngineNotice(severity or "NOTICE", code or "00000", message or "", detail, hint))

    def take(self) -> Notices | None:
        """The notices that came since the last call; None if there were none."""
        if not self._new and not self._omitted:
            return None
        taken = Notices(tuple(self._new), self._omitted)
        self._new, self._omitted = [], 0
        return taken
