"""`python -m bench databases`, in short: a few databases of two organizations and one round of a second each.

What it says about speed means nothing here; that every column is filled, and from the right processes, does.
"""

import re
import time
from collections.abc import Iterator

import pytest

from bench import databases, upkeep
from bench.spreads import Load, open_connections, opened_connections
from bench.stack import Stack, described_stack
from bench.tenants import Tenant, fill, make, new_tenants
from server.tests import programs
from server.tests.alias import found_nginx
from server.tests.service import running_service

DATABASES = 3
CLIENTS = 4


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    programs.need("wrk")
    found_nginx()
    with running_service("--no-tls", workers=2) as service:
        yield described_stack(service.dev, range(0))


@pytest.fixture(scope="module")
def tenants(stack: Stack) -> list[Tenant]:
    tenants = new_tenants(stack, 2, DATABASES, "dedicated")
    made = make(stack, tenants)
    assert made.databases == DATABASES
    assert made.cpu_ms > 0
    assert 0 < made.slowest_per_second <= made.per_second
    return tenants


@pytest.fixture(scope="module")
def load(stack: Stack, tenants: list[Tenant]) -> Load:
    assert stack.alias_url is not None
    fill(stack.alias_url, tenants)
    return Load(stack, stack.alias_url, tenants, CLIENTS)


def test_organizations_share_the_databases_round_robin(tenants: list[Tenant]) -> None:
    assert [tenant.database for tenant in tenants] == ["bench0", "bench1", "bench2"]
    assert tenants[0].api_key == tenants[2].api_key != tenants[1].api_key


def test_every_database_is_asked_before_a_load(stack: Stack, load: Load) -> None:
    began = stack.psql("select clock_timestamp()", "postgres")
    load.touch(DATABASES)
    since = f"application_name = 'plainsql' and query_start > '{began}'"
    assert stack.psql(f"select count(distinct datname) from pg_stat_activity where {since}", "postgres") == "3"
    load.touch(1)
    assert open_connections(stack) >= DATABASES


def test_every_column_of_the_table_is_filled(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    found = databases.measure(load, rounds=1, seconds=1)
    assert [str(each.spread) for each in found] == ["1", "3, Zipf", "3, uniform"]
    for each in found:
        (figures,) = each.rounds
        assert figures.per_second > 0
        assert 0 < figures.median_ms <= figures.p99_ms
        assert min(figures.data_us, figures.alias_us, figures.engine_us) > 0
        assert figures.all_us >= figures.data_us + figures.alias_us + figures.engine_us
        assert figures.opened_per_s >= 0
        assert figures.connections >= each.spread.databases
        assert min(figures.data_mb, figures.cell_mb) > 0
    assert databases.print_found(found, has_bars=True) == []
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("databases")
    assert [line.split("  ")[0] for line in lines] == ["1", "3, Zipf", "3, uniform"]
    assert all(line.endswith("no bars") for line in lines)


def test_a_connection_is_counted_when_it_is_opened(stack: Stack) -> None:
    before = opened_connections(stack)
    # One to a customer's database, which counts, and one to another one, which does not.
    stack.psql("select 1")
    stack.psql("select 1", "postgres")
    assert opened_connections(stack) == before + 1


def test_upkeep_is_timed_with_what_the_commands_say(
    stack: Stack, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    upkeep.show(stack)
    upkeep.show_start(time.monotonic(), stack, load.tenants[0])
    doctor, backups, start = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"doctor: \d+\.\d s: \d+ good, .*", doctor)
    # The directory, the service's own database, and those of the load.
    assert re.fullmatch(rf"backups: \d+\.\d s: {2 + DATABASES} of {2 + DATABASES} backed up; 0 old .*", backups)
    assert re.fullmatch(r"start: ready after 0\.\d s, the first answer after \d+\.\d s", start)
