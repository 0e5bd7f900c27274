"""The subcommands about the service itself: health, bench, login, whoami."""

import argparse
import getpass
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from plainsql.client import Client
from plainsql.command import EXIT_UNAVAILABLE
from plainsql.command.nouns import write_records
from plainsql.command.tables import json_of
from plainsql.command.target import client_of, connect, settings_of
from plainsql.command.terminal import say
from plainsql.control import caller
from plainsql.errors import SettingsError
from plainsql.settings import ARGUMENTS, KEY_VARIABLE, resolve, saved_login_file


def show_health(options: argparse.Namespace) -> int:
    """Prints the service's health as JSON. The exit code is 4 if the service is unavailable."""
    with connect(options) as db:
        health = db.health()
    print(json_of(health))
    return 0 if health.get("status") in ("ok", "degraded") else EXIT_UNAVAILABLE


def run_bench(options: argparse.Namespace) -> int:
    """Runs one statement repeatedly from this machine, so the times include the network."""
    with connect(options) as db:
        db.query(options.sql)
        with ThreadPoolExecutor(options.clients) as threads:
            began = time.perf_counter()
            runs = threads.map(lambda _: _ask(db, options.sql, began + options.seconds), range(options.clients))
            took_us = sorted(each for run in runs for each in run)
            elapsed_s = time.perf_counter() - began
    record = {
        "sql": options.sql, "clients": options.clients, "count": len(took_us), "min_us": took_us[0],
        **{f"p{share}_us": took_us[min(len(took_us) - 1, len(took_us) * share // 100)] for share in (50, 95, 99)},
        "max_us": took_us[-1], "per_second": round(len(took_us) / elapsed_s),
    }  # fmt: skip
    write_records(tuple(record), [record], options.output_format)
    return 0


def _ask(db: Client, sql: str, end: float) -> list[int]:
    took_us = []
    while True:
        began = time.perf_counter()
        db.query(sql)
        now = time.perf_counter()
        took_us.append(round((now - began) * 1e6))
        if now > end:
            return took_us


def log_in(options: argparse.Namespace) -> int:
    """Prompts for the key without echo, verifies it, and saves URL and key in a file that only the user can read."""
    address = options.address or options.url
    if not address:
        raise ValueError("No URL given. Usage: plainsql login https://host:port")
    prompt = f"API key for {address}: "
    key = options.key or (getpass.getpass(prompt) if sys.stdin.isatty() else sys.stdin.readline())
    settings = resolve(address, key.strip(), ca_file=options.ca_file, insecure=options.insecure)
    # The key of a file, such as that of a development service, is not one that the user gave.
    if settings.key_source not in (ARGUMENTS, KEY_VARIABLE):
        raise SettingsError("No key given. Type it, pass it on standard input, or set PLAINSQL_KEY.")
    with client_of(settings, options) as db:
        organization, credential = db.call(caller())
    saved = {"url": settings.address.url, "key": settings.key}
    if settings.ca_file:
        saved["ca_file"] = os.path.abspath(settings.ca_file)
    path = saved_login_file()
    os.makedirs(os.path.dirname(path), exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(saved, file)
    bound = f", bound to the database {credential.database!r}" if credential.database else ""
    used = f"{credential.kind} {credential.id} ({', '.join(credential.scopes)}{bound})"
    say(f"Logged in to {settings.address.url} with the {used} of the organization {organization.name!r}.")
    say(f"Saved in {path}.")
    return 0


def show_caller(options: argparse.Namespace) -> int:
    settings = settings_of(options)
    with connect(options, uses_database=False) as db:
        organization, credential = db.call(caller())
    record = {
        "url": settings.address.url,
        "organization": organization.name,
        "tier": organization.tier,
        "key": f"{settings.key[:10]}…{settings.key[-4:]}",
        "kind": credential.kind,
        "id": credential.id,
        "scopes": credential.scopes,
        "bound_to": credential.database,
        "expires_at": credential.expires_at,
        "database": settings.database or credential.database,
    }
    print(json_of(record))
    return 0
