"""Hermitage: ten anomalies, each tried on the service, and each shown to happen where nobody prevents it."""

from collections.abc import Iterator

import psycopg
import pytest

from server.tests.cell import Cell, running_cell
from server.tests.consistency.hermitage import CASES, SETUP, SINGLE_STATEMENTS, Case
from server.tests.consistency.stage import Played, play
from server.tests.consistency.transports import DirectTransport, HttpTransport
from server.tests.load import Node, running_node

EVERY_CASE = {**CASES, **SINGLE_STATEMENTS}


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    with running_cell() as running:
        yield running


@pytest.fixture(scope="module")
def node(cell: Cell) -> Iterator[Node]:
    with running_node(cell.directory_dsn, cell_max_connections=16) as running:
        yield running


@pytest.fixture
def dsn(cell: Cell) -> str:
    """The customer's database with the two rows in it."""
    dsn = cell.customer_dsn()
    with psycopg.connect(dsn, autocommit=True) as admin:
        for statement in SETUP:
            admin.execute(statement.encode())
        admin.execute("grant all on test to public")
    return dsn


def state_of(dsn: str) -> dict[int, int]:
    with psycopg.connect(dsn) as admin:
        return dict(admin.execute("select id, value from test").fetchall())


def describe(case: Case, played: list[Played], state: dict[int, int]) -> str:
    pairs = zip(case.scripts, played, strict=True)
    lines = [f"{script}: {each.reply.code or 'ok'} {each.steps}" for script, each in pairs]
    return "\n".join([*lines, str(state)])


def test_there_are_ten_anomaly_cases() -> None:
    assert len(CASES) == 10


@pytest.mark.parametrize("name", EVERY_CASE)
async def test_the_anomaly_happens_where_it_is_allowed(dsn: str, name: str) -> None:
    case = EVERY_CASE[name]
    transports = [DirectTransport(dsn, case.allowed_by) for _ in case.scripts]
    played = await play(dsn, transports, case.scripts, case.schedule)
    state = state_of(dsn)
    assert case.shown(played, state), describe(case, played, state)


@pytest.mark.parametrize("max_retries", [0, 10], ids=["without retries", "with retries"])
@pytest.mark.parametrize("name", EVERY_CASE)
async def test_the_service_prevents_the_anomaly(cell: Cell, node: Node, dsn: str, name: str, max_retries: int) -> None:
    case = EVERY_CASE[name]
    transports = [HttpTransport(node.client(cell.key), max_retries=max_retries) for _ in case.scripts]
    played = await play(dsn, transports, case.scripts, case.schedule)
    state = state_of(dsn)
    assert not case.shown(played, state), describe(case, played, state)
    # Preventing everything by doing nothing would be easy.
    assert any(each.committed for each in played), describe(case, played, state)
    if max_retries:
        failed = [each.reply.code for each in played if not each.committed]
        assert failed == (["division_by_zero"] if "select 1/0" in case.scripts[0] else []), describe(
            case, played, state
        )
