"""Who is let in: credentials, scopes, and that a refusal tells nothing to a guesser."""

import re
import secrets
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from plainsql_server.core.credential import is_well_formed, new_key
from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service

# A look-up of a key is trusted for a second; the rest is for a busy machine.
NOTICED_WITHIN_S = 60


def ask(service: Service, *, key: str | None = "", path: str = "/v1/query", authorization: str = "") -> httpx.Response:
    """A harmless query with this key, or with exactly this Authorization header."""
    content, kind = (b"select 1", "text/plain") if path == "/query" else (b'{"sql": "select 1"}', "application/json")
    headers: list[tuple[bytes, bytes]] = [(b"Content-Type", kind.encode())]
    secret = service.api_key if key == "" else key
    if authorization or secret is not None:
        headers.append((b"Authorization", (authorization or f"Bearer {secret}").encode("latin-1")))
    return service.http.post(f"{service.data_url}{path}", content=content, headers=headers)


def wait_until_refused(service: Service, key: str) -> httpx.Response:
    end = time.monotonic() + NOTICED_WITHIN_S
    while (response := ask(service, key=key)).status_code == 200 and time.monotonic() < end:
        time.sleep(0.05)
    return response


def seconds_left(key: str, service: Service) -> str:
    """Lets a key expire a second from now."""
    expires_at = datetime.now(UTC) + timedelta(seconds=1)
    with service.engine("plainsql_directory") as directory:
        directory.execute("UPDATE api_keys SET expires_at = %s WHERE digest = sha256(%s)", (expires_at, key.encode()))
    return key


@pytest.fixture(scope="module")
def admin_key(service: Service) -> str:
    return service.new_key("admin")


@pytest.fixture(scope="module")
def ending_key(service: Service) -> str:
    return service.new_key("read")


@pytest.mark.parametrize("path", ["/v1/query", "/query"])
def test_a_request_without_a_key_is_401(service: Service, path: str) -> None:
    error = error_of(ask(service, key=None, path=path), 401, "unauthenticated")
    assert "Bearer" in error["hint"]


@pytest.mark.parametrize(
    "value", ["Basic dXNlcjpwYXNz", "Digest x", "Token {key}", "{key}", "Bearer{key}", "Bear {key}"]
)
def test_any_scheme_but_bearer_is_401(service: Service, value: str) -> None:
    error_of(ask(service, authorization=value.format(key=service.api_key)), 401, "unauthenticated")


@pytest.mark.parametrize("value", ["Bearer {key}", "bearer {key}", "BEARER {key}", "Bearer  {key}"])
def test_the_schemes_case_and_blanks_around_the_key_do_not_matter(service: Service, value: str) -> None:
    assert ask(service, authorization=value.format(key=service.api_key)).json()["success"]


def other(character: str) -> str:
    return "1" if character == "0" else "0"


def spoiled(key: str) -> list[str]:
    """What a guesser or a clumsy hand may make of a good key."""
    return [
        "x", key[:-1], key + "0", key[:-1] + other(key[-1]), key[:10] + other(key[10]) + key[11:], key.swapcase(),
        key.replace("svc_k_", "svc_s_"), key.replace("svc_k_", ""), f"{key} {key}", f"{key},{key}", "' or true --",
        "svc_k_" + "x" * 10_000, "svc_k_" + "é" * 38,
    ]  # fmt: skip


def test_malformed_mistyped_and_unknown_keys_are_refused_in_the_same_words(service: Service) -> None:
    unknown = ask(service, key=new_key().text)
    for text in spoiled(service.api_key):
        malformed = ask(service, authorization=f"Bearer {text}")
        assert error_of(malformed, 401, "unauthenticated") == error_of(unknown, 401, "unauthenticated")
        assert telling_headers(malformed) == telling_headers(unknown)


def telling_headers(response: httpx.Response) -> dict[str, str]:
    changing = {"date", "x-request-id", "server-timing", "content-length"}
    return {name: value for name, value in response.headers.items() if name not in changing}


def test_an_invalid_key_is_401_before_any_other_check(service: Service) -> None:
    response = service.call("POST", "/v1/query", key=new_key().text, content=b"{", headers={"Content-Type": "x/y"})
    error_of(response, 401, "unauthenticated")


