"""What a tenant can see of its cell: the table in docs/security.md, each query of it run by a tenant over HTTPS."""

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from plainsql_server.dev.certificates import ensure_certificates
from server.tests.cell import new_customer
from server.tests.customers import Customers
from server.tests.load import running_node
from server.tests.postgres import Postgres
from server.tests.tls_cell import running_tls_cell

PAGE = Path(__file__).resolve().parents[3] / "docs/security.md"
_SECTION = re.compile(r"^## What a tenant can see$(.*?)^## ", re.M | re.S)
_ROW = re.compile(r"^\| (?P<what>[^|]+) \| `(?P<sql>[^`]+)` \| (?P<seen>refused|nothing|shown) \| .* \|$", re.M)


@dataclass(frozen=True)
class Fact:
    """A row of the table: what a query of a tenant's gives."""

    what: str
    sql: str
    seen: str


def documented() -> list[Fact]:
    section = _SECTION.search(PAGE.read_text())
    assert section is not None
    # In a table, Markdown needs a backslash before a bar.
    return [Fact(row["what"], row["sql"].replace("\\|", "|"), row["seen"]) for row in _ROW.finditer(section[1])]


@pytest.fixture(scope="module")
def tenant(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of one of two organizations, on a cell with TLS and certificates, as it is in production."""
    folder = tmp_path_factory.mktemp("tls")
    files = ensure_certificates(tmp_path_factory.mktemp("https"))
    tls = {"tls_cert_file": files.cert_file, "tls_key_file": files.key_file}
    with postgres.swept(), running_tls_cell(folder) as cell:
        directory = postgres.fresh_directory()
        keys = [new_customer(directory, cell.conninfo("admin")), second_customer(directory)]
        with running_node(directory, **tls) as node:
            trust = ssl.create_default_context(cafile=str(files.ca_file))
            with httpx.Client(base_url=f"https://localhost:{node.port}", verify=trust) as client:
                for key in keys:
                    # Each has a session on the cell, so that the other one could see it.
                    client.headers["Authorization"] = f"Bearer {key}"
                    assert seen(client, "select 1") == "shown"
                yield client


def second_customer(directory_dsn: str) -> str:
    customers = Customers(directory_dsn)
    customers.add_organization("other")
    customers.add_database("main", "other")
    return customers.new_key("write", organization="other")


def seen(client: httpx.Client, sql: str) -> str:
    """Whether a query is refused, gives nothing (no row, NULL or 0), or shows something."""
    answer = client.post("/v1/query", json={"sql": sql}).json()
    if not answer["success"]:
        assert answer["error"]["sqlstate"] == "42501", (sql, answer["error"])
        return "refused"
    values = [value for row in answer["rows"] for value in row.values()]
    return "shown" if any(value not in (None, 0, "0", "") for value in values) else "nothing"


def test_the_table_says_what_a_tenant_can_see(tenant: httpx.Client) -> None:
    facts = documented()
    assert len(facts) > 30
    wrong = {fact.what: (fact.seen, found) for fact in facts if (found := seen(tenant, fact.sql)) != fact.seen}
    assert wrong == {}


def test_every_row_of_the_table_is_read() -> None:
    section = _SECTION.search(PAGE.read_text())
    assert section is not None
    rows = [line for line in section[1].splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == len(documented())
