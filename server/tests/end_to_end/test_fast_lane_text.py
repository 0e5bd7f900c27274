"""POST /query in the fast lane and on the ordinary path: the same answers."""

import pytest

from plainsql_server.dev.ports import free_port
from server.tests.end_to_end.fast_lane import assert_same, wires_of
from server.tests.end_to_end.wires import Wire, counted, kept_by_lane
from server.tests.load import Node, running_node
from server.tests.service import Service

pytestmark = pytest.mark.compiled

PATH = "/query"


@pytest.mark.parametrize("path", [PATH, f"{PATH}?row_format=array&max_rows=2"])
@pytest.mark.parametrize("content_type", ["text/plain", "text/plain; charset=utf-8", "application/json"])
def test_statements_sent_as_text_are_the_same(
    nodes: dict[str, Node], service: Service, path: str, content_type: str
) -> None:
    texts = [
        "select 1 as a", "select 2 as a, 'é' as b", "select g from generate_series(1, 50) g", "select 1/0",
        "select pg_sleep(0.04)::text as slept", "", "-- nothing", "begin", "select $1::int", "select 1; select 2",
        "copy item to stdout", "/*+ x */ select 1 as a", '{"sql":"select 1"}', "select '[1]' as a",
    ]  # fmt: skip
    with wires_of(nodes, service.api_key, "", path) as wires:
        for wire in wires.values():
            wire.content_type = content_type
        assert_same(wires, [text.encode() for text in texts])
        assert_same(wires, [b"select '\xff'", b"select '\0'", b"select 1 as \xc3\xa9"])


def test_the_lane_takes_them(service: Service) -> None:
    metrics_port = free_port()
    with running_node(service.directory_dsn, fast_lane="on", metrics_port=metrics_port) as node:
        wire = Wire(node.port, service.api_key, "", PATH, "text/plain")
        for number in range(50):
            assert b'"rows":[{"n":%d}]' % number in wire.query(b"select %d as n" % number)[1]
        wire.close()
        metrics = counted(metrics_port)
    assert kept_by_lane(metrics) >= 40
