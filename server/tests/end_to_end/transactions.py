"""POST /v1/transaction as tests send it.

Owns the shape of the request. What the answer must be is each test's own business.
"""

import json
import secrets
from collections.abc import Mapping
from typing import Any

import httpx

from server.tests.service import Service

Sent = str | dict[str, Any]


def with_params(sql: str, *params: Any, **fields: Any) -> dict[str, Any]:
    """A statement with parameters, and what else belongs to it."""
    return {"sql": sql, "params": list(params), **fields}


def ref(path: str) -> dict[str, str]:
    return {"$ref": path}


def post(
    service: Service,
    *statements: Sent,
    key: str = "",
    idempotency_key: str = "",
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> httpx.Response:
    sent = dict(headers or {})
    if idempotency_key:
        sent["Idempotency-Key"] = idempotency_key
    body = {"statements": list(statements), **fields}
    return service.call("POST", "/v1/transaction", key=key, headers=sent, json=body)


def run(service: Service, *statements: Sent, **fields: Any) -> dict[str, Any]:
    """The answer to a transaction that must succeed. Numbers that JSON writes with a point are kept as text."""
    response = post(service, *statements, **fields)
    answer: dict[str, Any] = json.loads(response.content, parse_float=str)
    assert answer["success"], answer
    return answer


def last_row(service: Service, *statements: Sent, **fields: Any) -> Any:
    """The only row of the last result."""
    (row,) = run(service, *statements, **fields)["results"][-1]["rows"]
    return row


def fresh_table(service: Service, columns: str = "n int primary key", **fields: Any) -> str:
    """The name of a new table."""
    name = f"t_{secrets.token_hex(6)}"
    service.query(f"create table {name} ({columns})", **fields)
    return name


def numbers(service: Service, table: str, **fields: Any) -> list[int]:
    """What stands in the column n, in order."""
    return [row["n"] for row in service.query(f"select n from {table} order by n", **fields)["rows"]]
