"""The specification, a test for each sentence of its sections 2, 4, 5, 7 and 9 that is about these routes.

Each test is named after its sentence. Sections 3 and 8, and the sentences of 4 and 5 about sessions, keys and the
alias, are in test_specification_of_control.py; those about browsers in test_browser.py. Streaming and transactions
get theirs with the routes that they are about.
"""

import json
import re

import httpx
import pytest

from plainsql_server.core.credential import new_key
from server.tests.service import Service

TEXT = {"Content-Type": "text/plain"}
ORDERS = "select * from (values (1, 'one'), (2, 'two')) as orders (id, name)"


def post_text(service: Service, sql: str) -> httpx.Response:
    return service.call("POST", "/query", content=sql.encode(), headers=TEXT)


# Section 2: resources and their fields.


def test_2_sql_is_a_string_and_required(service: Service) -> None:
    assert service.call("POST", "/v1/query", json={"sql": "select 1"}).status_code == 200
    assert service.call("POST", "/v1/query", json={}).status_code == 400
    assert service.call("POST", "/v1/query", json={"sql": 1}).status_code == 400


def test_2_sql_is_one_sql_statement(service: Service) -> None:
    assert service.post_query("select 1").json()["success"] is True
    assert service.post_query("select 1; select 2").json()["success"] is False


def test_2_the_body_is_the_raw_sql_string_with_content_type_text_plain(service: Service) -> None:
    assert post_text(service, "select 7 as a").json()["rows"] == [{"a": 7}]


def test_2_there_is_no_json_wrapper(service: Service) -> None:
    assert post_text(service, json.dumps({"sql": "select 1"})).status_code == 400
    assert post_text(service, json.dumps("select 1")).status_code == 400


@pytest.mark.parametrize("sql", ["select 1/0", "select * from no_such_table"])
def test_2_success_is_boolean_and_false_signals_an_sql_level_error_even_when_the_http_status_is_200(
    service: Service, sql: str
) -> None:
    assert service.post_query("select 1").json()["success"] is True
    failed = service.post_query(sql)
    assert failed.status_code == 200
    assert failed.json()["success"] is False


def test_2_columns_is_an_array_of_string_the_column_names_of_the_result(service: Service) -> None:
    assert service.post_query(ORDERS).json()["columns"] == ["id", "name"]


def test_2_rows_is_an_array_of_object_one_object_per_row_keyed_by_column_name(service: Service) -> None:
    assert service.post_query(ORDERS).json()["rows"] == [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]


def test_2_values_are_json_values_typed_by_the_column(service: Service) -> None:
    sql = "select 1 as i, '1' as t, true as b, 1.5::float8 as f, null::int as n, '{\"a\": [1]}'::jsonb as j"
    assert service.post_query(sql).json()["rows"] == [
        {"i": 1, "t": "1", "b": True, "f": 1.5, "n": None, "j": {"a": [1]}}
    ]


def test_2_affected_rows_is_an_integer_the_number_of_rows_affected_by_the_statement(service: Service) -> None:
    service.query("create table spec_affected (id int)")
    for sql, affected in (
        ("insert into spec_affected select generate_series(1, 5)", 5),
        ("update spec_affected set id = 0 where id > 2", 3),
        ("delete from spec_affected where id = 0", 3),
        ("delete from spec_affected where id = 0", 0),
    ):
        counted = service.post_query(sql).json()["affected_rows"]
        assert type(counted) is int
        assert counted == affected


def test_2_timings_contains_total_us_integer_and_exec_us_integer(service: Service) -> None:
    timings = service.post_query("select 1").json()["timings"]
    assert type(timings["total_us"]) is int
    assert type(timings["exec_us"]) is int


def test_2_timings_are_total_time_and_execution_time_in_microseconds(service: Service) -> None:
    response = service.post_query("select pg_sleep(0.2)")
    timings = response.json()["timings"]
    assert 200_000 <= timings["exec_us"] <= timings["total_us"] <= response.elapsed.total_seconds() * 1_000_000


# Section 4: endpoints.


def test_4_all_request_and_response_bodies_are_json_unless_stated(service: Service) -> None:
    responses = [
        service.post_query("select 1"), service.post_query("select 1/0"), service.post_query("selec"),
        post_text(service, "select 1"), service.call("GET", "/"), service.call("GET", "/health"),
        service.call("GET", "/nope"), service.call("POST", "/v1/query", key=None),
    ]  # fmt: skip
    for response in responses:
        assert response.headers["content-type"] == "application/json"
        assert isinstance(response.json(), dict)
    assert service.call("POST", "/v1/query", content=b"select 1", headers=TEXT).status_code == 415


