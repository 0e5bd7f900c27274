"""Which database a request goes to: the key's, the request's or the default; never another organization's."""

from dataclasses import dataclass

import httpx
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.control import answer, call, new_key, new_session
from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service


@dataclass(frozen=True)
class Tenant:
    """The organization `dev` with its databases `main`, the default, and `second`; a table in each names it."""

    service: Service
    bound_key: str

    def ask(
        self, *, key: str = "", header: str | None = None, field: str | None = None, as_text: bool = False
    ) -> httpx.Response:
        headers = {} if header is None else {"X-Database": header}
        sql = "select name from where_am_i"
        if as_text:
            headers["Content-Type"] = "text/plain"
            return self.service.call("POST", "/query", key=key, content=sql.encode(), headers=headers)
        body = {"sql": sql} if field is None else {"sql": sql, "database": field}
        return self.service.call("POST", "/v1/query", key=key, json=body, headers=headers)

    def answer(
        self, *, key: str = "", header: str | None = None, field: str | None = None, as_text: bool = False
    ) -> str:
        """The name of the database that answered."""
        response = self.ask(key=key, header=header, field=field, as_text=as_text)
        assert response.json()["success"], response.text
        return str(response.json()["rows"][0]["name"])


@pytest.fixture(scope="module")
def tenant(service: Service) -> Tenant:
    for database in ("main", tenants.second_database(service)):
        service.query(f"create table where_am_i as select '{database}' as name", database=database)
    return Tenant(service, service.new_key("read", database="second"))


def test_a_request_that_names_no_database_goes_to_the_default(tenant: Tenant) -> None:
    assert tenant.answer() == tenant.answer(as_text=True) == "main"


@pytest.mark.parametrize("name", ["main", "second"])
def test_a_request_may_name_a_database_by_field_or_header(tenant: Tenant, name: str) -> None:
    assert tenant.answer(field=name) == name
    assert tenant.answer(header=name) == name
    assert tenant.answer(header=name, as_text=True) == name


def test_the_field_wins_over_the_header(tenant: Tenant) -> None:
    assert tenant.answer(field="second", header="main") == "second"


@pytest.mark.parametrize("name", ["third", "MAIN", "", "plainsql_directory", "postgres", "'; select 1"])
def test_a_database_that_does_not_exist_is_404(tenant: Tenant, name: str) -> None:
    error_of(tenant.ask(field=name), 404, "database_not_found")
    error_of(tenant.ask(header=name), 404, "database_not_found")
    error_of(tenant.ask(header=name, as_text=True), 404, "database_not_found")


def test_another_organizations_database_is_as_unknown_as_one_that_does_not_exist(
    tenant: Tenant, service: Service
) -> None:
    own = service.call(
        "POST", "/v1/query", key=tenants.free_key(service), json={"sql": "select 1", "database": "theirs"}
    )
    assert own.json()["success"]
    foreign = error_of(tenant.ask(field="theirs"), 404, "database_not_found")
    missing = error_of(tenant.ask(field="nobody"), 404, "database_not_found")
    assert foreign["message"].replace("theirs", "nobody") == missing["message"]
    assert {**foreign, "message": ""} == {**missing, "message": ""}


def test_the_engines_own_name_of_a_database_is_no_name_for_a_request(service: Service) -> None:
    response = service.post_query("select 1", database=service.dev["postgres"]["database"])
    error_of(response, 404, "database_not_found")


def test_a_key_bound_to_a_database_uses_that_database(tenant: Tenant) -> None:
    assert tenant.answer(key=tenant.bound_key) == "second"
    assert tenant.answer(key=tenant.bound_key, field="second") == "second"
    assert tenant.answer(key=tenant.bound_key, header="second", as_text=True) == "second"


@pytest.mark.parametrize("name", ["main", "theirs", "none"])
def test_a_key_bound_to_a_database_may_name_no_other(tenant: Tenant, name: str) -> None:
    refusals = [
        error_of(tenant.ask(key=tenant.bound_key, field=name), 403, "forbidden"),
        error_of(tenant.ask(key=tenant.bound_key, header=name), 403, "forbidden"),
        error_of(tenant.ask(key=tenant.bound_key, header=name, as_text=True), 403, "forbidden"),
    ]
    # Whether the other database exists is nobody's business who may not use it.
    assert all(refusal == refusals[0] and name not in refusal["message"] for refusal in refusals)


@pytest.fixture(scope="module")
def ids(tenant: Tenant, service: Service) -> dict[str, str]:
    """The ids of the databases by name."""
    return {each["name"]: each["id"] for each in answer(service, "GET", "/v1/databases")["databases"]}


@pytest.mark.parametrize("name", ["main", "second"])
def test_a_database_is_named_by_its_id_as_well(tenant: Tenant, ids: dict[str, str], name: str) -> None:
    # Again and again, so that the fast lane has it, too.
    for _ in range(3):
        assert tenant.answer(field=ids[name]) == name
        assert tenant.answer(header=ids[name]) == name
        assert tenant.answer(header=ids[name], as_text=True) == name


def test_a_transaction_names_databases_by_either(service: Service, tenant: Tenant, ids: dict[str, str]) -> None:
    one = {"sql": "select name from where_am_i"}
    body = {"statements": [one, {**one, "database": ids["second"]}, {**one, "database": "main"}]}
    done = service.call("POST", "/v1/transaction", json={**body, "database": ids["main"]}).json()
    assert [result["rows"][0]["name"] for result in done["results"]] == ["main", "second", "main"]
    assert done["transaction"]["participants"] == 2


def test_a_bound_key_may_name_its_database_by_id_and_no_other(tenant: Tenant, ids: dict[str, str]) -> None:
    assert tenant.answer(key=tenant.bound_key, field=ids["second"]) == "second"
    error_of(tenant.ask(key=tenant.bound_key, field=ids["main"]), 403, "forbidden")


def test_another_organizations_id_is_unknown(service: Service, tenant: Tenant, ids: dict[str, str]) -> None:
    asked = {"sql": "select 1", "database": ids["main"]}
    response = service.call("POST", "/v1/query", key=tenants.free_key(service), json=asked)
    error_of(response, 404, "database_not_found")
    error_of(tenant.ask(field="db_" + "0" * 32), 404, "database_not_found")


def test_the_control_plane_takes_names_and_ids(service: Service, ids: dict[str, str]) -> None:
    by_either = [answer(service, "GET", f"/v1/databases/{named}") for named in ("second", ids["second"])]
    assert [each["id"] for each in by_either] == [ids["second"]] * 2
    bound = new_key(service, "read", database="second")["secret"]
    for named in ("second", ids["second"]):
        assert new_key(service, "read", database=named)["database"] == "second"
        assert new_session(service, database=named)["database"] == "second"
        assert new_session(service, key=bound, database=named)["database"] == "second"
    refused = call(service, "POST", "/v1/session", key=bound, json={"database": ids["main"]})
    error_of(refused, 403, "forbidden")
    error_of(call(service, "GET", "/v1/databases/nowhere"), 404, "database_not_found")


def test_no_new_database_may_look_like_an_id(service: Service) -> None:
    error_of(call(service, "POST", "/v1/databases", json={"name": "db_" + "a" * 32}), 400, "invalid_name")
    assert answer(service, "POST", "/v1/databases", status=201, json={"name": "db_of_mine"})["name"] == "db_of_mine"
