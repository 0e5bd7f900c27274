"""Ten anomalies as two or three transactions and a schedule that leads to them, if nobody stands in the way.

Owns the scripts, and what tells that the anomaly happened. The table has two rows: 1 with 10, and 2 with 20. After
Martin Kleppmann's Hermitage, written for transactions that are sent whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from server.tests.consistency.stage import PAUSE, Played, Rows
from server.tests.consistency.transports import NONE

SETUP = (
    "drop table if exists test",
    "create table test (id int primary key, value int)",
    "insert into test values (1, 10), (2, 20)",
)
State = Mapping[int, int]
Shown = Callable[[Sequence[Played], State], bool]

_READ_ONE = "select value from test where id = 1"
_READ_TWO = "select value from test where id = 2"
_READ_ALL = "select value from test order by id"
_READ_THIRDS = "select id from test where value % 3 = 0"


@dataclass(frozen=True)
class Case:
    """An anomaly: who does what, in which order, the isolation that allows it, and how it shows."""

    scripts: tuple[tuple[str, ...], ...]
    schedule: str
    allowed_by: str
    shown: Shown


def _set(row: int, value: int) -> str:
    return f"update test set value = {value} where id = {row}"


def _values(rows: Rows) -> list[int]:
    return [row[0] for row in rows]


def _read(played: Played, step: int) -> list[int]:
    """What a step read; of a transaction that did not commit nobody may say that it read anything."""
    return _values(played.steps[step]) if played.committed else []


def _all_committed(played: Sequence[Played]) -> bool:
    return all(each.committed for each in played)


def _mixed_writes(_: Sequence[Played], state: State) -> bool:
    return (state[1], state[2]) not in [(11, 21), (12, 22), (10, 20)]


def _reads(value: int) -> Shown:
    return lambda played, _: any(value in _values(rows) for rows in played[1].steps)


def _vanished(played: Sequence[Played], _: State) -> bool:
    # The second transaction is seen in the first row, and then it is not in the second.
    return _read(played[2], 0) == [12] and _read(played[2], 1) != [18]


def _both_saw(first: list[int], second: list[int]) -> Shown:
    return lambda played, _: _all_committed(played) and _read(played[0], 0) == first and _read(played[1], 0) == second


def _both_changed(played: Sequence[Played], state: State) -> bool:
    return _all_committed(played) and sum(state.values()) < 0


CASES: dict[str, Case] = {
    "G0, dirty write": Case(
        ((_set(1, 11), _set(2, 21)), (_set(1, 12), _set(2, 22))), "1221", NONE, _mixed_writes
    ),
    "G1a, aborted read": Case(
        ((_set(1, 101), "select 1/0"), (_READ_ALL, _READ_ALL)), "1212", NONE, _reads(101)
    ),
    "G1b, intermediate read": Case(
        ((_set(1, 101), _set(1, 11)), (_READ_ALL, _READ_ALL)), "1212", NONE, _reads(101)
    ),
    "G1c, circular information flow": Case(
        ((_set(1, 11), _READ_TWO), (_set(2, 22), _READ_ONE)), "1212", NONE,
        lambda played, _: _read(played[0], 1) == [22] and _read(played[1], 1) == [11],
    ),
    "OTV, observed transaction vanishes": Case(
        ((_set(1, 11), _set(2, 19)), (_set(1, 12), _set(2, 18)), (_READ_ONE, _READ_TWO)), "112332", NONE, _vanished
    ),
    "PMP, predicate-many-preceders": Case(
        ((_READ_THIRDS, _READ_THIRDS), ("insert into test values (3, 30)",)), "121", "read committed",
        lambda played, _: _all_committed(played) and _read(played[0], 0) == [] and _read(played[0], 1) == [3],
    ),
    "P4, lost update": Case(
        ((_READ_ONE, _set(1, 11)), (_READ_ONE, _set(1, 12))), "1212", "read committed", _both_saw([10], [10])
    ),
    "G-single, read skew": Case(
        ((_READ_ONE, _READ_TWO), (_READ_ALL, _set(1, 12), _set(2, 18))), "12221", "read committed",
        lambda played, _: _read(played[0], 0) == [10] and _read(played[0], 1) == [18],
    ),
    "G2-item, write skew": Case(
        ((_READ_ALL, _set(1, 11)), (_READ_ALL, _set(2, 21))), "1212", "repeatable read",
        _both_saw([10, 20], [10, 20]),
    ),
    "G2, anti-dependency cycle": Case(
        ((_READ_THIRDS, "insert into test values (3, 30)"), (_READ_THIRDS, "insert into test values (4, 42)")), "1212",
        "repeatable read", _both_saw([], []),
    ),
}  # fmt: skip

# The same with one statement each: what it reads and what it writes lie on both sides of the gate.
SINGLE_STATEMENTS: dict[str, Case] = {
    "P4 in single statements": Case(
        tuple(
            (f"update test set value = (select value from test where id = 1) + {n} from {PAUSE} where test.id = 1",)
            for n in (1, 2)
        ),
        "1212", "read committed",
        lambda played, state: _all_committed(played) and state[1] != 13,
    ),
    "G2-item in single statements": Case(
        tuple(
            (
                f"update test set value = value - 25 from {PAUSE}"
                f" where test.id = {row} and (select sum(value) from test) >= 25",
            )
            for row in (1, 2)
        ),
        "1212", "repeatable read", _both_changed,
    ),
    "G2 in single statements": Case(
        tuple(
            (f"insert into test select {row}, 30 from {PAUSE} where not exists (select from test where value = 30)",)
            for row in (3, 4)
        ),
        "1212", "repeatable read",
        lambda _, state: list(state.values()).count(30) > 1,
    ),
}  # fmt: skip
