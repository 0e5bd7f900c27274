"""`plainsql databases branch` and `diff`, with a branch of a database with objects of every kind."""

import json
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from client.tests.test_command import run
from plainsql.command.branches.restoring import progress_line
from plainsql.control import Restore
from server.tests.service import Service

SCHEMA = [
    "create table t (a int primary key, b text not null default 'x', check (a > 0))",
    "create table parted (a int) partition by range (a)",
    "create table parted_low partition of parted for values from (0) to (9)",
    "create index on t (b)", "create view v as select a from t", "create materialized view m as select b from t",
    "create function f(a int) returns int language sql as 'select a'", "create type mood as enum ('good', 'bad')",
    "create domain positive as int check (value > 0)", "create type pair as (a int, b int)",
    "create function g() returns trigger language plpgsql as $$ begin return new; end $$",
    "create trigger g before insert on t for each row execute function g()", "alter table t enable row level security",
    "create policy p on t using (a > 1)", "create sequence s", "create schema more", "create extension citext",
    "create aggregate total (int) (sfunc = int4pl, stype = int)", "create type span as range (subtype = int)",
]  # fmt: skip


@pytest.fixture
def names(service: Service) -> Iterator[tuple[str, str]]:
    parent = f"p{uuid4().hex[:8]}"
    branch = f"{parent}-test"
    assert run(service, "databases", "create", parent).returncode == 0
    for statement in SCHEMA:
        assert run(service, "--database", parent, "sql", statement).returncode == 0, statement
    made = run(service, "databases", "branch", parent, branch, "--expires-at", "2099-01-01T00:00:00Z")
    assert (made.returncode, made.stdout[:3]) == (0, "db_"), made.stderr
    yield parent, branch
    for name in (branch, parent):
        run(service, "databases", "delete", name, "--for-good", "--yes")


def test_a_branch_differs_from_its_parent_by_what_was_changed_since(service: Service, names: tuple[str, str]) -> None:
    _, branch = names
    same = run(service, "databases", "diff", branch, "-o", "json")
    assert json.loads(same.stdout) == [], same.stderr
    for statement in (
        "alter table t add column c int", "alter table t alter column b set default 'y'", "drop view v",
        "create function f(a text) returns text language sql as 'select a'", "alter type mood add value 'odd'",
        "alter table t disable row level security", "alter policy p on t using (a > 2)",
    ):  # fmt: skip
        done = run(service, "--database", branch, "sql", statement)
        assert done.returncode == 0, done.stderr
    changes = json.loads(run(service, "databases", "diff", branch, "-o", "json").stdout)
    assert [(each["change"], each["kind"], each["name"]) for each in changes] == [
        ("changed", "column", "public.t.b"),
        ("added", "column", "public.t.c"),
        ("added", "function", "public.f(a text)"),
        ("changed", "policy", "public.t.p"),
        ("changed", "table", "public.t"),
        ("changed", "type", "public.mood"),
        ("removed", "view", "public.v"),
    ]
    assert (changes[0]["before"], changes[0]["after"]) == (
        "text not null default 'x'::text", "text not null default 'y'::text",
    )  # fmt: skip
    assert json.loads(run(service, "databases", "diff", branch, "--with", branch, "-o", "json").stdout) == []


def test_the_progress_of_a_restore_is_what_is_known_of_it() -> None:
    restore = Restore("rst_1", "waiting", "db_1", None, "2027-01-31T12:30:00Z", "2027-01-31T12:45:00Z")
    assert progress_line(restore) == "waiting"
    assert progress_line(replace(restore, step="safe snapshot")) == "safe snapshot"
    replaying = replace(restore, step="replay", done_bytes=1_048_576, total_bytes=16_777_216)
    assert progress_line(replaying) == "replay, 1.0 MB of 16 MB"
    assert progress_line(replace(replaying, seconds_left=75)) == "replay, 1.0 MB of 16 MB, 1 min 15 s left"


def test_branches_are_listed_with_their_parent_and_expiry(service: Service, names: tuple[str, str]) -> None:
    parent, branch = names
    listed = {each["name"]: each for each in json.loads(run(service, "databases", "-o", "json").stdout)}
    assert (listed[branch]["branch_of"], listed[branch]["expires_at"]) == (parent, "2099-01-01T00:00:00Z")
    assert (listed[parent]["branch_of"], listed[parent]["expires_at"]) == (None, None)
    refused = run(service, "databases", "diff", parent)
    assert (refused.returncode, "isn't a branch" in refused.stderr) == (1, True)
