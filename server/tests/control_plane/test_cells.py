"""Rules about cells."""

from dataclasses import replace

import psycopg
import pytest

from plainsql_server.control_plane import cells
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, RequestError
from plainsql_server.directory.cells import CellChange, CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin import provisioning
from server.tests.postgres import SUPERUSER, Postgres


async def test_an_added_cell_is_active_and_listed(directory: Directory, cell: CellRecord) -> None:
    assert cell.state is CellState.ACTIVE
    assert await cells.list_(directory) == [cell]


async def test_a_taken_name_is_a_conflict(directory: Directory, cell: CellRecord, postgres: Postgres) -> None:
    with pytest.raises(ConflictError):
        await cells.add(directory, "local", postgres.conninfo, SUPERUSER)


async def test_an_unavailable_cell_is_not_added(directory: Directory) -> None:
    with pytest.raises(EngineError):
        await cells.add(directory, "local", "host=/nowhere", SUPERUSER)
    assert await cells.list_(directory) == []


@pytest.mark.parametrize(
    "conninfo",
    [
        "host=x user=y", "host=x dbname=y", "host=x password=y", "no keywords", "speed=9",
        "host=x,y", "host=x,y target_session_attrs=any", "host=x,y,z port=1,2 target_session_attrs=primary",
    ],
)  # fmt: skip
async def test_an_invalid_connection_string_of_a_cell_is_rejected(directory: Directory, conninfo: str) -> None:
    with pytest.raises(RequestError) as failure:
        await cells.add(directory, "local", conninfo, SUPERUSER)
    assert failure.value.code == "invalid_conninfo"


async def test_an_engine_below_the_floor_is_refused(
    directory: Directory, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provisioning, "VERSION_FLOOR", {15: 99})
    with pytest.raises(RequestError, match=r"15\.99 is the oldest") as failure:
        await cells.add(directory, "local", postgres.conninfo, SUPERUSER)
    assert failure.value.code == "engine_version_refused"
    monkeypatch.setattr(provisioning, "VERSION_FLOOR", {14: 1})
    with pytest.raises(RequestError, match="supported are 14"):
        await cells.add(directory, "local", postgres.conninfo, SUPERUSER)


async def test_an_admin_role_that_cannot_close_the_cell_is_refused(directory: Directory, postgres: Postgres) -> None:
    with postgres.connect() as admin:
        admin.execute("CREATE ROLE weak LOGIN CREATEDB CREATEROLE")
        admin.execute("GRANT CONNECT ON DATABASE postgres TO weak")
    try:
        with pytest.raises(RequestError) as failure:
            await cells.add(directory, "local", postgres.conninfo, "weak")
        assert failure.value.code == "admin_role_too_weak"
    finally:
        with postgres.connect() as admin:
            admin.execute("REVOKE CONNECT ON DATABASE postgres FROM weak")
            admin.execute("DROP ROLE weak")
    assert await cells.list_(directory) == []


async def test_moving_an_unknown_cell_is_refused(directory: Directory, postgres: Postgres) -> None:
    with pytest.raises(AccessError):
        await cells.set_address(directory, "nowhere", postgres.conninfo, SUPERUSER)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (CellChange(state=CellState.FULL, conninfo="host=/nowhere"), EngineError),
        (CellChange(state=CellState.FULL, conninfo="host=x user=y"), RequestError),
        (CellChange(state=CellState.FULL, max_databases=7, tiers=["free"], admin_role="nobody"), EngineError),
    ],
)
async def test_of_several_changes_none_is_made_if_one_is_refused(
    directory: Directory, dsn: str, cell: CellRecord, change: CellChange, refusal: type[Exception]
) -> None:
    await cells.change(directory, "local", CellChange(state=CellState.DRAINING))
    before, audited = await cells.get(directory, "local"), audit_of(dsn)
    for each in (replace(change, state=CellState.ACTIVE), replace(change, state=None)):
        with pytest.raises(refusal):
            await cells.change(directory, "local", each)
    # A draining cell can't become full. That is found before anything is prepared at the new address.
    with pytest.raises((ConflictError, RequestError)):
        await cells.change(directory, "local", change)
    assert await cells.get(directory, "local") == before
    assert audit_of(dsn) == audited


async def test_a_change_that_another_one_overtakes_is_not_made(
    directory: Directory, dsn: str, cell: CellRecord, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def overtake(conninfo: str, admin_role: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE cells SET state = 'draining'")

    monkeypatch.setattr(provisioning, "prepare_cell", overtake)
    change = CellChange(state=CellState.FULL, conninfo=f"{postgres.conninfo} ", max_databases=7, tiers=["free"])
    with pytest.raises(ConflictError, match="is draining and can't become full"):
        await cells.change(directory, "local", change)
    assert await cells.get(directory, "local") == replace(cell, state=CellState.DRAINING)
    assert audit_of(dsn) == ["cell.add"]


async def test_several_changes_are_made_together(
    directory: Directory, dsn: str, cell: CellRecord, postgres: Postgres
) -> None:
    conninfo = f"{postgres.conninfo} connect_timeout=9"
    change = CellChange(state=CellState.FULL, conninfo=conninfo, max_databases=7, tiers=["free"])
    changed = await cells.change(directory, "local", change)
    assert changed == replace(cell, state=CellState.FULL, conninfo=conninfo, max_databases=7, tiers=("free",))
    assert await cells.get(directory, "local") == changed
    assert audit_of(dsn) == ["cell.add", "cell.full", "cell.move", "cell.share"]


def audit_of(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [action for (action,) in connection.execute("SELECT action FROM audit ORDER BY action")]
