"""Sessions as they grow old: when they end, and how soon that is noticed.

Owns what several files ask about a session's time. Nothing of the service is imported.
"""

import time
from datetime import datetime, timedelta
from typing import Any

from server.tests.end_to_end.control import query
from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service

DAY = timedelta(hours=24)
MINUTE = timedelta(minutes=1)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def age(service: Service, session: dict[str, Any], by: timedelta) -> None:
    """Makes a session older: what a clock would do to it."""
    with service.engine("plainsql_directory") as directory:
        directory.execute(
            "UPDATE sessions SET created_at = created_at - %s, expires_at = expires_at - %s WHERE id = %s",
            (by, by, session["id"]),
        )


def wait_until_refused(service: Service, secret: str) -> float:
    """The seconds until the data plane refuses it."""
    began_s = time.monotonic()
    while query(service, secret).status_code == 200:
        assert time.monotonic() - began_s < 5
        time.sleep(0.005)
    error_of(query(service, secret), 401, "unauthenticated")
    return time.monotonic() - began_s
