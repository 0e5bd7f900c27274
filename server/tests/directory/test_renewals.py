"""What `renew_process` and `leave_process` do with the shares in the directory, called as processes call them."""

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg.errors import InvalidParameterValue, SerializationFailure

from plainsql_server.core.share import WHOLE, Renewed
from plainsql_server.directory.sharing import processes
from server.tests.directory.list_model import ListModel, RefusedError
from server.tests.processes import wait_for

_LIMIT_S = 60.0
_EXPIRE = "UPDATE data_processes SET seen_at = now() - interval '16 seconds'"
_AGE = "UPDATE data_processes SET seen_at = seen_at - %s * interval '1 s'"
_SUM = "SELECT sum(share)::int FROM data_processes WHERE plane = 'data'"
_PROCESS = "proc_" + "0" * 32


async def test_the_directory_follows_the_rules_that_the_property_is_tested_with(
    data: psycopg.Connection, admin: psycopg.Connection
) -> None:
    """Random renewals by processes that don't know what they do, and what `ListModel` says to each."""
    draw, model, now_s = random.Random(24), ListModel(), 1_000.0
    names = [f"proc_{number:032x}" for number in range(5)]
    numbers = dict.fromkeys(names, 0)
    for _ in range(300):
        name, choice = draw.choice(names), draw.random()
        if choice < 0.1:
            data.execute("SELECT leave_process(%s, 'space')", (name,))
            model.leave(name, now_s)
            names[names.index(name)] = successor = f"proc_{draw.randrange(16**32):032x}"
            numbers[successor] = 0
            continue
        if choice < 0.3:
            seconds = draw.choice((5, 9, 16, 80))
            admin.execute(_AGE, (seconds,))
            now_s += seconds
            continue
        numbers[name] += draw.choice((0, 1, 1, 1))
        held, dead = draw.randrange(WHOLE), draw.sample(names, draw.choice((0, 0, 0, 1)))
        dead = [each for each in dead if each != name]
        try:
            expected = model.renew(name, numbers[name], held, now_s=now_s, dead=dead)
        except RefusedError:
            with pytest.raises(SerializationFailure):
                renew(data, name, numbers[name], held, dead=dead)
            continue
        assert renew(data, name, numbers[name], held, dead=dead) == expected


def renew(
    connection: psycopg.Connection, name: str, number: int, held: int, *, dead: Sequence[str] = (), space: str = "space"
) -> Renewed:
    ((share, target, number_of, is_first),) = connection.execute(
        "SELECT * FROM renew_process(%s, 'host', 1, %s, 'data', NULL, %s, %s, %s)",
        (name, space, number, held, list(dead)),
    ).fetchall()
    return Renewed(share, target, number_of, is_first)


@dataclass
class Renewals:
    """Renewals of one process in a thread of its own, as fast as they go."""

    dsn: str
    name: str
    failures: list[int] = field(default_factory=list)

    def run(self, times: int) -> None:
        draw = random.Random(self.name)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for number in range(1, times + 1):
                renew(connection, self.name, number, draw.randrange(WHOLE))
                ((share,),) = connection.execute(_SUM).fetchall()
                if share > WHOLE:
                    self.failures.append(share)


async def test_renewals_at_once_neither_exceed_the_whole_nor_block_each_other(dsn: str) -> None:
    all_of_them = [Renewals(dsn, f"proc_{number:032x}") for number in range(6)]
    await asyncio.gather(*(asyncio.to_thread(each.run, 60) for each in all_of_them))
    assert [each.failures for each in all_of_them] == [[]] * 6


def test_a_process_that_wants_more_waits_for_the_commit_of_another_one_that_does(
    dsn: str, admin: psycopg.Connection
) -> None:
    waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    names = [f"proc_{number:032x}" for number in range(2)]
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second, ThreadPoolExecutor(1) as thread:
        assert renew(first, names[0], 1, 0).share == WHOLE
        other = thread.submit(renew, second, names[1], 1, 0)
        wait_for(lambda: other.done() or admin.execute(waiting).rowcount, _LIMIT_S, lambda: "it does not wait")
        first.commit()
        assert other.result(_LIMIT_S).share == 0


def test_a_process_can_declare_dead_and_leave_only_in_its_own_pid_space(
    data: psycopg.Connection, admin: psycopg.Connection
) -> None:
    """The login of a data plane is on every node, and must not end the processes of the others by mistake."""
    other, share = "proc_" + "1" * 32, f"SELECT share FROM data_processes WHERE id = '{_PROCESS}'"
    renew(data, _PROCESS, 1, 0)
    renew(data, other, 1, 0, dead=[_PROCESS], space="elsewhere")
    data.execute("SELECT leave_process(%s, 'elsewhere')", (_PROCESS,))
    assert admin.execute(share).fetchall() == [(WHOLE,)]
    renew(data, other, 2, 0, dead=[_PROCESS], space="elsewhere")
    assert admin.execute(share).fetchall() == [(WHOLE,)]


def test_after_an_outage_the_first_process_leaves_the_others_their_shares_and_announces_itself(
    data: psycopg.Connection, admin: psycopg.Connection
) -> None:
    other = "proc_" + "1" * 32
    renew(data, _PROCESS, 1, 0)
    renew(data, other, 1, 0)
    for name in (_PROCESS, other):
        renew(data, name, 2, WHOLE // 2)
    admin.execute(_EXPIRE)
    admin.execute(f"LISTEN {processes.PROCESSES_CHANGED}")
    assert renew(data, _PROCESS, 3, 0).share == WHOLE // 2
    assert list(admin.notifies(timeout=_LIMIT_S, stop_after=1))
    assert renew(data, other, 3, 0).share == WHOLE // 2


def test_a_process_of_one_plane_can_not_be_renewed_as_one_of_the_other(data: psycopg.Connection) -> None:
    renew(data, _PROCESS, 1, 0)
    with pytest.raises(InvalidParameterValue):
        data.execute("SELECT renew_process(%s, 'host', 1, 'space', 'control', NULL, 2, 0, '{}')", (_PROCESS,))
