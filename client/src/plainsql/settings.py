"""Where the service is and who calls: the only reader of the environment and of settings files.

Owns the order: what the caller says, then the environment, then `.plainsql/dev.json` in the working folder, then what
`plainsql login` saved. The address decides: a key is taken from a file only if the address comes from that file,
so that no key goes to a service that it is not of. Refuses to connect.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from plainsql.errors import SettingsError

_DEFAULT_PORTS = {"https": 443, "http": 80}
_URL = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:/?#@\[\]]+))(?::(?P<port>\d+))?/?"
)


class Address(NamedTuple):
    """One plane's host, and how to speak to it."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        shown = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{shown}"


class Settings(NamedTuple):
    """What a client needs to know. `key` is a secret: it is not in `repr`. `source` says where the address is from."""

    address: Address
    key: str
    source: str
    control: Address | None = None
    database: str | None = None
    ca_file: str | None = None

    def __repr__(self) -> str:
        return f"Settings({self.address.url}, database={self.database!r}, from {self.source})"


def parse_url(url: str) -> Address:
    """An address of the form https://host:port."""
    match = _URL.fullmatch(url)
    port = int(match["port"] or 0) if match else 0
    if match is None or port > 65_535:
        shown = url if "@" not in url else f"{url[:8]}…"
        raise SettingsError(f"The address {shown!r} is not of the form https://host:port, without user, path or query.")
    scheme = match["scheme"]
    return Address(scheme, (match["six"] or match["host"]).lower(), port or _DEFAULT_PORTS[scheme])


def resolve(
    url: str | None = None,
    key: str | None = None,
    *,
    database: str | None = None,
    ca_file: str | None = None,
    control_url: str | None = None,
) -> Settings:
    """The settings that are in force; raises SettingsError, which says what is missing."""
    if url is not None and url.startswith("plainsql:"):
        url, key, database, ca_file = _parts_of_plainsql_url(url, key, database, ca_file)
    known, source = _known_settings(url)
    address = url or known.get("url")
    if not address:
        raise SettingsError(
            "There is no service to talk to: pass url=… (the command: --url), set PLAINSQL_URL, "
            "start `plainsql-server dev` in this folder, or run `plainsql login`."
        )
    secret = (key or os.environ.get("PLAINSQL_KEY") or known.get("key") or "").strip()
    if not secret:
        raise SettingsError(f"There is no key for {address}: pass key=…, set PLAINSQL_KEY or run `plainsql login`.")
    if not (secret.isascii() and secret.isprintable()):
        raise SettingsError("The key has characters that no key has.")
    control = control_url or os.environ.get("PLAINSQL_CONTROL_URL") or known.get("control_url")
    return Settings(
        address=parse_url(address),
        key=secret,
        source=source,
        control=parse_url(control) if control else None,
        database=database or os.environ.get("PLAINSQL_DATABASE"),
        ca_file=ca_file or os.environ.get("PLAINSQL_CA_FILE") or known.get("ca_file"),
    )


def saved_login_file() -> str:
    """Where `plainsql login` keeps what it was told; readable by the user alone."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "plainsql", "login.json")


def history_file() -> str:
    """Where the shell keeps the statements of earlier sessions."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "plainsql", "history")


def pager() -> str:
    """The program that shows what is longer than the screen; empty for none."""
    return os.environ.get("PLAINSQL_PAGER") or os.environ.get("PAGER") or "less -SFRX"


def colours_wanted() -> bool:
    """Whether a terminal may be coloured (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _known_settings(url: str | None) -> tuple[dict[str, str], str]:
    """What the first place knows that names the wanted address, or any address if none is wanted."""
    if not url and (named := os.environ.get("PLAINSQL_URL")):
        return {**_matching_file(named), "url": named}, "PLAINSQL_URL"
    if url:
        return _matching_file(url), "the command or call"
    for found, path in _files():
        if found:
            return found, path
    return {}, ""


def _matching_file(url: str) -> dict[str, str]:
    wanted = parse_url(url)
    for found, _ in _files():
        addresses = [found[name] for name in ("url", "alias_url") if found.get(name)]
        if any(parse_url(each) == wanted for each in addresses):
            return found
    return {}


def _files() -> Iterator[tuple[dict[str, str], str]]:
    """What the files say, in the order in which they count."""
    dev = os.path.join(".plainsql", "dev.json")
    yield _read_dev(dev), dev
    login = saved_login_file()
    yield _read_login(login), login


def _read_dev(path: str) -> dict[str, str]:
    """What `plainsql-server dev` wrote down; empty if it does not run in that folder."""
    content = _read_json(path)
    if not content:
        return {}
    try:
        with open(content["api_key_file"], encoding="utf-8") as file:
            key = file.read().strip()
        names = {"url": "data_url", "control_url": "control_url", "alias_url": "alias_url", "ca_file": "ca_file"}
        return {"key": key, **{name: content[theirs] for name, theirs in names.items() if content.get(theirs)}}
    except (KeyError, OSError) as error:
        raise SettingsError(f"{path} cannot be used: {error}") from error


def _read_login(path: str) -> dict[str, str]:
    content = _read_json(path)
    return {name: value for name, value in content.items() if isinstance(value, str)}


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _parts_of_plainsql_url(
    url: str, key: str | None, database: str | None, ca_file: str | None
) -> tuple[str, str, str | None, str | None]:
    """The address, key, database and authority in plainsql://k:svc_k_…@host:port/database?tls=false&ca_file=…"""
    from urllib.parse import parse_qs, unquote, urlsplit  # noqa: PLC0415  # slow to import, and for this form alone

    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    tls, ca_file = options.pop("tls", "true"), ca_file or options.pop("ca_file", None)
    options.pop("ca_file", None)
    if tls not in ("true", "false"):
        raise SettingsError(f"tls is true or false, and not {tls!r}.")
    if options:
        raise SettingsError(f"The address has an option that there is not: {next(iter(options))}.")
    secret = key or unquote(parts.password or "")
    if not parts.hostname or not secret:
        raise SettingsError("The address must be plainsql://k:KEY@host:port/database, the key in the password's place.")
    place = parts.netloc.rpartition("@")[2]
    address = f"{'https' if tls == 'true' else 'http'}://{place}"
    return address, secret, database or unquote(parts.path.strip("/")) or None, ca_file
