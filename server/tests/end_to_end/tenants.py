"""Keys and organizations that several files need, made once for each service, because making one takes a second.

Owns their names. A test that changes one makes its own instead.
"""

from collections.abc import Callable
from pathlib import Path

from server.tests.service import Service

_made: dict[tuple[Path, str], str] = {}


def read_key(service: Service) -> str:
    """A key of the organization `dev` that may read."""
    return _once(service, "read", lambda: service.new_key("read"))


def second_database(service: Service) -> str:
    """The name of another database of the organization `dev`, which is not its default."""

    def make() -> str:
        service.customers.add_database("second")
        return "second"

    return _once(service, "second", make)


def free_key(service: Service) -> str:
    """A key of another organization, of the tier free, whose only database is `theirs`."""

    def make() -> str:
        service.customers.add_organization("other", "free")
        service.customers.add_database("theirs", "other")
        return service.new_key("write", org="other")

    return _once(service, "free", make)


def neighbour_key(service: Service) -> str:
    """A key of an organization beside `dev` that may make as many requests, with a database of its own."""

    def make() -> str:
        service.customers.add_organization("neighbour", "dedicated")
        service.customers.add_database("theirs", "neighbour")
        return service.new_key("write", org="neighbour")

    return _once(service, "neighbour", make)


def admin_key(service: Service) -> str:
    """A key of the organization `dev` that may administer, and neither read nor write."""
    return _once(service, "admin", lambda: service.new_key("admin"))


def other_administrator(service: Service) -> str:
    """A key of an organization of the tier dedicated, beside `dev`, that may do everything in it."""

    def make() -> str:
        service.customers.add_organization("administered", "dedicated")
        return service.new_key("write", "admin", org="administered")

    return _once(service, "administrator", make)


def _once(service: Service, name: str, make: Callable[[], str]) -> str:
    place = (service.folder, name)
    if place not in _made:
        _made[place] = make()
    return _made[place]
