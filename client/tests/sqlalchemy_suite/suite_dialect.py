"""SQLAlchemy's dialect compliance suite, on the real service."""

from typing import Any

from sqlalchemy.testing import suite
from sqlalchemy.testing.suite import *  # noqa: F403


class ServerSideCursorsTest(suite.ServerSideCursorsTest):  # type: ignore[no-redef]  # instead of the suite's
    """The suite's, which knows certain drivers' cursors only, and now ours."""

    def _is_server_side(self, cursor: Any) -> bool:
        return cursor._stream is not None
