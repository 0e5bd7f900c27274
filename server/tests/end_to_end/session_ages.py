"""Sessions as they grow old: when they end, and how soon that is noticed.

Owns what several files ask about a session's time. Nothing of the service is imported.
"""

from datetime import datetime, timedelta
from typing import Any

from server.tests.end_to_end.control import call, query
from server.tests.end_to_end.error_shape import error_of
from server.tests.processes import wait_for
from server.tests.service import Service

DAY = timedelta(hours=24)
MINUTE = timedelta(minutes=1)


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def age(service: Service, session: dict[str, Any], by: timedelta) -> None:
    """Makes a session older: what a clock would do to it."""
    with service.engine("plainsql_directory") as directory:
        directory.execute(
            "UPDATE sessions SET created_at = created_at - %s, expires_at = expires_at - %s WHERE id = %s",
            (by, by, session["id"]),
        )


def wait_until_refused(service: Service, secret: str, limit_s: float = 10) -> None:
    """Returns when both planes refuse it; how soon that is, `test_revocation.py` says."""
    wait_for(lambda: query(service, secret).status_code != 200, limit_s, lambda: "it is still accepted")
    current = "/v1/organizations/current"
    wait_for(lambda: call(service, "GET", current, key=secret).status_code == 401, limit_s, lambda: "still accepted")
    error_of(query(service, secret), 401, "unauthenticated")
