"""`freeze` on tables with triggers that run before the insert: the same values are generated, the trigger runs again.

The trigger gets what it got in the dry run, so what it does is done once, and as if nothing had been rehearsed.
"""

from typing import Any

import pytest

from server.tests.end_to_end.test_frozen_inserts import commit, freeze, texts
from server.tests.end_to_end.transactions import fresh_table, post
from server.tests.service import Service

COLUMNS = "id bigint generated always as identity, n int, token uuid default gen_random_uuid(), at timestamptz"


def triggered(service: Service, body: str) -> str:
    table = fresh_table(service, COLUMNS)
    function = f"{table}_f() returns trigger language plpgsql as $$ begin {body} return new; end $$"
    service.query(f"create function {function}")
    service.query(f"create trigger b before insert on {table} for each row execute function {table}_f()")
    return table


def test_a_trigger_runs_on_the_same_values_as_in_the_dry_run(service: Service) -> None:
    log = fresh_table(service, "id bigint, n int")
    table = triggered(service, f"insert into {log} values (new.id, new.n); new.n := new.n + 1; new.at := now();")
    result = freeze(service, f"insert into {table} (n) values ($1), (10) returning id, n, token", 5)
    assert result["frozen"]["mergeable"] is False
    assert [row["n"] for row in result["rows"]] == [6, 11]
    assert commit(service, result)["rows"] == result["rows"]
    ids = [row["id"] for row in result["rows"]]
    assert service.query(f"select id, n from {log} order by n")["rows"] == [
        {"id": ids[0], "n": 5}, {"id": ids[1], "n": 10},
    ]  # fmt: skip
    assert len(texts(service, table)) == 2


def test_the_rows_of_a_select_of_values_keep_their_numbers(service: Service) -> None:
    table = triggered(service, "new.n := new.n + 1;")
    values = "(values ($1, 2), ($2, 0), ($3, 1)) as v (n, place)"
    result = freeze(
        service, f"insert into {table} (n) select v.n::int from {values} order by place returning id, n", "9", "3", "5"
    )
    assert [row["n"] for row in result["rows"]] == [4, 6, 10]
    assert commit(service, result)["rows"] == result["rows"]
    assert service.query(f"select id, n from {table} order by n")["rows"] == result["rows"]


def test_all_columns_can_be_returned(service: Service) -> None:
    table = triggered(service, "new.at := now();")
    result = freeze(service, f"insert into {table} (n) values (1) returning *")
    assert commit(service, result)["rows"][0]["token"] == result["rows"][0]["token"]


def test_a_trigger_that_changes_what_was_generated_is_noticed(service: Service) -> None:
    table = triggered(service, "new.id := new.id * 2 + 1;")
    result = freeze(service, f"insert into {table} (n) values (1) returning id")
    sent = {**{name: result["frozen"][name] for name in ("sql", "params")}, "expect": {"digest": result["digest"]}}
    error = post(service, sent).json()["error"]
    assert (error["code"], error["outcome"]) == ("serialization_failure", "rolled_back")
    assert texts(service, table) == []


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("insert into {t} (n) values (1) returning n", []),
        ("insert into {t} (n, id) overriding system value values (1, 7) returning id", []),
        ("insert into {t} (n) select 1 returning id", []),
        # What it returns would differ each time.
        ("insert into {t} (n, token) values (1, gen_random_uuid()) returning id, token", []),
        ("insert into {t} values (default, 1) returning id", []),
        ("insert into {t} (n) values (0) returning id", []),
        ("insert into {t} (n) values ($1) returning id", [{"$ref": "0.rows.0.one"}]),
    ],
)
def test_other_forms_run_as_they_are(service: Service, sql: str, params: list[Any]) -> None:
    table = triggered(service, "if new.n = 0 then return null; end if;")
    result = freeze(service, sql.format(t=table), *params, before=("select 1 as one",))
    assert (result["frozen"], result["frozen_reason"]) == (None, "triggers")
