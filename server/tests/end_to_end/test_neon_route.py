"""POST /sql at the level of HTTP: what the Neon driver doesn't send, what it never looks at, and hostile requests."""

import json
import secrets
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from server.tests.end_to_end import tenants
from server.tests.service import Service

RAW = {"Neon-Raw-Text-Output": "true", "Neon-Array-Mode": "true"}


def connection_string(service: Service, key: str | None = None, database: str = "main", user: str = "app") -> str:
    return f"postgresql://{user}:{key or service.api_key}@api.plainsql.example/{database}?sslmode=require"


def send(
    service: Service, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None, *, string: str | None = None
) -> httpx.Response:
    """A request with a connection string, and without a Content-Type, as from the driver."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Neon-Connection-String": string or connection_string(service), **(headers or {})}
    return service.call("POST", "/sql", key=None, content=content, headers=sent)


def answer(service: Service, query: str, *params: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    response = send(service, {"query": query, "params": list(params)}, headers)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def failure(response: httpx.Response, status: int, code: str, own: str) -> dict[str, Any]:
    """The body of a failure with this status, SQLSTATE and code of our own."""
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["code"], body["error"]["code"]) == (status, code, own), body
    assert body["request_id"] == response.headers["x-request-id"]
    return body


def fresh_table(service: Service) -> str:
    name = f"neon_{secrets.token_hex(4)}"
    service.query(f"create table {name} (n int)")
    return name


@pytest.mark.parametrize(
    "string",
    [
        "postgres://{key}",
        "postgresql://x:{key}@host",
        "postgresql://x:{key}@host/",
        "POSTGRESQL://x:{key}@host/main",
        "postgresql://:{encoded}@host:5432/main?options=-c%20a",
        "postgresql://a%40b:{encoded}@[::1]:5432/m%61in#fragment",
    ],
)
def test_the_password_is_the_key_and_the_path_the_database(service: Service, string: str) -> None:
    encoded = "".join(f"%{ord(each):02X}" for each in service.api_key)
    string = string.format(
        key=f"x:{service.api_key}@host" if "://{key}" in string else service.api_key, encoded=encoded
    )
    assert send(service, {"query": "select 1 as one"}, string=string).json()["rows"] == [{"one": 1}]


def test_a_session_token_or_a_bearer_token_will_do(service: Service) -> None:
    session = service.http.post(
        f"{service.control_url}/v1/session", headers={"Authorization": f"Bearer {service.api_key}"}
    )
    token = session.json()["session"]["token"]
    assert send(service, {"query": "select 1"}, string=connection_string(service, token)).status_code == 200
    # The header comes first, and without a connection string X-Database names the database.
    sent = {"Authorization": f"Bearer {service.api_key}"}
    assert send(service, {"query": "select 1"}, sent, string="postgresql://a:wrong@b/main").status_code == 200
    other = tenants.second_database(service)
    named = service.call("POST", "/sql", json={"query": "select 1"}, headers={"X-Database": other})
    assert named.status_code == 200
    missing = service.call("POST", "/sql", json={"query": "select 1"}, headers={"X-Database": "missing"})
    failure(missing, 400, "3D000", "database_not_found")


@pytest.mark.parametrize(
    ("string", "code", "own"),
    [
        ("postgresql://a@b/main", "28P01", "unauthenticated"),
        ("postgresql://a:@b/main", "28P01", "unauthenticated"),
        ("postgresql://", "28P01", "unauthenticated"),
        ("postgresql://a:svc_k_wrong@b/main", "28P01", "unauthenticated"),
        (f"postgresql://a:{'x' * 30_000}@b/main", "28P01", "unauthenticated"),
        ("postgresql://a:%00%FF%zz@b/main", "28P01", "unauthenticated"),
        ("mysql://a:b@c/main", "08P01", "malformed_request"),
        ("host=localhost password=x", "08P01", "malformed_request"),
        ("https://[", "08P01", "malformed_request"),
    ],
)
def test_a_wrong_connection_string_is_refused_and_not_repeated(
    service: Service, string: str, code: str, own: str
) -> None:
    body = failure(send(service, {"query": "select 1"}, string=string), 400, code, own)
    assert "xxxx" not in json.dumps(body)
    if own == "unauthenticated":
        assert body["message"].startswith("password authentication failed")


def test_databases_of_others_and_strange_names_are_not_found(service: Service) -> None:
    for database in ("missing", "../main", "main/x", "%00", "a" * 5_000, quote("main'; --")):
        string = connection_string(service, database=database)
        failure(send(service, {"query": "select 1"}, string=string), 400, "3D000", "database_not_found")
    neighbour = connection_string(service, tenants.neighbour_key(service), tenants.second_database(service))
    failure(send(service, {"query": "select 1"}, string=neighbour), 400, "3D000", "database_not_found")


def test_a_key_that_only_reads_does_not_write(service: Service) -> None:
    table = fresh_table(service)
    string = connection_string(service, tenants.read_key(service))
    for body in (
        {"query": f"insert into {table} values (1)"},
        {"queries": [{"query": f"insert into {table} values (1)"}]},
    ):
        assert send(service, body, string=string).json()["code"] in ("25006", "42501")
    assert service.value(f"select count(*) from {table}") == 0
    admin = connection_string(service, tenants.admin_key(service))
    failure(send(service, {"query": "select 1"}, string=admin), 400, "42501", "forbidden")


def test_values_are_json_unless_their_text_is_asked_for(service: Service) -> None:
    columns = {
        "true": (True, "t"),
        "1::int2": (1, "1"),
        "1.5::float4": (1.5, "1.5"),
        "'nan'::float8": ("NaN", "NaN"),
        "'-inf'::float8": ("-Infinity", "-Infinity"),
        "9007199254740993::int8": ("9007199254740993", "9007199254740993"),
        "1.50::numeric": ("1.50", "1.50"),
        "7::oid": ("7", "7"),
        """'{"a": 1.0}'::json""": ({"a": 1.0}, '{"a": 1.0}'),
        "'[1, null]'::jsonb": ([1, None], "[1, null]"),
        "'{{1,NULL},{3,4}}'::int[]": ([[1, None], [3, 4]], "{{1,NULL},{3,4}}"),
        "array[true, null]": ([True, None], "{t,NULL}"),
        "array['a,b', null, '\"']": (["a,b", None, '"'], '{"a,b",NULL,"\\""}'),
        "array[9007199254740993]": (["9007199254740993"], "{9007199254740993}"),
        "array['1 day'::interval, null, '01:00']": (["1 day", None, "01:00:00"], '{"1 day",NULL,01:00:00}'),
        "'\\x00ff'::bytea": ("\\x00ff", "\\x00ff"),
        "'1 mon -1 day'::interval": ("1 mon -1 days", "1 mon -1 days"),
        "'2026-11-14 22:15:31.5+00'::timestamptz": ("2026-11-14 22:15:31.5+00", "2026-11-14 22:15:31.5+00"),
        "'2026-11-14 22:15'::timestamp": ("2026-11-14 22:15:00", "2026-11-14 22:15:00"),
        "'[1,3)'::int4range": ("[1,3)", "[1,3)"),
        "row(1, 'a b')": ('(1,"a b")', '(1,"a b")'),
        "null::int": (None, None),
    }
    query = "select " + ", ".join(f"{each} as c{index}" for index, each in enumerate(columns))
    plain = answer(service, query)
    assert plain["rowAsArray"] is False
    assert list(plain["rows"][0].values()) == [value for value, _ in columns.values()]
    text = answer(service, query, headers=RAW)
    assert text["rowAsArray"] is True
    assert text["rows"] == [[value for _, value in columns.values()]]
    assert [each["dataTypeID"] for each in text["fields"]] == [each["dataTypeID"] for each in plain["fields"]]


def test_columns_of_one_name_are_all_there(service: Service) -> None:
    body = answer(service, "select 1 as a, 2 as a")
    assert body["rows"] == [{"a": 1, "a_1": 2}]
    assert [each["name"] for each in body["fields"]] == ["a", "a"]


def test_parameters_have_no_type_but_that_which_postgresql_finds(service: Service) -> None:
    sent = [True, 12345678901234567890, {"a": [1]}, [1, [None, 'x"\\,{}'], True, {"b": 2}], "plain", None, "\\x00ff"]
    query = "select $1::bool, $2::numeric, $3::jsonb, $4::text, $5::text, $6::int, $7::bytea"
    rows = answer(service, query, *sent, headers=RAW)["rows"]
    array = r'{1,{NULL,"x\"\\,{}"},true,"{\"b\": 2}"}'
    assert rows == [["t", "12345678901234567890", '{"a": [1]}', array, "plain", None, "\\x00ff"]]
    # A string for a JSON parameter is JSON, and no JSON string, unlike on our own routes.
    assert answer(service, "select $1::jsonb as doc", '{"a": 1}')["rows"] == [{"doc": {"a": 1}}]
    # Nor is an object a reference to another result.
    batch = send(service, {"queries": [{"query": "select 1 as a"}, {
        "query": "select $1::jsonb as doc", "params": [{"$ref": "0.rows.0.a"}]}]})  # fmt: skip
    assert batch.json()["results"][1]["rows"] == [{"doc": {"$ref": "0.rows.0.a"}}]
    nested: Any = 1
    for _ in range(50):
        nested = [nested]
    failure(send(service, {"query": "select $1::int[]", "params": [nested]}), 400, "22P02", "invalid_parameter")
    failure(send(service, {"query": "select $1", "params": ["a\0b"]}), 400, "22021", "null_character")
    failure(send(service, {"query": "select $1", "params": [["a\0b"]]}), 400, "22021", "null_character")
    failure(send(service, {"query": "select 1", "params": ["1"]}), 400, "08P01", "wrong_parameter_count")


def test_the_count_of_rows_is_that_of_the_command_tag(service: Service) -> None:
    table = fresh_table(service)
    counts = {
        f"insert into {table} select generate_series(1, 3)": ("INSERT", 3),
        f"update {table} set n = n where n > 1 returning n": ("UPDATE", 2),
        f"select n from {table}": ("SELECT", 3),
        f"create table {table}_copy as select * from {table}": ("SELECT", 3),
        f"drop table {table}_copy": ("DROP", None),
        "do $$ begin end $$": ("DO", None),
        "set local work_mem = '1MB'": ("SET", None),
    }
    for query, expected in counts.items():
        body = answer(service, query)
        assert (body["command"], body["rowCount"]) == expected


@pytest.mark.parametrize(
    ("body", "code", "own"),
    [
        (b"", "08P01", "malformed_request"),
        (b"select 1", "08P01", "malformed_request"),
        (b"{}", "08P01", "malformed_request"),
        (b'{"query": 1}', "08P01", "malformed_request"),
        (b'{"query": "select 1", "params": {}}', "08P01", "malformed_request"),
        (b'{"queries": ["select 1"]}', "08P01", "malformed_request"),
        (b'{"query": "\xff"}', "08P01", "malformed_request"),
        (b'{"query": ""}', "42601", "empty_statement"),
        (b'{"query": "select 1; drop table x"}', "42601", "multiple_statements"),
        (b'{"query": "commit and chain"}', "0A000", "transaction_control"),
        (b'{"query": "listen a"}', "0A000", "listen_not_supported"),
        (b'{"query": "copy (select 1) to stdout"}', "0A000", "copy_not_supported"),
        (b'{"queries": [{"query": "select 1"}, {"query": "select 1; select 2"}]}', "42601", "multiple_statements"),
        (b'{"queries": [{"query": "select 1"}, {"query": "/**/ rollback"}]}', "0A000", "transaction_control"),
    ],
)
def test_what_is_no_statement_is_refused(service: Service, body: bytes, code: str, own: str) -> None:
    failure(send(service, body), 400, code, own)


def test_a_batch_echoes_its_headers_and_is_serializable_whatever_it_asks_for(service: Service) -> None:
    headers = {
        "Neon-Batch-Isolation-Level": "ReadCommitted", "Neon-Batch-Read-Only": "true", "Neon-Batch-Deferrable": "false",
    }  # fmt: skip
    query = {"query": "select current_setting('transaction_isolation') as level"}
    response = send(service, {"queries": [query]}, headers)
    assert response.json()["results"][0]["rows"] == [{"level": "serializable"}]
    assert {name: response.headers[name] for name in headers} == headers
    wrong = send(service, {"queries": [query]}, {"Neon-Batch-Isolation-Level": "serializable"})
    failure(wrong, 400, "08P01", "malformed_request")
    assert send(service, {"queries": []}).json() == {"results": []}


def test_a_batch_or_a_statement_with_a_key_takes_effect_once(service: Service) -> None:
    table = fresh_table(service)
    for body in (
        {"query": f"insert into {table} values (1)"},
        {"queries": [{"query": f"insert into {table} values (2)"}]},
    ):
        keyed = {"Idempotency-Key": f"key-{secrets.token_hex(8)}"}
        first, again = send(service, body, keyed), send(service, body, keyed)
        assert (first.status_code, again.content) == (200, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        # Another form of the answer is another request.
        assert send(service, body, keyed | RAW).status_code == 422
    assert service.query(f"select n from {table} order by n")["rows"] == [{"n": 1}, {"n": 2}]


def test_the_limits_are_those_of_the_tier(service: Service) -> None:
    string = connection_string(service, tenants.free_key(service), database="")
    many = send(service, {"query": "select generate_series(1, 10001)"}, string=string)
    assert "10000 rows" in failure(many, 507, "54000", "result_too_large")["message"]
    large = send(service, {"query": "select repeat('x', 11000000)"}, string=string)
    failure(large, 507, "54000", "result_too_large")
    batch = send(service, {"queries": [{"query": "select 1"}] * 101}, string=string)
    failure(batch, 400, "54000", "too_many_statements")
    rows = send(service, {"queries": [{"query": "select generate_series(1, 10001)"}]}, string=string)
    failure(rows, 507, "54000", "result_too_large")
    text = send(service, {"query": f"select '{'x' * 1_100_000}'"}, string=string)
    failure(text, 413, "54000", "statement_too_large")
    body = send(service, b" " * 5_000_000, string=string)
    failure(body, 413, "08P01", "request_too_large")


@pytest.mark.parametrize("batch", [False, True], ids=["statement", "batch"])
@pytest.mark.parametrize("keyed", [False, True], ids=["without a key", "with a key"])
def test_a_result_with_too_many_rows_says_truly_whether_the_write_took_effect(
    service: Service, keyed: bool, batch: bool
) -> None:
    key, table = tenants.free_key(service), f"neon_{secrets.token_hex(4)}"
    string = connection_string(service, key, database="")
    assert send(service, {"query": f"create table {table} (n int)"}, string=string).status_code == 200
    statement = {"query": f"insert into {table} select generate_series(1, 10001) returning n"}
    headers = {"Idempotency-Key": f"key-{secrets.token_hex(8)}"} if keyed else {}
    refused = send(service, {"queries": [statement]} if batch else statement, headers, string=string)
    outcome = failure(refused, 507, "54000", "result_too_large")["error"]["outcome"]
    (row,) = send(service, {"query": f"select count(*) from {table}"}, string=string).json()["rows"]
    assert (outcome, row["count"]) == (("rolled_back", "0") if keyed else ("committed", "10001"))
    if keyed:
        path = f"/v1/requests/{headers['Idempotency-Key']}"
        assert service.call("GET", path, key=key).json()["request"]["outcome"] == "not_executed"


def test_the_rate_limit_is_that_of_the_organization(service: Service) -> None:
    name = f"neon-{secrets.token_hex(4)}"
    service.customers.add_organization(name, tier="free")
    service.customers.add_database("main", name)
    string = connection_string(service, service.new_key("write", org=name))
    first = send(service, {"query": "select 1"}, string=string)
    assert first.headers["ratelimit-policy"] == '"org-free";q=200;w=60'
    others = [send(service, {"queries": []}, string=string).status_code for _ in range(199)]
    assert others == [200] * 199
    refused = send(service, {"query": "select 1"}, string=string)
    failure(refused, 429, "53400", "rate_limited")
    assert int(refused.headers["retry-after"]) > 0


def test_a_page_of_any_origin_may_send_the_drivers_headers(service: Service) -> None:
    names = [
        "authorization", "neon-connection-string", "neon-raw-text-output", "neon-array-mode",
        "neon-batch-isolation-level", "neon-batch-read-only", "neon-batch-deferrable",
    ]  # fmt: skip
    headers = {
        "Origin": "https://page.example", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ", ".join(names),
    }  # fmt: skip
    response = service.call("OPTIONS", "/sql", key=None, headers=headers)
    assert (response.status_code, response.headers["allow"]) == (200, "OPTIONS, POST")
    assert service.call("OPTIONS", "/sql", key=None).headers["allow"] == "OPTIONS, POST"
    allowed = [each.strip().lower() for each in response.headers["access-control-allow-headers"].split(",")]
    assert set(names) <= set(allowed)


def test_the_alias_passes_it_on_and_the_control_plane_does_not_have_it(service: Service) -> None:
    sent = {"Neon-Connection-String": connection_string(service), **RAW}
    body = json.dumps({"query": "select 1 as one"})
    answered = service.http.post(f"{service.dev['alias_url']}/sql", content=body, headers=sent)
    assert answered.json()["rows"] == [["1"]]
    assert "alias;dur=" in answered.headers["server-timing"]
    control = service.http.post(f"{service.control_url}/sql", content=body, headers=sent)
    assert (control.status_code, control.json()["error"]["code"]) == (404, "route_not_found")
    assert f":{urlsplit(service.data_url).port}/sql" in control.json()["error"]["hint"]


def test_a_large_result_is_whole(service: Service) -> None:
    query = "select n, repeat('x', 1000) as text from generate_series(1, 2000) n"
    rows = answer(service, query)["rows"]
    assert [row["n"] for row in rows] == list(range(1, 2001))
    batch = send(service, {"queries": [{"query": query, "arrayMode": True}, {"query": "select 1"}]}).json()["results"]
    assert batch[0]["rows"] == [[row["n"], row["text"]] for row in rows]
    assert [each["rowAsArray"] for each in batch] == [True, False]


def test_a_field_names_the_table_that_is_there_now(service: Service) -> None:
    table = fresh_table(service)

    def table_id() -> int:
        (field,) = answer(service, f"select n from {table} where n = $1", 1)["fields"]
        return int(field["tableID"])

    before = table_id()
    # Past the service, which takes no notice of it.
    with service.engine() as engine:
        owner = engine.execute("select tableowner from pg_tables where tablename = %s", [table]).fetchall()[0][0]
        engine.execute(f"drop table {table}")
        engine.execute(f"create table {table} (n int)")
        engine.execute(f"alter table {table} owner to {owner}")
        (after,) = engine.execute("select %s::regclass::oid::int", [table]).fetchall()[0]
    assert (table_id(), after != before) == (after, True)
