"""A pytest plugin: a test's teardown goes on after an exception that would end it.

pytest goes on after an `Exception`, but not after another one, such as `asyncio.CancelledError`. The fixtures that it
has not finished then stay as they are for all later tests of the process: what `monkeypatch` replaced stays replaced.
"""

from collections.abc import Callable, Generator, Iterator
from functools import partial

import pytest
from _pytest.outcomes import OutcomeException


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    try:
        yield
    except (Exception, OutcomeException, KeyboardInterrupt):
        raise
    except BaseException as error:
        for other in _go_on(item, nextitem):
            error.add_note(f"Later in the teardown: {other!r}")
        raise RuntimeError(f"{type(error).__name__} ended the teardown of {item.name}") from error


def _go_on(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[BaseException]:
    """Finishes what is left of the test's fixtures. The exceptions on the way."""
    scopes = {"function"}
    if nextitem is None or nextitem.path != item.path:
        scopes |= {"class", "module", "package"}
    fixtures = item._request._fixture_defs.values() if isinstance(item, pytest.Function) else ()
    for fixture in [each for each in fixtures if each.scope in scopes]:
        yield from _raised_by(partial(fixture.finish, item._request))  # type: ignore[attr-defined]  # private
    # Each call removes a node before it raises.
    while failures := list(_raised_by(partial(item.session._setupstate.teardown_exact, nextitem))):
        yield from failures


def _raised_by(work: Callable[[], None]) -> Iterator[BaseException]:
    try:
        work()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        yield error
