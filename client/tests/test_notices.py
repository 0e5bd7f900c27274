"""Notices and warnings of PostgreSQL, wherever a program or a person looks for them."""

import asyncio
import logging
from uuid import uuid4

import pytest
import sqlalchemy as sa

import plainsql
from client.tests.test_command import run
from client.tests.test_dbapi import connect
from client.tests.test_sqlalchemy import address
from plainsql import dbapi
from server.tests.service import Service

BLOCK = "do $$ begin raise notice 'first'; raise warning 'second' using detail = 'more', hint = 'less'; end $$"
FAILING = "do $$ begin raise notice 'before'; raise exception 'failed'; end $$"
MANY = "n::text from generate_series(1, 100000) n"
FIRST = plainsql.Notice("NOTICE", "00000", "first")
SECOND = plainsql.Notice("WARNING", "01000", "second", "more", "less")


@pytest.fixture
def say(db: plainsql.Client) -> str:
    """A function that raises its argument as a notice and returns it."""
    body = "begin raise notice '%', $1; return $1; end"
    db.query(f"create or replace function say(text) returns text language plpgsql as $$ {body} $$")
    return "say"


def test_results_transactions_streams_and_errors_have_notices(db: plainsql.Client, say: str) -> None:
    assert db.query(BLOCK).notices == (FIRST, SECOND)
    assert str(SECOND) == "WARNING:  second\nDETAIL:  more\nHINT:  less"
    assert db.query("select 1").notices == ()
    with db.transaction() as together:
        pending = [together.add(BLOCK), together.add("select 1")]
    assert [each.result.notices for each in pending] == [(FIRST, SECOND), ()]
    with db.stream(f"select {say}('streamed')") as stream:
        list(stream)
        assert [notice.message for notice in stream.notices] == ["streamed"]
    with pytest.raises(plainsql.StatementError) as caught:
        db.query(FAILING)
    assert [notice.message for notice in caught.value.notices] == ["before"]


def test_more_notices_than_are_sent_are_counted(db: plainsql.Client) -> None:
    notices = db.query("do $$ begin for n in 1..105 loop raise notice '%', n; end loop; end $$").notices
    assert (len(notices), notices[99].message, notices[100].message) == (101, "100", "5 more notices were left out.")


def test_in_an_interactive_transaction_each_notice_comes_once(db: plainsql.Client, say: str) -> None:
    name = f"noticed_{uuid4().hex[:8]}"
    db.query(f"create table {name} (id int)")
    with db.transaction() as transaction:
        # This waits for the next statement.
        assert transaction.query(f"create table if not exists {name} (id int)").notices == ()
        inserted = transaction.query(f"insert into {name} select 1 where {say}('inserted') is not null")
        assert [notice.message.partition(" ")[0] for notice in inserted.notices] == ["relation", "inserted"]
        assert transaction.query(f"select count(*) from {name}").notices == ()
        transaction.query(f"drop table if exists {name}_not")
    messages = [notice.message for notice in transaction.notices]
    assert messages[1:] == ["inserted", f'table "{name}_not" does not exist, skipping']
    db.query(f"drop table {name}")


def test_asyncio_has_them_too(service: Service) -> None:
    async def main() -> None:
        options = {"ca_file": service.dev["ca_file"]}
        async with plainsql.connect_async(service.data_url, service.api_key, **options) as db:
            assert (await db.query(BLOCK)).notices == (FIRST, SECOND)

    asyncio.run(main())


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_cursor_has_the_messages_of_its_last_call(service: Service, say: str, *, autocommit: bool) -> None:
    connection = connect(service, autocommit=autocommit)
    cursor = connection.cursor()
    cursor.execute(f"select {say}('read')")
    ((kind, message),) = cursor.messages
    assert (kind, str(message), message.notice.message) == (dbapi.Warning, "NOTICE:  read", "read")
    assert cursor.fetchall() == [("read",)]
    assert len(cursor.messages) == 1
    cursor.executemany(f"select {say}(%s)", [["a"], ["b"]])
    assert [each.notice.message for _, each in cursor.messages] == ["a", "b"]
    cursor.stream(f"select {say}('streamed')").fetchall()
    assert [each.notice.message for _, each in cursor.messages] == ["streamed"]
    cursor.execute("select 1")
    assert cursor.messages == []
    with pytest.raises(dbapi.DatabaseError) as caught:
        cursor.execute(FAILING)
    assert [notice.message for notice in caught.value.notices] == ["before"]
    connection.close()


def test_what_waits_for_the_commit_reports_there(service: Service) -> None:
    connection = connect(service)
    cursor = connection.cursor()
    cursor.execute("drop table if exists not_there_at_all")
    assert cursor.messages == []
    connection.commit()
    ((_, message),) = connection.messages
    assert str(message) == 'NOTICE:  table "not_there_at_all" does not exist, skipping'
    connection.commit()
    assert connection.messages == []
    connection.close()


def test_sqlalchemy_users_find_them_in_the_log(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    engine = sa.create_engine(f"plainsql://{address(service)}")
    with caplog.at_level(logging.INFO, "plainsql"), engine.begin() as connection:
        connection.execute(sa.text(BLOCK))
    engine.dispose()
    logged = [each.getMessage() for each in caplog.records if each.name == "plainsql"]
    assert logged == ["NOTICE:  first", "WARNING:  second\nDETAIL:  more\nHINT:  less"]


@pytest.mark.parametrize("output_format", ["table", "ndjson", "json"])
def test_the_command_prints_them_to_standard_error(service: Service, say: str, output_format: str) -> None:
    done = run(service, "sql", "-o", output_format, f"select {say}('heard') as it")
    assert (done.returncode, "NOTICE:  heard\n" in done.stderr, "NOTICE" in done.stdout) == (0, True, False)
    together = run(service, "sql", BLOCK, "select 1 as one")
    assert "NOTICE:  first\nWARNING:  second\nDETAIL:  more\nHINT:  less\n" in together.stderr
    failed = run(service, "sql", FAILING)
    assert (failed.returncode, "NOTICE:  before\nError: failed\n" in failed.stderr) == (1, True)


def test_the_shell_prints_them_to_standard_error(service: Service) -> None:
    done = run(service, input=f"{BLOCK};\nbegin; {BLOCK}; commit;")
    assert (done.returncode, done.stderr.count("NOTICE:  first\n")) == (0, 2)


def test_what_a_failed_call_reported_does_not_appear_later(service: Service, say: str) -> None:
    connection = connect(service, autocommit=True)
    cursor = connection.cursor()
    # Two transactions, as the first statement is that long. The second one fails.
    statement, sets = f"select {say}('said'), length(%s::text), 1 / %s::int", [["x" * (2 << 20), 1], ["", 0]]
    calls = [
        lambda: cursor.execute("select 1"), lambda: cursor.executemany("select %s", [[1]]),
        lambda: cursor.stream("select 1").fetchall(), connection.commit,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(dbapi.DatabaseError):
            cursor.executemany(statement, sets)
        call()
        assert cursor.messages == connection.messages == []
    connection.close()


def test_what_a_result_reported_that_is_too_long_does_not_appear_later(service: Service, say: str) -> None:
    connection = connect(service)
    cursor = connection.cursor()
    cursor.execute("create table if not exists noticed_twice (id int)")
    with pytest.raises(dbapi.DatabaseError, match="exceeds"):
        cursor.execute(f"select {say}('said') from generate_series(1, 1) union all select {MANY}")
    connection.rollback()
    cursor.execute("select 1")
    assert cursor.messages == []
    connection.close()
