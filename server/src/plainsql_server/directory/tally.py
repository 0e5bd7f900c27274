"""What requests use, counted in the process and written to the directory in batches.

Owns the counting, which costs a request less than a microsecond, and the writing, every few seconds and at the
stop. A crash loses what was counted since the last time. A batch that could not be written is kept and written
with the next; if the directory's answer was lost, that may count it twice, but never drops it.
"""

import asyncio
from datetime import datetime

from plainsql_server.core.clock import now
from plainsql_server.core.observation import Failure, Observation, Observe, RequestFinished, told_to_operators
from plainsql_server.directory import keys, usage
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.usage import UsageSum


class Tally:
    """Counts; `run` writes down until it is cancelled, and `finish` what is left then."""

    def __init__(self, directory: Directory, every_ms: int, observe: Observe) -> None:
        self._directory = directory
        self._every_s = every_ms / 1000
        self._observe = observe
        self._sums: dict[str, UsageSum] = {}
        self._used_keys: set[str] = set()
        self._since = now()
        self._writing: asyncio.Task[None] | None = None

    def note_request(self, observation: Observation) -> None:
        """Notes which key was used, from what is observed of every request."""
        if isinstance(observation, RequestFinished) and observation.key_id is not None:
            self._used_keys.add(observation.key_id)

    def note_usage(self, organization_id: str, database_id: str, rows: int, engine_us: int, size_bytes: int) -> None:
        """Counts one request to a database."""
        used = self._sums.get(database_id)
        if used is None:
            used = self._sums[database_id] = UsageSum(organization_id, database_id)
        used.requests += 1
        used.rows += rows
        used.engine_us += engine_us
        used.bytes += size_bytes

    async def run(self) -> None:
        """Writes down again and again."""
        while True:
            await asyncio.sleep(min(self._every_s, _until_midnight_s(now())))
            self._writing = asyncio.ensure_future(self.write())
            try:
                # Cutting it off in the middle would leave it open whether it was written.
                await asyncio.shield(self._writing)
            except Exception as error:
                # Whatever it is, it is told, and the next time may go better; a loop that died would not come back.
                self._observe(Failure(now(), "failure", "usage", told_to_operators(error)))

    async def finish(self) -> None:
        """Writes what is left, after `run` was cancelled. Raises what `write` does."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self.write()

    async def write(self) -> None:
        """Writes what was counted since the last time. Raises ServiceError or worse, and keeps it, if that fails."""
        since, self._since = self._since, now()
        sums, self._sums = self._sums, {}
        used_keys, self._used_keys = self._used_keys, set()
        if not sums and not used_keys:
            return
        try:
            async with self._directory.connection() as connection, connection.transaction():
                if sums:
                    await usage.add(connection, since.date(), list(sums.values()))
                if used_keys:
                    await keys.note_used(connection, used_keys, self._since)
        except BaseException:
            self._put_back(since, sums, used_keys)
            raise

    def _put_back(self, since: datetime, sums: dict[str, UsageSum], used_keys: set[str]) -> None:
        self._since = since
        self._used_keys |= used_keys
        for new in self._sums.values():
            old = sums.setdefault(new.database_id, UsageSum(new.organization_id, new.database_id))
            for name in ("requests", "rows", "engine_us", "bytes"):
                setattr(old, name, getattr(old, name) + getattr(new, name))
        self._sums = sums


def _until_midnight_s(at: datetime) -> float:
    """Seconds left of the day, so that what was used today is written down as today's."""
    return 86_400.001 - (at - at.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()
