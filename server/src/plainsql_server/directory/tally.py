"""Counts usage in the process and writes it to the directory in batches.

Counting costs less than a microsecond per request. Batches are written every few seconds and at shutdown. A crash loses
the counts since the last batch. A batch that could not be written is kept and written with the next one. If the
directory's response was lost, this may count a batch twice, but never loses one.
"""

import asyncio
from datetime import datetime, timedelta

from plainsql_server.core.clock import now
from plainsql_server.core.observation import (
    FailureObserved,
    Observation,
    Observe,
    RequestFinished,
    describe_for_operators,
)
from plainsql_server.directory import keys, usage
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.usage import UsageSum


class Tally:
    """Counts usage. `run` writes it until it is cancelled; `finish` writes the rest."""

    def __init__(self, directory: Directory, every_ms: int, observe: Observe) -> None:
        self._directory = directory
        self._every_s = every_ms / 1000
        self._observe = observe
        self._sums: dict[str, UsageSum] = {}
        # When each key was last used.
        self._used_keys: dict[str, datetime] = {}
        self._since = now()
        self._writing: asyncio.Task[None] | None = None

    def note_request(self, observation: Observation) -> None:
        """Records which key a request used, and when it began."""
        if isinstance(observation, RequestFinished) and observation.key_id is not None:
            self.note_key(observation.key_id, observation.at - timedelta(microseconds=observation.total_us))

    def note_key(self, key_id: str, at: datetime) -> None:
        """Records that a key was used. Uses may be reported in any order: requests end in another one."""
        before = self._used_keys.get(key_id)
        if before is None or before < at:
            self._used_keys[key_id] = at

    def note_usage(
        self, organization_id: str, database_id: str, rows: int, engine_us: int, size_bytes: int, *, requests: int = 1
    ) -> None:
        """Counts a request to a database, or several."""
        used = self._sums.get(database_id)
        if used is None:
            used = self._sums[database_id] = UsageSum(organization_id, database_id)
        used.requests += requests
        used.rows += rows
        used.engine_us += engine_us
        used.bytes += size_bytes

    async def run(self) -> None:
        """Writes the counts periodically."""
        while True:
            await asyncio.sleep(min(self._every_s, _until_midnight_s(now())))
            self._writing = asyncio.ensure_future(self.write())
            try:
                # If it were cancelled midway, we would not know whether the batch was written.
                await asyncio.shield(self._writing)
            except Exception as error:
                # Report any error and try again later. The loop must survive, because nothing restarts it.
                self._observe(FailureObserved(now(), "failure", "usage", describe_for_operators(error)))

    async def finish(self) -> None:
        """Writes the rest after `run` was cancelled. Raises the errors of `write`."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self.write()

    async def write(self) -> None:
        """Writes the counts since the last time. If that fails, keeps them and raises ServiceError or another error."""
        since, self._since = self._since, now()
        sums, self._sums = self._sums, {}
        used_keys, self._used_keys = self._used_keys, {}
        if not sums and not used_keys:
            return
        try:
            async with self._directory.connection() as connection, connection.transaction():
                if sums:
                    await usage.add(connection, since.date(), list(sums.values()))
                if used_keys:
                    await keys.note_used(connection, used_keys)
        except BaseException:
            self._put_back(since, sums, used_keys)
            raise

    def _put_back(self, since: datetime, sums: dict[str, UsageSum], used_keys: dict[str, datetime]) -> None:
        self._since = since
        for key_id, at in used_keys.items():
            self.note_key(key_id, at)
        for new in self._sums.values():
            old = sums.setdefault(new.database_id, UsageSum(new.organization_id, new.database_id))
            for name in ("requests", "rows", "engine_us", "bytes"):
                setattr(old, name, getattr(old, name) + getattr(new, name))
        self._sums = sums


def _until_midnight_s(at: datetime) -> float:
    """Seconds until the end of the day, so that today's usage is written as today's."""
    return 86_400.001 - (at - at.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()
