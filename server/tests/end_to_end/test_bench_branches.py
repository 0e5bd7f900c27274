"""`python -m bench branches`, in short, and its bar: requests to a parent of 10 MB wait for a second at most."""

from collections.abc import Iterator

import pytest

from bench import branches
from bench.bars import BRANCH_BARS, FAILED, STOP_S
from bench.stack import Stack, described_stack
from server.tests.load import any_round
from server.tests.service import running_service

_SIZE_MB = 10


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_service(workers=2) as service:
        yield described_stack(service.dev, range(0))


def test_every_column_of_the_table_is_filled(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    branches.show(stack, branches.Plan(sizes_mb=[1], rounds=2))
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["rows", "parent"]
    assert line.startswith("    1 MB")
    assert line.endswith("  no bars")
    # A copy of the same size is the next parent's.
    parent_mb, (made,) = branches.measure(stack, size_mb=2, rounds=1)
    assert made.disk_mb == pytest.approx(parent_mb, abs=1)
    # It goes through the WAL.
    assert made.wal_mb > parent_mb / 2
    assert min(made.made_s, made.reader_s, made.writer_s, made.alone_s) > 0
    assert made.failed == 0


@pytest.mark.timing
async def test_requests_to_a_parent_of_10_mb_wait_for_a_second_at_most(stack: Stack) -> None:
    bars = BRANCH_BARS[_SIZE_MB]
    assert bars[STOP_S] == 1
    assert bars[FAILED] == 0
    sizes = iter(range(_SIZE_MB, 2 * _SIZE_MB))

    async def is_short() -> bool:
        # Each parent has a name of its own, after its size.
        _, (made,) = branches.measure(stack, next(sizes), rounds=1)
        print(
            f"a branch of {_SIZE_MB} MB: made in {made.made_s:.2f} s, stop {made.stop_s:.2f} s, {made.disk_mb:.0f} MB"
        )
        assert made.failed == 0
        return made.stop_s <= bars[STOP_S]

    assert await any_round(is_short)