def test_4_post_v1_query_takes_a_json_object_with_sql_string_and_gives_a_query_response_object(
    service: Service,
) -> None:
    answer = service.call("POST", "/v1/query", json={"sql": "select 1"}).json()
    assert set(answer) >= {"success", "columns", "rows", "affected_rows", "timings"}


def test_4_post_query_takes_a_text_plain_body_with_raw_sql_and_has_the_same_purpose_as_v1_query(
    service: Service,
) -> None:
    for sql in (ORDERS, "select 1/0", "selec", "create temp table spec_same ()"):
        json_answer, text_answer = service.post_query(sql), post_text(service, sql)
        assert json_answer.status_code == text_answer.status_code
        differing = {"timings", "request_id"}
        assert {k: v for k, v in json_answer.json().items() if k not in differing} == {
            k: v for k, v in text_answer.json().items() if k not in differing
        }


def test_4_rule_1_post_v1_query_and_post_query_run_exactly_one_statement(service: Service) -> None:
    service.query("create table spec_one (id int)")
    two = "insert into spec_one values (1); insert into spec_one values (2)"
    for response in (service.post_query(two), post_text(service, two), service.post_query(""), post_text(service, "")):
        assert response.status_code == 400
    assert service.value("select count(*) from spec_one") == 0
    assert service.post_query("insert into spec_one values (1);").json()["affected_rows"] == 1
    assert post_text(service, "insert into spec_one values (2)").json()["affected_rows"] == 1


def test_4_get_health_is_listed_by_the_service_banner_as_the_health_check(service: Service) -> None:
    routes = service.call("GET", "/").json()["routes"]
    assert {"method": "GET", "path": "/health", "purpose": "Health check"} in routes
    assert service.call("GET", "/health").status_code == 200


# Section 5: authentication.


def test_5_1_every_request_carries_the_header_authorization_with_the_value_bearer_api_key(service: Service) -> None:
    for path, body in (("/v1/query", b'{"sql": "select 1"}'), ("/query", b"select 1")):
        kind = {"Content-Type": "application/json" if path == "/v1/query" else "text/plain"}
        carried = {**kind, "Authorization": f"Bearer {service.api_key}"}
        assert service.call("POST", path, key=None, content=body, headers=carried).status_code == 200
        assert service.call("POST", path, key=None, content=body, headers=kind).status_code == 401


def test_5_2_api_keys_start_with_the_fixed_prefix_svc_k_followed_by_the_key_body(service: Service) -> None:
    assert re.fullmatch(r"svc_k_[0-9A-Za-z]+", service.api_key)


def test_5_3_a_missing_or_invalid_key_gives_status_401(service: Service) -> None:
    for key in (None, "x", "svc_k_x", new_key().text):
        assert service.call("POST", "/v1/query", key=key, json={"sql": "select 1"}).status_code == 401


# Section 7: errors.


def test_7_200_is_success_at_http_level(service: Service) -> None:
    assert service.post_query("select 1").status_code == 200


def test_7_200_the_success_field_must_be_checked_false_means_an_sql_level_error(service: Service) -> None:
    response = service.post_query("select no_such_column")
    assert (response.status_code, response.json()["success"]) == (200, False)
    assert response.json()["error"]["sqlstate"] == "42703"


def test_7_400_is_parse_error_or_malformed_request(service: Service) -> None:
    assert service.post_query("selec 1").status_code == 400
    assert post_text(service, "selec 1").status_code == 400
    malformed = service.call("POST", "/v1/query", content=b"{", headers={"Content-Type": "application/json"})
    assert malformed.status_code == 400


def test_7_401_is_missing_or_invalid_api_key(service: Service) -> None:
    assert service.call("POST", "/query", key=None, content=b"select 1", headers=TEXT).status_code == 401
    assert service.call("POST", "/query", key="svc_k_x", content=b"select 1", headers=TEXT).status_code == 401


# Section 9: versioning.


def test_9_routes_for_queries_carry_the_path_prefix_v1(service: Service) -> None:
    assert service.call("POST", "/v1/query", json={"sql": "select 1"}).status_code == 200


def test_9_the_unversioned_route_query_exists_next_to_v1_query(service: Service) -> None:
    paths = {route["path"] for route in service.call("GET", "/").json()["routes"]}
    assert paths >= {"/v1/query", "/query"}
    assert post_text(service, "select 1").status_code == 200


def test_9_the_service_banner_reports_the_version_0_61_0(service: Service) -> None:
    assert service.call("GET", "/").json()["version"] == "0.61.0"
