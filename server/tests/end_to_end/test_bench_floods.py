"""`python -m bench floods`, in short: a quiet customer beside a flood of one database and of several, over HTTPS.

`make neighbours` measures 200 databases and compares the 99th percentile, for which this is too short.
"""

from collections.abc import Iterator

import pytest

from bench import bars, floods
from bench.spreads import Load
from bench.stack import Stack, described_stack
from bench.tenants import Tenant, fill, make, new_tenants
from server.tests import programs
from server.tests.alias import found_nginx
from server.tests.load import STALL_S
from server.tests.service import running_service

pytestmark = pytest.mark.timing

DATABASES = 10
CLIENTS = 32


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    programs.need("wrk")
    found_nginx()
    with running_service(workers=2) as service:
        yield described_stack(service.dev, range(0))


@pytest.fixture(scope="module")
def tenants(stack: Stack) -> list[Tenant]:
    """The quiet one, and those of one organization that are flooded."""
    tenants = [*new_tenants(stack, 1, 1, "dedicated", "quiet"), *new_tenants(stack, 1, DATABASES, "dedicated", "flood")]
    make(stack, tenants)
    assert stack.alias_url is not None
    fill(stack.alias_url, tenants)
    return tenants


def test_a_flood_leaves_a_quiet_customer_its_connection(
    stack: Stack, tenants: list[Tenant], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stack.alias_url is not None
    assert stack.alias_url.startswith("https:")
    quiet, *flooded = tenants
    assert quiet.api_key != flooded[0].api_key
    found = floods.measure(Load(stack, stack.alias_url, flooded, CLIENTS), quiet, rounds=1, seconds=2)
    assert list(found) == ["none", "1 database", f"{DATABASES} databases"]
    floods.print_found(found)
    lines = capsys.readouterr().out.splitlines()
    print("\n".join(lines))
    assert [line.split("  ")[0] for line in lines] == ["flood", *found]
    for name, (felt,) in found.items():
        assert 0 < felt.p50_ms <= felt.p99_ms
        assert felt.longest_wait_ms > 0
        assert (felt.flood_per_s > 100) == (name != "none"), "the flood was none"
        figures = floods.figures([felt], found["none"])
        # `make neighbours` holds the longest wait against its bar; here any stall of the machine would exceed that.
        assert bars.missed(figures, {bars.FAILED: bars.FLOOD_BARS[bars.FAILED]}) == []
        assert felt.longest_wait_ms < 1000 * (1 + STALL_S)


def test_a_figure_that_misses_its_bar_is_named() -> None:
    alone = floods.Felt(1.0, 2.0, 0.5, 0, 0.0, 0.0)
    worse = floods.Felt(1.0, 6.1, 100.5, 1, 1_000.0, 0.0)
    missed = floods.print_found({"none": [alone], "1 database": [worse]})
    assert missed == ["times alone's p99 3.05 (3)", "longest wait ms 100.50 (100)", "failed 1.00 (0)"]
    assert floods.print_found({"none": [alone], "1 database": [alone]}) == []
