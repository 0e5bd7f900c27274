"""Connects to the service that the options select, and prints the target to standard error.

The target is always printed, because running a statement in the wrong database is the costliest mistake.
"""

import argparse

from plainsql.client import Client
from plainsql.command.terminal import say
from plainsql.settings import ARGUMENTS, KEY_VARIABLE, URL_VARIABLE, Settings, resolve
from plainsql.transport.protocol import DEFAULT_TIMEOUT_S

_ENVIRONMENT = (URL_VARIABLE, KEY_VARIABLE)


def connect(options: argparse.Namespace, *, uses_database: bool = True) -> Client:
    """A client for the service that the options select. `uses_database` says whether the database in use matters."""
    settings = settings_of(options)
    database = f", {described_database(settings)}" if uses_database else ""
    is_as_url = settings.key_source == settings.source or (settings.source, settings.key_source) == _ENVIRONMENT
    key = "" if is_as_url else f", key from {settings.key_source}"
    say(f"→ {settings.address.url}{database} (from {settings.source}{key})", "dim")
    return client_of(settings, options)


def client_of(settings: Settings, options: argparse.Namespace) -> Client:
    """A client that prints a message when the service does not answer, or when it waits for a rate limit."""
    timeout_s = DEFAULT_TIMEOUT_S if options.timeout is None else options.timeout
    client = Client(settings, timeout_s=timeout_s, rate_limit_wait_s=options.rate_limit_wait)
    client.tell_when_unavailable(say)
    return client


def settings_of(options: argparse.Namespace) -> Settings:
    return resolve(
        options.url, options.key, database=options.database, ca_file=options.ca_file, insecure=options.insecure
    )


def described_database(settings: Settings) -> str:
    """The database in use. A key that you name yourself may be bound to one, which is then its default."""
    if settings.database:
        return f"database {settings.database}"
    is_given = settings.key_source in (ARGUMENTS, KEY_VARIABLE)
    return "default database of the key" if is_given else "default database"
