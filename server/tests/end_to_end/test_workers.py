"""Processes that serve together: one that dies is replaced soon, whatever its parent was about."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tests.consistency.faults import wait_until, workers_of
from server.tests.load import NEW_PROCESS, Node, running_node
from server.tests.service import Service

pytestmark = pytest.mark.chaos

# Far less than the 30 s for which a worker may be silent, and time enough to start one on a busy machine.
REPLACED_WITHIN_S = 15.0
# The numbers of poll and ppoll on x86-64, and of ppoll on arm64.
_POLLS = ("7", "271", "73")


@pytest.fixture
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn, NEW_PROCESS, workers=2) as running:
        yield running


def waits_for_an_answer(pid: int) -> bool:
    """Whether a parent is in poll(2), for what a worker says, and not in its pause between two looks."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in _POLLS


async def test_a_worker_that_dies_while_its_parent_awaits_its_answer_is_replaced_at_once(node: Node) -> None:
    silent, other = workers_of(node)
    os.kill(silent, signal.SIGSTOP)
    await wait_until(lambda: waits_for_an_answer(node.process.pid))
    os.kill(silent, signal.SIGKILL)
    died_s = time.monotonic()
    await wait_until(lambda: len(set(workers_of(node)) - {silent}) == 2)
    assert time.monotonic() - died_s < REPLACED_WITHIN_S
    assert other in workers_of(node)
