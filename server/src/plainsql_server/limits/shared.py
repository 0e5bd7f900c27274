"""The shared ledger in Redis: permits are debited there when a node takes them.

A Lua script decides atomically, by the clock of Redis, so neither the order nor the clocks of the nodes matter.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from plainsql_server.core.tasks import end
from plainsql_server.limits.ledger import Ask, Granted, SharedLedgerLost
from plainsql_server.limits.window import Window

Result = TypeVar("Result")

_PREFIX = "plainsql:permits:"
# Exists while nodes must use their shares, because this Redis doesn't know what they granted before.
_WARMING = "plainsql:permits-warming"
# How long a request may wait for Redis before its process switches to its share. Redis answers in a fraction of a
# millisecond, so only a stall of its machine takes this long, and a short stall is no reason to switch.
_TIMEOUT_S = 1.0
# The wait is counted in steps, and a step counts no more than this, however long it took: if this process stalled, the
# answer has already arrived and only needs to be read.
_WAIT_STEP_S = 0.05

# KEYS: the organization's ledger, a hash of slot to count; the warming flag.
# ARGV: limit, slot_ms, counted_slots, needed, wanted in addition, given earlier without Redis, (slot, returned)…
# Returns: granted, left, slot of the grant, ms until the oldest permit stops counting (-1: none does), ms of warming.
_SCRIPT = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, slot_ms, counted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local needed, wanted, given = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local slot = math.floor(now_ms / slot_ms)
for i = 7, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    redis.call('HINCRBY', KEYS[1], ARGV[i], -ARGV[i + 1])
  end
end
local used, oldest = 0, nil
local ledger = redis.call('HGETALL', KEYS[1])
for i = 1, #ledger, 2 do
  local at, count = tonumber(ledger[i]), tonumber(ledger[i + 1])
  -- A slot from the far future was written before the clock was set back.
  if at <= slot - counted or at > slot + counted or count <= 0 then
    redis.call('HDEL', KEYS[1], ledger[i])
  else
    used = used + count
    if not oldest or at < oldest then oldest = at end
  end
end
local left = limit - used - given
local warming_ms = redis.call('PTTL', KEYS[2])
local granted = 0
if warming_ms < 0 and left > 0 then
  granted = math.min(left, needed + math.min(wanted, math.floor(math.max(0, left - needed) / 4)))
end
if granted + given > 0 then
  redis.call('HINCRBY', KEYS[1], slot, granted + given)
  redis.call('PEXPIRE', KEYS[1], (counted + 1) * slot_ms)
  oldest = oldest or slot
end
local back_ms = -1
if oldest then back_ms = (oldest + counted) * slot_ms - now_ms end
return {granted, math.max(0, left - granted), slot, back_ms, warming_ms}
"""


class SharedLedger:
    """A connection to Redis. `run_id` identifies the Redis process; it changes when Redis restarts."""

    def __init__(self, connection: AbstractConnection, script: str, run_id: str, window: Window) -> None:
        self._connection = connection
        self._script = script
        self._window = window
        self.run_id = run_id

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, window: Window) -> "AsyncIterator[SharedLedger]":
        """A connection. Raises SharedLedgerLost if it can't be opened, or if it fails inside the block."""
        redis = Redis.from_url(
            url, socket_timeout=None, socket_connect_timeout=None, retry=Retry(NoBackoff(), 0),
            single_connection_client=True, protocol=2,
        )  # fmt: skip
        try:
            script = await _patiently(redis.script_load(_SCRIPT))
            run_id: str = (await _patiently(redis.info("server")))["run_id"]
            assert redis.connection is not None
            yield cls(redis.connection, script, run_id, window)
        except (RedisError, OSError, TimeoutError) as error:
            raise SharedLedgerLost(f"{type(error).__name__}: {error}") from error
        finally:
            await redis.aclose()

    async def begin_warming(self) -> None:
        """Makes every node use its share until this Redis has seen a whole window."""
        await _patiently(self._mark_warming())

    async def _mark_warming(self) -> None:
        await self._connection.send_command("SET", _WARMING, 1, "PX", self._window.counted_slots * self._window.slot_ms)
        await self._connection.read_response()

    async def settle(self, asks: Sequence[Ask]) -> list[Granted]:
        """The answers, in one round trip. Without requests, it only checks that Redis responds."""
        return await _patiently(self._settle(asks))

    async def _settle(self, asks: Sequence[Ask]) -> list[Granted]:
        if not asks:
            await self._connection.send_command("PING")
            await self._connection.read_response()
            return []
        # Don't use the client's pipeline: it would open its own connection, perhaps to a restarted Redis.
        await self._connection.send_packed_command(self._connection.pack_commands(map(self._command, asks)))
        return [Granted(*await self._connection.read_response()) for _ in asks]

    def _command(self, ask: Ask) -> tuple[str | int, ...]:
        window = self._window
        return (
            "EVALSHA", self._script, 2, _PREFIX + ask.organization_id, _WARMING,
            ask.limit, window.slot_ms, window.counted_slots, ask.needed, ask.wanted, ask.given,
            *(number for pair in ask.returned for number in pair),
        )  # fmt: skip


async def _patiently(work: Awaitable[Result]) -> Result:
    """The result of the work. Raises TimeoutError if Redis, rather than this process, takes too long."""
    task = asyncio.ensure_future(work)
    try:
        for _ in range(round(_TIMEOUT_S / _WAIT_STEP_S)):
            done, _ = await asyncio.wait([task], timeout=_WAIT_STEP_S)
            if done:
                return task.result()
        raise TimeoutError(f"no answer for {_TIMEOUT_S} s")
    finally:
        await end(task)
