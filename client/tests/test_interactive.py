"""Interactive transactions without a service: what a unit of work remembers and sends."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from client.tests.toy_service import Program, Toy, finish, service_error
from plainsql.errors import ResultError, StatementError, TransactionError
from plainsql.interactive import unit as units
from plainsql.interactive.conflicts import Attempts, is_conflict
from plainsql.interactive.session import InteractiveSession
from plainsql.interactive.texts import is_read
from plainsql.transactions import InteractiveBuilder
from plainsql.transport.protocol import Options

pytestmark = pytest.mark.unit


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def program(toy: Toy) -> Program:
    return Program(toy)


def kinds(toy: Toy) -> list[tuple[str, int]]:
    return [(kind, len(statements)) for kind, statements in toy.requests]


def test_a_read_before_the_first_write_goes_alone_and_is_verified_at_the_commit(toy: Toy, program: Program) -> None:
    toy.rows = {"a": 1}
    assert (program.run("select v from a"), program.run("select v from b")) == ([1], [])
    program.run("insert c")
    program.commit()
    assert kinds(toy) == [("read", 1), ("read", 1), ("rehearsal", 3), ("commit", 3)]
    assert ["expect" in each for each in toy.requests[-1][1]] == [True, True, True]


def test_only_the_new_statement_returns_its_rows(toy: Toy, program: Program) -> None:
    program.run("select v from a")
    program.run("insert b")
    program.run("select v from b")
    assert [each.get("rows", True) for each in toy.requests[-1][1]] == [False, False, True]
    assert [each.get("digest", False) for each in toy.requests[-1][1]] == [False, False, True]
    program.commit()
    assert [each["rows"] for each in toy.requests[-1][1]] == [False] * 3


def test_a_unit_that_only_reads_commits_without_a_request(toy: Toy, program: Program) -> None:
    program.run("select v from a")
    toy.rows["a"] = 2
    program.commit()
    assert (kinds(toy), program.run("select v from a")) == ([("read", 1)], [2])


def test_what_an_insert_generated_stays_until_the_commit(toy: Toy, program: Program) -> None:
    first = program.run("insert a")
    toy.drawn = 100
    assert (program.run("select v from a"), program.run("insert b")) == (first, [101])
    program.commit()
    assert toy.rows == {"a": first[0], "b": 101}


def test_a_changed_read_fails_the_next_rehearsal_and_the_commit(toy: Toy, program: Program) -> None:
    for end in (lambda: program.run("update b = 6"), program.commit):
        toy.rows = {"a": 1, "b": 1}
        program.run("select v from a")
        program.run("update b = 5")
        toy.rows["a"] = 2
        with pytest.raises(StatementError) as caught:
            end()
        assert is_conflict(caught.value)
        assert toy.rows == {"a": 2, "b": 1}
        program.session.unit.clear()


def test_equal_reads_between_two_writes_are_sent_once(toy: Toy, program: Program) -> None:
    for _ in range(3):
        program.run("select v from a")
    program.run("insert b")
    for _ in range(3):
        program.run("select v from a")
    program.commit()
    assert [each["sql"] for each in toy.requests[-1][1]] == ["select v from a", "restore", "select v from a"]


def test_a_function_is_called_as_often_as_the_program_called_it() -> None:
    unit = units.UnitOfWork()
    reads = ["select n from t"] * 2 + ["select credit(1)"] * 2 + ["select n from t"]
    for sql in ["insert into t values (1)", *reads]:
        unit.append(unit.entry(sql, []))
    assert [each["sql"] for each in unit.for_commit().statements] == [
        "insert into t values (1)", "select n from t", "select credit(1)", "select credit(1)", "select n from t",
    ]  # fmt: skip


def test_after_an_error_everything_but_a_rollback_raises(toy: Toy, program: Program) -> None:
    toy.rows["a"] = 1
    program.run("update a = 2")
    with pytest.raises(StatementError):
        program.run("insert a")
    for work in (
        lambda: program.run("select v from a"),
        program.commit,
        lambda: program.run("savepoint x"),
        program.commit,
    ):
        with pytest.raises(TransactionError) as caught:
            work()
        assert (caught.value.sqlstate, caught.value.outcome) == ("25P02", "rolled_back")
    program.session.unit.clear()
    program.commit()
    assert toy.rows == {"a": 1}


def test_an_error_in_a_read_fails_the_unit_as_well(toy: Toy, program: Program) -> None:
    toy.rows = {str(number): number for number in range(5)}
    toy.row_limit = 4
    with pytest.raises(ResultError):
        program.run("select v from all")
    with pytest.raises(TransactionError):
        program.run("insert x")


def test_going_back_to_a_savepoint_forgets_what_ran_since_even_its_failure(toy: Toy, program: Program) -> None:
    program.run("insert a")
    program.run("SAVEPOINT one")
    program.run("insert b")
    program.run('savepoint "Two"')
    with pytest.raises(StatementError):
        program.run("insert a")
    with pytest.raises(TransactionError):
        program.run("release savepoint one")
    program.run("rollback to savepoint one")
    program.run("insert c")
    with pytest.raises(TransactionError) as caught:
        program.run('rollback to "Two"')
    assert caught.value.sqlstate == "3B001"
    program.run("rollback to one")
    program.run("insert d")
    program.run("release one")
    program.commit()
    assert sorted(toy.rows) == ["a", "d"]


def test_of_two_savepoints_of_one_name_the_later_counts(toy: Toy, program: Program) -> None:
    program.run("savepoint s")
    program.run("insert a")
    program.run("savepoint s")
    program.run("insert b")
    program.run("rollback to s")
    program.run("release s")
    program.run("rollback to s")
    program.run("insert c")
    program.commit()
    assert sorted(toy.rows) == ["c"]


def test_a_select_that_writes_is_rehearsed(toy: Toy, program: Program) -> None:
    toy.rows["a"] = 6
    assert program.run("select bump(a)") == [0]
    assert toy.rows["a"] == 6
    program.commit()
    assert [kind for kind, _ in kinds(toy)] == ["read", "rehearsal", "commit"]
    assert toy.rows["a"] == 7


def test_a_second_operation_at_once_is_refused_and_changes_nothing(toy: Toy, program: Program) -> None:
    toy.waits = True
    first = program.session.execute("insert a", [])
    next(first)
    for second in (
        lambda: finish(program.session.query("insert b", [])),
        lambda: finish(program.session.execute_many([("insert b", [])] * 2)),
        lambda: finish(program.session.rehearse()),
        program.commit,
        program.session.rollback,
    ):
        with pytest.raises(TransactionError, match="in progress") as caught:
            second()
        assert (caught.value.sqlstate, caught.value.outcome) == ("55006", "not_executed")
    toy.waits = False
    with pytest.raises(StopIteration):
        next(first)
    assert program.run("select v from a") == [1]
    program.commit()
    assert toy.rows == {"a": 1}


def test_an_operation_that_is_given_up_does_not_block_others(toy: Toy, program: Program) -> None:
    toy.waits = True
    first = program.session.execute("insert a", [])
    next(first)
    first.close()
    with pytest.raises(TransactionError, match="An earlier statement"):
        program.run("insert b")
    program.session.rollback()
    toy.waits = False
    assert program.run("insert c") == [1]


def test_the_number_of_retries_goes_with_each_rehearsal_and_the_commit(toy: Toy) -> None:
    program = Program(toy, max_retries=3)
    program.run("select v from a")
    program.run("insert a")
    program.commit()
    assert toy.retries == [3, 3, 3]


def test_a_select_that_locks_is_a_write_from_the_start() -> None:
    assert is_read("select * from t where note = 'for update'")
    assert not is_read("select * from t for  update of t skip locked")
    assert not is_read("select 1 from t FOR NO KEY UPDATE")
    assert not is_read("with x as (delete from t returning 1) select * from x")
    assert not is_read("insert into t values (1)")


def test_writes_wait_where_rehearsals_are_lazy(toy: Toy) -> None:
    program = Program(toy, is_lazy=True)
    toy.rows["k"] = 1
    entry = finish(program.session.execute("update k = 2", [], 1))
    program.run("insert a")
    assert (toy.requests, entry.affected_rows) == ([], 1)
    assert program.run("select v from a") == [1]
    assert program.run("insert b returning v") == [2]
    toy.drawn = 50
    program.commit()
    assert kinds(toy) == [("rehearsal", 3), ("rehearsal", 4), ("commit", 4)]
    assert toy.rows == {"k": 2, "a": 1, "b": 2}


def test_a_presumed_row_that_is_missing_fails(toy: Toy) -> None:
    program = Program(toy, is_lazy=True)
    finish(program.session.execute("update k = 2", [], 1))
    with pytest.raises(StatementError):
        program.commit()


def test_what_waits_in_a_savepoint_fails_at_its_release(toy: Toy) -> None:
    program = Program(toy, is_lazy=True)
    toy.rows["a"] = 1
    program.run("savepoint s")
    program.run("insert a")
    with pytest.raises(StatementError):
        program.run("release s")
    program.run("rollback to s")
    program.run("insert b")
    program.run("release s")
    program.commit()
    assert sorted(toy.rows) == ["a", "b"]


def test_statements_that_change_the_schema_wait_for_the_next_statement(toy: Toy, program: Program) -> None:
    program.run("create table t ()")
    program.run("create table u ()")
    assert toy.requests == []
    program.run("insert a")
    program.commit()
    assert kinds(toy) == [("rehearsal", 3), ("commit", 3)]
    assert "expect" not in toy.requests[-1][1][0]


def test_the_times_of_rehearsals_are_sent_with_later_ones(toy: Toy, program: Program) -> None:
    program.run("select v from a")
    program.run("insert b")
    assert program.session.unit.nows == ["t1", "t2"]
    program.commit()
    assert program.session.unit.nows == []


def test_only_the_times_of_what_is_kept_are_sent(program: Program) -> None:
    unit = program.session.unit
    program.run("insert a")
    program.run("create table t ()")
    program.run("savepoint s")
    program.run("select 1 as unverified")
    program.run("select v from a")
    program.run("insert b")
    # The table was made, in a rehearsal, after the savepoint; the second read is not kept.
    assert unit.nows == ["t1", "t2", "t3", "t4"]
    program.run("rollback to s")
    assert unit.nows == ["t1", "t2"]


def test_a_failure_is_forgotten_with_what_failed(toy: Toy, program: Program) -> None:
    toy.rows["a"] = 1
    program.run("savepoint s")
    with pytest.raises(StatementError):
        program.run("insert a")
    program.run("rollback to s")
    with pytest.raises(TransactionError, match="Savepoint 'x' doesn't exist"):
        program.run("release x")
    with pytest.raises(TransactionError, match=r"failed \(Savepoint 'x' doesn't exist"):
        program.commit()


def test_two_threads_share_the_session_of_a_fresh_transaction(toy: Toy) -> None:
    together = Barrier(2, timeout=30)

    def begin(*_: Any, **__: Any) -> InteractiveSession:
        # With the lock, the other one does not arrive here.
        with suppress(BrokenBarrierError):
            together.wait(0.2)
        return Program(toy).session

    transaction = InteractiveBuilder(Options())
    start = Barrier(2)

    def use(_: int) -> InteractiveSession:
        start.wait()
        return transaction._begun(begin)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(use, range(2))
    assert first is second is transaction.interactive


def test_too_many_reads_are_an_error_only_for_a_unit_that_writes(
    toy: Toy, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MAX_VERIFIED_READS", 3)
    for number in range(5):
        program.run(f"select v from {number}")
    with pytest.raises(TransactionError, match="has read 5 times; at most 3"):
        program.run("insert a")
    with pytest.raises(TransactionError, match="An earlier statement"):
        program.commit()
    program.session.rollback()
    program.run("insert a")
    for number in range(3):
        program.run(f"select v from {number}")
    with pytest.raises(TransactionError, match="has read 4 times"):
        program.run("select v from 3")
    with pytest.raises(TransactionError, match="An earlier statement"):
        program.commit()


def test_reads_that_a_savepoint_undoes_are_not_counted(
    toy: Toy, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MAX_VERIFIED_READS", 3)
    program.run("savepoint s")
    for number in range(5):
        program.run(f"select v from {number}")
    with pytest.raises(TransactionError, match="has read 5 times"):
        finish(program.session.execute_many([("select v from 5", [])]))
    program.run("rollback to s")
    program.run("insert a")
    program.commit()
    assert toy.rows == {"a": 1}


def test_too_many_rehearsed_rows_are_an_error(toy: Toy, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_REHEARSED_ROWS", 2)
    for key in "abc":
        program.run(f"insert {key}")
    with pytest.raises(TransactionError, match="more than 2 rows"):
        program.run("insert d")


def test_adjacent_frozen_inserts_are_merged() -> None:
    unit = units.UnitOfWork()

    def add(sql: str, *rows: str, into: str = "insert into t select returning id", mergeable: bool = True) -> None:
        entry = units.Entry(sql, [], writes=True)
        entry.is_rehearsed, entry.affected_rows = True, len(rows)
        entry.frozen = {"sql": into, "params": [list(rows)], "mergeable": mergeable} if rows else None
        entry.expect = {"multiset_digest": sql}
        unit.append(entry)

    add("insert 1", "(1)")
    add("insert 2", "(2)", "(3)")
    add("update")
    add("insert 4", "(4)")
    add("insert 5", "(5)", into="insert into u select")
    for number in (6, 7):
        add(f"insert {number}", f"({number})", into="insert into t select returning (select count(*) from t)")
    for number in (8, 9):
        add(f"insert {number}", f"({number})", into="insert into v select", mergeable=False)
    sent = unit.for_commit()
    assert [each.get("params") for each in sent.statements] == [
        [["(1)", "(2)", "(3)"]], None, [["(4)"]], [["(5)"]], [["(6)"]], [["(7)"]], [["(8)"]], [["(9)"]],
    ]  # fmt: skip
    assert ["expect" in each for each in sent.statements] == [False] + [True] * 7
    assert [len(each) for each in sent.entries] == [2] + [1] * 7


def test_the_pauses_grow_are_bounded_and_end() -> None:
    conflict = service_error("serialization_failure", "40001", 0)
    attempts = Attempts(12)
    waits = [attempts.pause_after(conflict) for _ in range(11)]
    assert max(waits) <= 1.0
    assert waits[5] > waits[0]
    with pytest.raises(StatementError):
        attempts.pause_after(conflict)
    with pytest.raises(StatementError):
        Attempts(5).pause_after(service_error("unique_violation", "23505", 0))
    with pytest.raises(ValueError, match="max_attempts"):
        Attempts(0)
