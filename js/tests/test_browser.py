"""The client in a page of another origin, in headless Chromium."""

import json

import pytest

from js.tests.programs import node
from server.tests.page import empty_page
from server.tests.service import Service

pytestmark = pytest.mark.browser


def test_a_page_uses_the_client_with_sessions_that_end(service: Service, js_package: None) -> None:
    with empty_page() as page_url:
        seen = json.loads(node("tests/browser.mjs", page_url, service=service))
    assert seen == {
        "origin": page_url,
        "first": [{"body": "milk", "same": True}],
        "big": "9007199254740993",
        "body": "x",
        "afterSession": [{"one": 1}],
        "sessions": 2,
        "error": {"name": "PlainSQLError", "code": "undefined_table", "position": 15, "outcome": "rolled_back"},
        "rows": [1],
        # A browser does not say whether anything was sent.
        "unreachable": {"code": "network_error", "outcome": "unknown"},
    }