def test_a_revoked_key_is_refused_like_an_unknown_one(service: Service) -> None:
    key = service.new_key("read")
    assert ask(service, key=key).json()["success"]
    with service.engine("plainsql_directory") as directory:
        row = directory.execute("SELECT id FROM api_keys WHERE digest = sha256(%s)", (key.encode(),)).fetchone()
    assert row is not None
    service.operate("key", "revoke", row[0])
    refused = error_of(wait_until_refused(service, key), 401, "unauthenticated")
    assert refused == error_of(ask(service, key=new_key().text), 401, "unauthenticated")


def test_an_expired_key_is_refused_like_an_unknown_one(service: Service, ending_key: str) -> None:
    assert ask(service, key=ending_key).json()["success"]
    refused = error_of(wait_until_refused(service, seconds_left(ending_key, service)), 401, "unauthenticated")
    assert refused == error_of(ask(service, key=new_key().text), 401, "unauthenticated")


@pytest.mark.parametrize("path", ["/v1/query", "/query"])
def test_a_key_without_the_scope_that_the_route_needs_is_403(service: Service, admin_key: str, path: str) -> None:
    error = error_of(ask(service, key=admin_key, path=path), 403, "forbidden")
    assert "read" in error["message"]


def test_a_secret_is_stored_nowhere_but_in_its_owners_file(service: Service) -> None:
    with service.engine("plainsql_directory") as directory:
        rows = directory.execute("SELECT api_keys::text FROM api_keys").fetchall()
    assert rows
    assert not any(service.api_key in row[0] or service.api_key[10:-4] in row[0] for row in rows)


def test_the_key_that_dev_makes_is_well_formed(service: Service) -> None:
    assert is_well_formed(service.api_key)


def test_a_refusal_repeats_nothing_of_the_key(service: Service) -> None:
    key = new_key().text
    assert key[6:16] not in ask(service, key=key).text


@pytest.mark.parametrize("path", ["/", "/health", "/health?live"])
def test_the_banner_and_health_ignore_keys(service: Service, path: str) -> None:
    for url in (service.data_url, service.control_url):
        assert service.http.get(url + path).status_code == 200
        assert service.http.get(url + path, headers={"Authorization": "Bearer x"}).status_code == 200


@pytest.mark.parametrize("sent", ["req_abcdefgh", "req_01m7eb52mthfqpswx3vhzj6k99", "req_" + "A1" * 32])
def test_a_well_formed_request_id_of_the_clients_is_kept(service: Service, sent: str) -> None:
    for path, key in (("/", None), ("/health", None), ("/nope", None), ("/v1/query", ""), ("/v1/query", None)):
        method = "POST" if path == "/v1/query" else "GET"
        response = service.call(method, path, key=key, headers={"X-Request-Id": sent})
        assert response.headers["x-request-id"] == response.json()["request_id"] == sent


@pytest.mark.parametrize("sent", ["", "x", "req_", "req_short", "req_" + "a" * 65, "req_abc-defgh", "txn_abcdefgh"])
def test_any_other_request_id_is_replaced_by_one_of_ours(service: Service, sent: str) -> None:
    response = service.call("POST", "/v1/query", json={"sql": "select 1"}, headers={"X-Request-Id": sent})
    assert re.fullmatch(r"req_[0-9a-f]{32}", response.json()["request_id"])
    assert response.headers["x-request-id"] == response.json()["request_id"]


def test_every_request_has_an_id_of_its_own_and_they_sort_by_time(service: Service) -> None:
    ids = [service.query("select 1")["request_id"] for _ in range(5)]
    assert len(set(ids)) == 5
    assert [each[:13] for each in ids] == sorted(each[:13] for each in ids)


def test_a_key_of_an_organization_without_a_database_has_nothing_to_query(service: Service) -> None:
    name = f"empty-{secrets.token_hex(4)}"
    service.customers.add_organization(name, "free")
    key = service.new_key("write", org=name)
    error_of(ask(service, key=key), 404, "database_not_found")
