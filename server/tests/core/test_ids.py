import os
import re
import time

import pytest

from plainsql_server.core.ids import Kind, is_request_id, new_id

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", Kind)
def test_an_id_is_its_kinds_prefix_and_26_plain_characters(kind: Kind) -> None:
    assert re.fullmatch(rf"{kind.value}_[0-9a-f]{{32}}", new_id(kind))


def test_no_two_kinds_share_a_prefix() -> None:
    assert len({kind.value for kind in Kind}) == len(Kind)


def test_ids_of_later_milliseconds_sort_later() -> None:
    ids = []
    for _ in range(5):
        ids.append(new_id(Kind.REQUEST))
        started_ms = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == started_ms:
            pass
    assert ids == sorted(ids)


def test_ids_of_the_same_millisecond_differ() -> None:
    assert len({new_id(Kind.KEY) for _ in range(10_000)}) == 10_000


def test_a_fork_makes_other_ids_than_its_parent() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, new_id(Kind.REQUEST).encode())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    of_fork = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    ours = new_id(Kind.REQUEST)
    assert len(of_fork) == len(ours)
    # The last 80 bits are random, the others are the time.
    assert of_fork[-20:] != ours[-20:]


def test_an_id_tells_when_it_was_made() -> None:
    before_ms = time.time_ns() // 1_000_000
    body = new_id(Kind.DATABASE).removeprefix("db_")
    assert before_ms <= int(body, 16) >> 80 <= time.time_ns() // 1_000_000


def test_our_own_request_ids_are_well_formed() -> None:
    assert is_request_id(new_id(Kind.REQUEST).encode())


@pytest.mark.parametrize("text", ["req_abcdefgh", "req_" + "Z" * 64, "req_01234567"])
def test_a_plain_request_id_of_8_to_64_characters_is_kept(text: str) -> None:
    assert is_request_id(text.encode())


@pytest.mark.parametrize(
    "text",
    ["", "req_", "req_abcdefg", "req_" + "a" * 65, "REQ_abcdefgh", "abcdefgh", "txn_abcdefgh", " req_abcdefgh",
     "req_abcdefgh\n", "req_abcdefgh ", "req_abcd-fgh", "req_äöüäöüäö", "req_abcdefgh\r\nX-Evil: 1", "req_١٢٣٤٥٦٧٨"],
)  # fmt: skip
def test_any_other_request_id_is_not_kept(text: str) -> None:
    assert not is_request_id(text.encode())
