"""Heads of requests, as the parser reports them."""

import pytest

from plainsql_server.http.server.request_head import Head

pytestmark = pytest.mark.unit


def test_repeated_accept_headers_count_together() -> None:
    head = Head()
    for value in (b"application/json;q=0.5", b"text/csv"):
        head.add_header(b"Accept", value)
    assert head.headers[b"accept"] == b"application/json;q=0.5, text/csv"


def test_the_last_of_repeated_headers_other_than_accept_counts() -> None:
    head = Head()
    for value in (b"first", b"second"):
        head.add_header(b"X-Database", value)
    assert head.headers[b"x-database"] == b"second"
