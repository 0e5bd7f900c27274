"""Rules about cells."""

import pytest

from plainsql_server.control_plane import cells
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, RequestError
from plainsql_server.directory.cells import CellRecord, CellState
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
