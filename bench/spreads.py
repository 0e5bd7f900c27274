"""Lookups spread over databases by a law, and what a load of them costs.

    load = Load(stack, url, tenants, connections)
    load.warm_up(Spread(1_000, ZIPF), seconds)
    figures = load.measure(Spread(1_000, ZIPF), seconds)

By Zipf's law, the k-th database is asked in proportion to 1/k, as customers are: few are busy, most are quiet. The
choices are drawn beforehand and are the same each time, so that wrk only has to walk through a table.
"""

import json
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.loads import Measured, check_one, run_wrk, running_wrk
from bench.processes import cpu_s, memory_mib
from bench.stack import Stack
from bench.tenants import FIRST_NUMBER, LAST_NUMBER, SQL, Tenant

ZIPF, UNIFORM = "Zipf", "uniform"
HUNDRED = 100
# So many requests that each of 1,000 databases is among them, and hardly more than a second has.
_CHOICES = 1 << 16
# Only a service that hangs takes so long to answer once for each database.
_TOUCH_LIMIT_S = 600
_MB_PER_MIB = 1.048576


@dataclass(frozen=True)
class Spread:
    """How requests are spread: over how many databases, and by which law."""

    databases: int
    law: str = ZIPF

    def __str__(self) -> str:
        return "1" if self.databases == 1 else f"{self.databases:,}, {self.law}"

    def choices(self, count: int = _CHOICES) -> list[int]:
        """The databases that so many requests ask, from 0 on. The same each time."""
        numbers = range(self.databases)
        weights = [1 / (number + 1) if self.law == ZIPF else 1.0 for number in numbers]
        return random.Random(1).choices(numbers, weights, k=count)


def spreads_over(busy: int) -> list[Spread]:
    """What one round measures if so many databases are busy."""
    hundred = [Spread(HUNDRED)] if busy > HUNDRED else []
    return [Spread(1), *hundred, Spread(busy), Spread(busy, UNIFORM)]


@dataclass(frozen=True)
class Figures:
    """What one load took: time, processor time per request, connections to the cell, and memory."""

    per_second: float
    median_ms: float
    p99_ms: float
    data_us: float
    alias_us: float
    engine_us: float
    all_us: float
    opened_per_s: float
    connections: float
    data_mb: float
    cell_mb: float


@dataclass(frozen=True)
class Load:
    """The clients, and what they ask: the first of these databases, at this URL."""

    stack: Stack
    url: str
    tenants: Sequence[Tenant]
    connections: int

    def check(self) -> None:
        """Refuses to measure failures, which wrk does not see: a failed statement is answered with 200, too."""
        body = json.dumps({"sql": SQL, "params": [FIRST_NUMBER]})
        check_one(f"{self.url}/v1/query", self.tenants[0].headers, body)

    def warm_up(self, spread: Spread, seconds: float) -> None:
        """Opens a connection to each database; then loads them, so that busy ones have more."""
        self.touch(spread.databases)
        self._run(spread.choices(), seconds)

    def touch(self, databases: int) -> None:
        """Asks each of so many databases once."""
        self._run(range(databases), _TOUCH_LIMIT_S, at_most=databases)

    def measure(self, spread: Spread, seconds: float) -> Figures:
        """One load. Memory and connections are looked at afterwards, since that takes processor time itself."""
        choices = spread.choices()
        opened, before_s = opened_connections(self.stack), self._cpu_s()
        measured = self._run(choices, seconds)
        took_us = {part: (now - before_s[part]) / measured.requests * 1e6 for part, now in self._cpu_s().items()}
        return Figures(
            per_second=measured.per_second,
            median_ms=measured.median_us / 1000,
            p99_ms=measured.p99_us / 1000,
            data_us=took_us["data"],
            alias_us=took_us.get("alias", 0.0),
            engine_us=took_us["postgres"],
            all_us=sum(took_us.values()),
            opened_per_s=(opened_connections(self.stack) - opened) / measured.requests * measured.per_second,
            connections=open_connections(self.stack),
            data_mb=memory_mib(self.stack.data_pid) * _MB_PER_MIB,
            cell_mb=memory_mib(self.stack.postgres_pid) * _MB_PER_MIB,
        )

    def _cpu_s(self) -> dict[str, float]:
        """By part of the stack. `dev` itself only watches the others, which are its children."""
        return {part: cpu_s(pid) for part, pid in self.stack.pids.items() if part != "dev"}

    def _run(self, choices: Sequence[int], seconds: float, *, at_most: int | None = None) -> Measured:
        with tempfile.TemporaryDirectory() as name:
            script = self._script(Path(name), choices)
            return run_wrk(self.url, script, self.connections, seconds, at_most=at_most)

    @contextmanager
    def running(self, spread: Spread) -> Iterator[list[float]]:
        """The load for the length of the block. Afterwards, the list has its requests per second."""
        with tempfile.TemporaryDirectory() as name:
            script = self._script(Path(name), spread.choices())
            with running_wrk(self.url, script, self.connections) as rates:
                yield rates

    def _script(self, folder: Path, choices: Sequence[int]) -> str:
        _write_lines(folder / "tenants", (f"{each.api_key} {each.database}" for each in self._asked(choices)))
        _write_lines(folder / "choices", (str(number + 1) for number in choices))
        return _SCRIPT % {"folder": folder, "host": urlsplit(self.url).netloc, **_body_parts()}

    def _asked(self, choices: Sequence[int]) -> Sequence[Tenant]:
        return self.tenants[: max(choices) + 1]


# A request is three strings, put together once for each database, with a number of four digits between the last two.
_SCRIPT = """
local heads, choices, at = {}, {}, 0
for line in io.lines("%(folder)s/tenants") do
  local key, database = line:match("(%%S+) (%%S+)")
  heads[#heads + 1] = "POST /v1/query HTTP/1.1\\r\\nHost: %(host)s\\r\\nAuthorization: Bearer " .. key
    .. "\\r\\nX-Database: " .. database .. "\\r\\nContent-Type: application/json"
    .. "\\r\\nContent-Length: %(length)d\\r\\n\\r\\n" .. [==[%(before)s]==]
end
for line in io.lines("%(folder)s/choices") do choices[#choices + 1] = tonumber(line) end
request = function()
  at = at %% #choices + 1
  return heads[choices[at]] .. math.random(%(first)d, %(last)d) .. [==[%(after)s]==]
end
"""


def _body_parts() -> dict[str, object]:
    """What the script needs to know of the body."""
    before, after = json.dumps({"sql": SQL, "params": ["N"]}).split('"N"')
    length = len(before) + len(str(FIRST_NUMBER)) + len(after)
    return {"before": before, "after": after, "length": length, "first": FIRST_NUMBER, "last": LAST_NUMBER}


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))


def open_connections(stack: Stack) -> int:
    """The service's connections to customers' databases."""
    return int(_of_cell(stack, "select count(*) from pg_stat_activity where application_name = 'plainsql'"))


def opened_connections(stack: Stack) -> int:
    """Connections to customers' databases since the cell was made."""
    return int(_of_cell(stack, "select coalesce(sum(sessions), 0) from pg_stat_database where datname ~ '^d_'"))


def _of_cell(stack: Stack, sql: str) -> str:
    # Not from a customer's database, where it would count itself.
    return stack.psql(sql, "postgres")
