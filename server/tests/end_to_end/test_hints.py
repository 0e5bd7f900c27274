"""Hints for what newcomers write: placeholders of other interfaces, lists as parameters, and SET alone."""

from typing import Any
from uuid import uuid4

import pytest

from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service

TABLE = "(values (1, 'milk')) as notes (id, body)"


@pytest.mark.parametrize(
    "condition",
    ["id = %s", "id in (%s)", "id = %(id)s", "id = :id", "id = ?", "id = ? and body = 'milk'", "id in (?)"],
)
def test_placeholders_of_other_interfaces_get_a_hint(service: Service, condition: str) -> None:
    sql = f"select * from {TABLE} where {condition}"
    answers = [
        service.post_query(sql, 1),
        service.call("POST", "/v1/query", json={"sql": sql}, headers={"Accept": "application/x-ndjson"}),
        service.call("POST", "/v1/transaction", json={"statements": ["select 1", {"sql": sql, "params": [1]}]}),
    ]
    for answer in answers:
        assert "$1, $2" in answer.json()["error"].get("hint", ""), answer.text


@pytest.mark.parametrize(("condition", "params"), [("id in ($1)", [[1, 2]]), ("id in $1", [[1, 2]])])
def test_a_list_as_a_parameter_gets_the_hint_to_write_any(service: Service, condition: str, params: list[Any]) -> None:
    refused = service.post_query(f"select * from {TABLE} where {condition}", *params)
    assert "= ANY($1)" in refused.json()["error"]["hint"]
    assert service.query(f"select * from {TABLE} where id = any($1)", *params)["row_count"] == 1


def test_postgresqls_own_hint_stays(service: Service) -> None:
    refused = service.post_query(f"select boddy from {TABLE}")
    assert "notes.body" in error_of(refused, 200, "undefined_column")["hint"]


def test_set_alone_gets_a_warning_and_not_in_a_transaction(service: Service) -> None:
    (notice,) = service.query("set search_path = 'shop'")["notices"]
    assert (notice["severity"], "as one transaction" in notice["hint"]) == ("WARNING", True)
    recorded = service.call(
        "POST", "/v1/query", json={"sql": "set work_mem = '8MB'"}, headers={"Idempotency-Key": uuid4().hex}
    )
    assert [each["severity"] for each in recorded.json()["notices"]] == ["WARNING"]
    sent = {"statements": ["set local work_mem = '8MB'", "show work_mem"]}
    together = service.call("POST", "/v1/transaction", json=sent).json()
    assert together["results"][1]["rows"] == [{"work_mem": "8MB"}]
    assert "notices" not in together["results"][0]
