"""Counts the requests that clients send, so that tests can say what a unit of work costs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plainsql.transport.driver import Driver
from plainsql.transport.wire import AddressBook, Response, Send


@contextmanager
def requests_made() -> Iterator[list[str]]:
    """The targets of the requests that all clients of this process send in the block."""
    made: list[str] = []
    perform: Any = Driver._perform

    async def counted(self: Driver, effect: Send, addresses: AddressBook) -> Response:
        made.append(effect.request.target)
        response: Response = await perform(self, effect, addresses)
        return response

    Driver._perform = counted  # type: ignore[method-assign]
    try:
        yield made
    finally:
        Driver._perform = perform  # type: ignore[method-assign]
