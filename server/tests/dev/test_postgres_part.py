"""PostgreSQL as a part of `dev`, without the other parts."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from plainsql_server.dev.binaries import find_binaries, made_reachable
from plainsql_server.dev.cluster import PORT, SUPERUSER, Cluster, place_cluster
from plainsql_server.dev.folder import Folder, RunState
from plainsql_server.dev.postgres import Postgres
from plainsql_server.dev.processes import Launcher, running_inside
from server.tests.postgres import MAJOR
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

_LIMIT_S = 30.0


@pytest.fixture
def cluster(state: Path) -> Cluster:
    return place_cluster(Folder(state), RunState())


@pytest.fixture
def part(state: Path, cluster: Cluster) -> Iterator[Postgres]:
    """The server, running. Nothing follows its stop plan but the test."""
    binaries = made_reachable(find_binaries(MAJOR), cluster.account, cluster.home)
    part = Postgres(Launcher(Folder(state), RunState()), cluster, binaries)
    part.start()
    try:
        wait_for(part.ready, _LIMIT_S, lambda: part.child.log_tail() if part.child else "")
        yield part
    finally:
        part.send(signal.SIGKILL)
        wait_for(part.gone, _LIMIT_S, lambda: running_inside(cluster.home, "postgres"))


def test_after_the_server_died_the_first_signal_kills_a_statement_that_does_not_notice(
    part: Postgres, cluster: Cluster
) -> None:
    child = part.child
    assert child is not None
    host = str(cluster.socket_directory)
    with closing(psycopg.connect(host=host, port=PORT, user=SUPERUSER, dbname="postgres")) as busy:
        busy.pgconn.send_query(b"do $$ begin loop end loop; end $$")
        os.kill(child.pid, signal.SIGKILL)
        wait_for(child.exited, _LIMIT_S, lambda: "the server is still there")
        # The others notice that the server is gone.
        wait_for(
            lambda: running_inside(cluster.home, "postgres").keys() == {busy.info.backend_pid},
            _LIMIT_S,
            lambda: running_inside(cluster.home, "postgres"),
        )
        assert not part.gone()
        # No other signal follows here. In a stop plan, the one that kills comes many seconds later.
        part.send(signal.SIGINT)
        wait_for(part.gone, _LIMIT_S, lambda: running_inside(cluster.home, "postgres"))
