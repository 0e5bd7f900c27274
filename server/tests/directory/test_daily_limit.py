"""The branches that an organization may make in 24 hours: which of them count, also if many are made at once."""

import asyncio

import pytest

from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import LimitError
from plainsql_server.directory import databases
from plainsql_server.directory.branching import branches
from plainsql_server.directory.branching.daily_limit import DailyLimit
from plainsql_server.directory.databases import DatabaseRecord
from server.tests.directory.test_restores import World, world

_LIMIT = DailyLimit("free", 3)


async def made_branch(made: World, name: str, parent: DatabaseRecord, organization_id: str = "") -> DatabaseRecord:
    return await made.stored(name, organization_id, branch_of=parent.id, as_draft=True, branches=_LIMIT)


async def test_concurrent_branches_of_an_organization_do_not_pass_its_limit(dsn: str) -> None:
    async with world(dsn) as made:
        parent = await made.database("main")
        making = (made_branch(made, f"branch-{number}", parent) for number in range(8))
        results = await asyncio.gather(*making, return_exceptions=True)
        assert sum(isinstance(each, DatabaseRecord) for each in results) == 3
        assert [each.code for each in results if isinstance(each, LimitError)] == ["branch_limit"] * 5
        assert made.ask("SELECT count(*) FROM databases WHERE branch_of IS NOT NULL") == [(3,)]


async def test_branches_that_were_deleted_or_failed_count_for_24_hours(dsn: str) -> None:
    async with world(dsn) as made:
        parent = await made.database("main")
        first, second, third = [await made_branch(made, name, parent) for name in ("first", "second", "third")]
        for each in (first, second, third):
            assert await branches.give_up(made.directory, each.id)
            assert await databases.set_deleted(made.directory, each.id, OPERATOR) is not None
        made.ask("UPDATE databases SET created_at = now() - interval '23 h 30 min' WHERE id = %s", second.id)
        with pytest.raises(LimitError, match="the free tier allows 3 new branches in 24 hours") as refusal:
            await made_branch(made, "fourth", parent)
        assert (refusal.value.code, refusal.value.retryable) == ("branch_limit", True)
        assert 1_500_000 < (refusal.value.retry_after_ms or 0) <= 1_800_000
        made.ask("UPDATE databases SET created_at = now() - interval '24 h' WHERE id = %s", second.id)
        await made_branch(made, "fourth", parent)
        with pytest.raises(LimitError):
            await made_branch(made, "fifth", parent)


async def test_other_databases_and_others_branches_and_those_of_which_nothing_was_copied_do_not_count(dsn: str) -> None:
    async with world(dsn) as made:
        parent = await made.database("main")
        other = await made.organization()
        others = await made.database("main", other)
        for number in range(3):
            await made.database(f"empty-{number}")
            await made_branch(made, f"branch-{number}", others, other)
            withdrawn = await made_branch(made, f"withdrawn-{number}", parent)
            assert await branches.withdraw(made.directory, withdrawn.id)
        for number in range(3):
            await made_branch(made, f"branch-{number}", parent)
        # Databases that are not branches have another limit.
        await made.stored("more", branches=_LIMIT)
