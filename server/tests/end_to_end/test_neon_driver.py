"""The Neon serverless driver, unmodified from npm, over TLS: on Node, and in a page in Chromium."""

import base64
import hashlib
import json
import ssl
import subprocess
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from server.tests.neon_programs import LIMIT_S, given, run_program
from server.tests.page import READERS, empty_page
from server.tests.service import Service


def seen_in_page(service: Service) -> dict[str, Any]:
    """What the calls gave in a page of another origin."""
    settings = given(service) | {"spki": key_hash(service.data_url)}
    with empty_page() as page_url:
        command = ["node", str(READERS / "neon.mjs"), page_url, json.dumps(settings)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout.replace(settings["table"], "TABLE"))
    assert not [line for line in printed["console"] if "CORS" in line]
    seen: dict[str, Any] = printed["seen"]
    return seen


def key_hash(url: str) -> str:
    address = urlsplit(url)
    pem = ssl.get_server_certificate((address.hostname or "", address.port or 443))
    key = x509.load_pem_x509_certificate(pem.encode()).public_key()
    return base64.b64encode(
        hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    ).decode()


@pytest.fixture(scope="module", params=["Node", pytest.param("Chromium", marks=pytest.mark.browser)])
def seen(request: pytest.FixtureRequest, service: Service, neon_packages: None, npm_packages: None) -> dict[str, Any]:
    return run_program("driver", service) if request.param == "Node" else seen_in_page(service)


def error(seen: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = seen[name]["error"]
    assert found.pop("kind") == "NeonDbError"
    return found


def test_the_driver_sends_requests_to_sql_on_the_host_api(seen: dict[str, Any]) -> None:
    assert seen["default address"] == "https://api.plainsql.example/sql"


def test_values_of_every_type_come_back_as_they_were_sent(seen: dict[str, Any]) -> None:
    span = {"months": -10, "days": 3, "hours": -4, "minutes": -5, "seconds": -6, "milliseconds": -789}
    assert seen["inserted"] == [
        {
            "id": "9007199254740993",
            "amount": "1234567890123456.7890",
            "data": {"type": "Buffer", "data": [0, 92, 255]},
            "doc": {"a": [1, None, "x"]},
            "docb": {"b": {"c": 'é"\\'}},
            "numbers": [1, None, -3],
            "words": ["a,b", 'q"\\', None, ""],
            "at": "2026-11-14T22:15:31.244Z",
            "span": span,
            "yes": True,
            "id2": "8f14e45f-ceea-467f-a8a6-7c1b3a5d0e11",
            "ratio": 0.1,
            "nothing": None,
        }
    ]
    assert seen["template"] == [{"n": 42, "text": "é😀!", "at": "1970-01-01T00:00:00.000Z"}]
    assert seen["bytes"] == [{"data": {"type": "Buffer", "data": [0, 92, 255]}}]


def test_rows_come_as_arrays_or_with_all_that_is_known_of_them(seen: dict[str, Any]) -> None:
    assert seen["arrays"] == [[1, 2]]
    full = seen["full"]
    table = full["fields"][0]["tableID"]
    assert table > 16_384
    assert full == {
        "command": "SELECT", "rowCount": 1, "rowAsArray": False,
        "rows": [{"id": "9007199254740993", "amount": "1234567890123456.7890"}],
        "fields": [
            {"name": "id", "dataTypeID": 20, "tableID": table, "columnID": 1, "dataTypeSize": 8,
             "dataTypeModifier": -1, "format": "text"},
            {"name": "amount", "dataTypeID": 1700, "tableID": table, "columnID": 2, "dataTypeSize": -1,
             "dataTypeModifier": (20 << 16 | 4) + 4, "format": "text"},
        ],
    }  # fmt: skip
    assert seen["no rows"] == {"command": "CREATE", "rowCount": None, "rows": [], "fields": []}


def test_a_transaction_takes_effect_as_a_whole(seen: dict[str, Any]) -> None:
    assert seen["transaction"] == [[{"one": 1}], [{"yes": False}]]
    assert seen["arrays in a transaction"] == [[{"one": 1}], [[2]]]
    assert seen["empty transaction"] == []
    assert error(seen, "read-only")["code"] == "25006"
    assert error(seen, "rolled back")["code"] == "22012"
    assert seen["after that"] == [{"count": "1"}]


def test_conflicts_are_retried_and_else_reported(seen: dict[str, Any]) -> None:
    assert seen["conflicts"] == [{"n": 12}]
    conflict = error(seen, "conflict")
    assert (conflict["code"], conflict["message"]) == ("40001", "a conflict")
    assert conflict["where"].startswith("PL/pgSQL function")


def test_errors_have_the_fields_that_postgresql_gives(seen: dict[str, Any]) -> None:
    unknown = error(seen, "unknown column")
    assert unknown.pop("line").isdigit()
    assert unknown == {
        "message": 'column "nope" does not exist', "severity": "ERROR", "code": "42703", "position": "8",
        "file": "parse_relation.c", "routine": "errorMissingColumn",
    }  # fmt: skip
    syntax = error(seen, "syntax error")
    assert (syntax["code"], syntax["position"]) == ("42601", "1")
    duplicate = error(seen, "duplicate")
    fields = ("code", "schema", "table", "constraint", "detail")
    assert [duplicate[field] for field in fields] == [
        "23505", "public", "TABLE", "TABLE_pkey", "Key (id)=(9007199254740993) already exists."
    ]  # fmt: skip
    assert 'SQL statement "select 1/0"' in error(seen, "in a function")["where"]


def test_what_the_service_refuses_has_an_sqlstate(seen: dict[str, Any]) -> None:
    assert error(seen, "several statements")["code"] == "42601"
    assert error(seen, "transaction control")["code"] == "0A000"
    assert error(seen, "no such database")["code"] == "3D000"
    refused = error(seen, "bad key")
    assert (refused["code"], refused["severity"]) == ("28P01", "FATAL")
    assert refused["message"].startswith("password authentication failed")
    assert error(seen, "too large")["message"].startswith("Server error (HTTP status 507): {")


def test_the_key_may_be_a_token_beside_the_connection_string(seen: dict[str, Any]) -> None:
    assert seen["token"] == [{"two": 2}]
