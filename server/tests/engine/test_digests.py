"""Digests of results, compared with a simple model: equal exactly if columns, rows and command are equal."""

import asyncio
import re
from collections import Counter
from collections.abc import Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.pq.abc import PGresult

from plainsql_server.core.result import Digests
from plainsql_server.engine.encoding import digests as hashing
from plainsql_server.engine.encoding import transaction_times
from plainsql_server.engine.encoding.digests import RowHasher, digest_key
from plainsql_server.engine.encoding.transaction_times import MAX_DATES, TransactionTimes

pytestmark = pytest.mark.unit

NOW, EARLIER = "2026-11-17T09:46:06.123400Z", "2026-11-17T09:46:05.000000Z"
KEY = digest_key("a secret")
Row = tuple[bytes | None, ...]
ENOUGH = 1 << 40


class Chunk:
    """Rows as libpq holds them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.ntuples = len(rows)

    def get_value(self, row: int, column: int) -> bytes | None:
        return self._rows[row][column]


def pauses(work: Coroutine[Any, Any, bool]) -> int:
    """Runs it to its end. Returns how often others could have run."""
    count = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "share_loop", partial(asyncio.sleep, 0))
        try:
            while True:
                work.send(None)
                count += 1
        except StopIteration:
            return count


def times_of(*times: str) -> TransactionTimes:
    return TransactionTimes(times[0].encode(), [time.encode() for time in times[1:]]) if times else TransactionTimes()


def digests(
    rows: Sequence[Row], columns: int, *, chunk: int = 32, times: Sequence[str] = (NOW,), key: bytes = KEY
) -> Digests:
    hasher = RowHasher([(f"c{at}", "text") for at in range(columns)], times_of(*times), key)
    for first in range(0, len(rows), chunk):
        pauses(hasher.update(cast("PGresult", Chunk(rows[first : first + chunk])), ENOUGH, is_long=False))
    return hasher.finish("SELECT", 0)


# Few and confusable values, so that equal and nearly equal results are frequent.
WRITTEN_NOW = b"2026-11-17 09:46:06.1234"
VALUES = st.sampled_from(
    [
        None, b"", b"0", b"1", b"0,1", b",", b"now", b"a", b"ab", b"b", b"\x01", b"\xc3\xbf", b"+00", b"now+00",
        WRITTEN_NOW, WRITTEN_NOW + b"+00", b"now" + WRITTEN_NOW, WRITTEN_NOW + b"now",
    ]
)  # fmt: skip


@st.composite
def results(draw: st.DrawFn) -> tuple[int, list[Row]]:
    columns = draw(st.integers(0, 3))
    rows = draw(st.lists(st.tuples(*[VALUES] * columns), max_size=5))
    return columns, rows


@given(results(), results())
@example((2, [(None, b"")]), (2, [(b"", None)]))
@example((2, [(None, b"")]), (2, [(b"", b"0")]))
@example((1, [(None,), (b"",)]), (1, [(b"",), (None,)]))
@example((0, [(), ()]), (0, [()]))
@example((2, [(WRITTEN_NOW + b"+00", b"0")]), (2, [(None, b"now+00")]))
@example((2, [(WRITTEN_NOW, b"now")]), (2, [(b"", b"now" + WRITTEN_NOW)]))
def test_digests_are_equal_exactly_if_the_results_are(one: tuple[int, list[Row]], other: tuple[int, list[Row]]) -> None:
    first, second = digests(one[1], one[0]), digests(other[1], other[0])
    assert (first.ordered == second.ordered) == (one == other)
    same_rows = one[0] == other[0] and Counter(one[1]) == Counter(other[1])
    assert (first.multiset == second.multiset) == same_rows


@given(results(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_chunks_do_not_matter_and_order_only_for_the_ordered(
    result: tuple[int, list[Row]], chunk: int, randomly: Random
) -> None:
    columns, rows = result
    whole = digests(rows, columns)
    assert digests(rows, columns, chunk=chunk) == whole
    shuffled = randomly.sample(rows, len(rows))
    assert digests(shuffled, columns).multiset == whole.multiset
    assert (digests(shuffled, columns).ordered == whole.ordered) == (shuffled == rows)


def test_names_types_command_and_count_matter() -> None:
    times = TransactionTimes()
    found = {
        RowHasher([(name, type_)], times, KEY).finish(command, affected).ordered
        for name in ("a", "b") for type_ in ("int4", "int8") for command in ("SELECT", "UPDATE") for affected in (0, 1)
    }  # fmt: skip
    assert len(found) == 16


WRITTEN = [
    "2026-11-17 09:46:{}+00", "2026-11-17 09:46:{}", '"2026-11-17T09:46:{}+00:00"', '{{"2026-11-17 09:46:{}+00",NULL}}',
    '(1,"2026-11-17 09:46:{}+00")', "at 2026-11-17T09:46:{}Z.",
]  # fmt: skip


@pytest.mark.parametrize("written", WRITTEN)
def test_the_times_of_rehearsals_are_one_token(written: str) -> None:
    def digest(seconds: str, *times: str) -> Digests:
        return digests([(written.format(seconds).encode(),)], 1, times=times)

    assert digest("06.1234", NOW) == digest("05", EARLIER) == digest("06.1234", EARLIER, NOW)
    for other in ("06.12345", "06.123", "06", "06.1235"):
        assert digest(other, NOW, EARLIER) != digest("06.1234", NOW, EARLIER)
        assert digest(other, NOW, EARLIER) == digest(other, EARLIER)


class CountedRow(bytes):
    """A row that counts how often it is searched for the start of a time."""

    searches = 0

    def __contains__(self, key: object) -> bool:
        CountedRow.searches += 1
        return super().__contains__(cast("bytes", key))


def test_many_times_cost_no_more_than_few() -> None:
    many = [f"2026-11-17T{hour:02}:{minute:02}:06.123400Z" for hour in range(16) for minute in range(60)]
    written = b"2026-11-17 09:46:06.1234+00"
    assert digests([(written,)], 1, times=many) == digests([(written,)], 1)
    assert digests([(b"2026-11-17 09:46:07+00",)], 1, times=many) != digests([(written,)], 1)
    CountedRow.searches = 0
    times = times_of(*many)
    row = CountedRow(b"a row without times 2026-11-16 09:46:06")
    assert times.hide(row) == row
    assert CountedRow.searches <= 16
    assert times.cost_bytes == 0


def test_of_the_earlier_times_those_of_the_latest_dates_count() -> None:
    days = [f"2026-10-{day:02}T09:46:06.123400Z" for day in range(1, 31)]
    token = digests([(WRITTEN_NOW,)], 1)
    found = [digests([(day.encode(),)], 1, times=(NOW, *days)) == digests([(NOW.encode(),)], 1) for day in days]
    assert found == [False] * (30 - MAX_DATES) + [True] * MAX_DATES
    assert digests([(WRITTEN_NOW,)], 1, times=(NOW, *days, "9999-01-01T00:00:00.000000Z")) == token


def test_nobody_gets_the_same_digests_without_the_key() -> None:
    rows: list[Row] = [(b"a",), (b"b",)]
    found = [digests(rows, 1, key=key) for key in (KEY, digest_key("another secret"), digest_key(""), b"")]
    assert len({digest for each in found for digest in each}) == 8
    # All processes of all versions must agree, or every transaction would conflict during an upgrade.
    assert found[0] == digests(rows, 1, key=digest_key("a secret"))
    assert KEY.hex() == "fc13e6c3a11a8fed655fb51add42eca3cdcd0838429ee66fc895fb3b7476c17b"


def test_each_rows_hash_has_the_key() -> None:
    """If only the sum were hashed with the key, rows whose hashes have the same sum could be found without it."""
    sums = []
    for key in (KEY, digest_key("another secret")):
        hasher = RowHasher([("a", "text")], TransactionTimes(), key)
        pauses(hasher.update(cast("PGresult", Chunk([(b"a",)])), ENOUGH, is_long=False))
        sums.append(hasher._sum)
    assert sums[0] != sums[1]


@given(
    st.lists(
        st.sampled_from([b"2026-11-17 09:46:06", b".1234", b".2026", b"-11-17", b"2026-11-16 09:46", b"7", b"x", b" "])
    ),
    st.integers(1, 60),
)
@example([b"2026-11-16 09:46", b":06", b".2026", b"-11-17 09:46:06", b".1234"], 19)
def test_a_long_row_is_searched_in_slices_as_if_it_was_one(parts: list[bytes], part: int) -> None:
    row = b"".join(parts)
    pattern = re.compile(transaction_times._TIME.pattern)
    for times in (times_of(NOW), times_of(NOW, *[f"2026-11-17T01:{minute:02}:00.000000Z" for minute in range(9)])):
        whole = pattern.sub(times._token, row)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transaction_times, "SLICE_BYTES", part)
            assert b"".join(times.hide_in_slices(row)) == times.hide(row) == whole


LONG = {
    "digits": b"1" * 1_000_000, "letters": b"x" * 1_000_000, "times": WRITTEN_NOW * 40_000,
    "nearly times": WRITTEN_NOW[:-5] * 40_000,
}  # fmt: skip


@pytest.mark.parametrize("row", LONG.values(), ids=LONG)
def test_others_run_while_a_long_row_is_hashed(row: bytes) -> None:
    hasher = RowHasher([("a", "text")], times_of(NOW), KEY)
    count = pauses(hasher.update(cast("PGresult", Chunk([(row,)])), ENOUGH, is_long=False))
    assert count >= hasher.size_bytes // 50_000 >= 20


def test_others_run_while_many_rows_are_hashed_and_searching_counts() -> None:
    found = []
    for value in (WRITTEN_NOW, b"x" * len(WRITTEN_NOW)):
        hasher = RowHasher([("a", "text")], times_of(NOW), KEY)
        count = pauses(hasher.update(cast("PGresult", Chunk([(value,)] * 20_000)), ENOUGH, is_long=False))
        found.append((count, hasher.size_bytes))
    assert found[0][0] > found[1][0] >= 1_000
    assert found[0][1] - found[1][1] == 20_000 * (256 + 4 * len(WRITTEN_NOW))


def test_a_row_that_is_too_large_is_not_hashed_to_its_end() -> None:
    hasher = RowHasher([("a", "text")], times_of(NOW), KEY)
    whole = 40_000 * (256 + 5 * len(WRITTEN_NOW))
    pauses(hasher.update(cast("PGresult", Chunk([(WRITTEN_NOW * 40_000,)])), 1_000_000, is_long=False))
    assert 1_000_000 < hasher.size_bytes < whole / 5
