"""A pytest plugin: a test's teardown goes on after an exception that would end it.

pytest goes on after an `Exception`, but not after another one, such as `asyncio.CancelledError`. The fixtures that it
has not finished then stay as they are for all later tests of the process: what `monkeypatch` replaced stays replaced.
"""

from collections.abc import Generator

import pytest
from _pytest.outcomes import OutcomeException


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    try:
        yield
    except (Exception, OutcomeException, KeyboardInterrupt):
        raise
    except BaseException as error:
        _finish_fixtures(item)
        item.session._setupstate.teardown_exact(nextitem)
        raise RuntimeError(f"{type(error).__name__} ended the teardown of {item.name}") from error


def _finish_fixtures(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function):
        for fixture in reversed(item._request._fixture_defs.values()):
            if fixture.scope == "function":
                fixture.finish(item._request)  # type: ignore[arg-type]  # Only its node is used.
