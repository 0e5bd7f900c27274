"""When a database of a lost cell may be used elsewhere."""

import asyncio
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import lost_cells
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.operator import lost_cells as stored
from plainsql_server.directory.operator.lost_cells import LostCell

_LOSE = "UPDATE cells SET state = 'lost', lost_since = now() - interval '1 hour' RETURNING lost_since"
_ADD = "INSERT INTO data_processes (id, host, pid, seen_at) VALUES ('proc_1', 'host', 1, now() - interval '2 hours')"
_REPORT = "UPDATE data_processes SET seen_at = now()"


async def test_a_live_process_that_has_not_reported_since_the_loss_is_waited_for(
    dsn: str, directory: Directory, database: DatabaseRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[LostCell | None] = []
    look_at = stored.look_at

    async def counted(*arguments: Any, **options: Any) -> LostCell | None:
        looks.append(await look_at(*arguments, **options))
        return looks[-1]

    monkeypatch.setattr(stored, "look_at", counted)
    monkeypatch.setattr(lost_cells, "_LOOK_EVERY_S", 0.01)
    # The process counts as live, however long the test takes.
    monkeypatch.setattr(stored, "UNSEEN_S", 86_400.0)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(_ADD)
        row = admin.execute(_LOSE).fetchone()
        assert row is not None
        waiting = asyncio.create_task(lost_cells.wait_until_unused(directory, database, row[0], applied_s=0))
        # Every request has ended long ago, by the clock.
        while len(looks) < 3 and not waiting.done():  # noqa: ASYNC110  # another task looks
            await asyncio.sleep(0.01)
        assert not waiting.done()
        assert [each.behind for each in looks if each is not None] == [1] * len(looks)
        admin.execute(_REPORT)
        await waiting
