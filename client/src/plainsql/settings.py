"""Where the service is and who calls: the only reader of the environment and of settings files.

Owns the order: what the caller says, then the environment, then `.plainsql/dev.json` in the working folder, then what
`plainsql login` saved. The address decides: a key is taken from a file only if the address comes from that file,
so that no key goes to a service that it is not of. Refuses to connect.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from plainsql.errors import SettingsError

_DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Address:
    """One plane's host, and how to speak to it."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        shown = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{shown}"


@dataclass(frozen=True, slots=True)
class Settings:
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
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"The address {url!r} has no usable port.") from error
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise SettingsError(f"The address {url!r} is not of the form https://host:port.")
    if parts.username or parts.password or parts.query or parts.path.strip("/"):
        raise SettingsError("An address has a host and perhaps a port, and no user, path or query.")
    return Address(parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme])


def resolve(
    url: str | None = None,
    key: str | None = None,
    *,
    database: str | None = None,
    ca_file: str | None = None,
    control_url: str | None = None,
    folder: Path | None = None,
) -> Settings:
    """The settings that are in force; raises SettingsError, which says what is missing."""
    if url is not None and url.startswith("plainsql:"):
        return _from_plainsql_url(url, key, database, ca_file, control_url)
    known, source = _known_settings(url, folder or Path.cwd())
    address = url or known.get("url")
    if not address:
        raise SettingsError(
            "There is no service to talk to: pass url=…, set PLAINSQL_URL, start `plainsql-server dev` in this folder, "
            "or run `plainsql login`."
        )
    secret = key or os.environ.get("PLAINSQL_KEY") or known.get("key")
    if not secret:
        raise SettingsError(f"There is no key for {address}: pass key=…, set PLAINSQL_KEY or run `plainsql login`.")
    control = control_url or os.environ.get("PLAINSQL_CONTROL_URL") or known.get("control_url")
    return Settings(
        address=parse_url(address),
        key=secret.strip(),
        source=source,
        control=parse_url(control) if control else None,
        database=database or os.environ.get("PLAINSQL_DATABASE"),
        ca_file=ca_file or os.environ.get("PLAINSQL_CA_FILE") or known.get("ca_file"),
    )


def saved_login_file() -> Path:
    """Where `plainsql login` keeps what it was told; readable by the user alone."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "plainsql" / "login.json"


def history_file() -> Path:
    """Where the shell keeps the statements of earlier sessions."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "plainsql" / "history"


def pager() -> str:
    """The program that shows what is longer than the screen; empty for none."""
    return os.environ.get("PLAINSQL_PAGER") or os.environ.get("PAGER") or "less -SFRX"


def colours_wanted() -> bool:
    """Whether a terminal may be coloured (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _known_settings(url: str | None, folder: Path) -> tuple[dict[str, str], str]:
    """What the first place knows that names the wanted address, or any address if none is wanted."""
    if not url and (named := os.environ.get("PLAINSQL_URL")):
        return {**_matching_file(named, folder), "url": named}, "PLAINSQL_URL"
    if url:
        return _matching_file(url, folder), "the command or call"
    for path, read in ((folder / ".plainsql" / "dev.json", _read_dev), (saved_login_file(), _read_login)):
        if found := read(path):
            return found, str(path)
    return {}, ""


def _matching_file(url: str, folder: Path) -> dict[str, str]:
    wanted = parse_url(url)
    for path, read in ((folder / ".plainsql" / "dev.json", _read_dev), (saved_login_file(), _read_login)):
        found = read(path)
        addresses = [found[name] for name in ("url", "alias_url") if found.get(name)]
        if any(parse_url(each) == wanted for each in addresses):
            return found
    return {}


def _read_dev(path: Path) -> dict[str, str]:
    """What `plainsql-server dev` wrote down; empty if it does not run in that folder."""
    content = _read_json(path)
    if not content:
        return {}
    try:
        key = Path(content["api_key_file"]).read_text(encoding="utf-8").strip()
        names = {"url": "data_url", "control_url": "control_url", "alias_url": "alias_url", "ca_file": "ca_file"}
        return {"key": key, **{name: content[theirs] for name, theirs in names.items() if content.get(theirs)}}
    except (KeyError, OSError) as error:
        raise SettingsError(f"{path} cannot be used: {error}") from error


def _read_login(path: Path) -> dict[str, str]:
    content = _read_json(path)
    return {name: value for name, value in content.items() if isinstance(value, str)}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _from_plainsql_url(
    url: str, key: str | None, database: str | None, ca_file: str | None, control_url: str | None
) -> Settings:
    """plainsql://k:svc_k_…@host:port/database?tls=false&ca_file=…"""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    secret = key or unquote(parts.password or "")
    if not parts.hostname or not secret:
        raise SettingsError("The address must be plainsql://k:KEY@host:port/database, the key in the password's place.")
    scheme = "http" if options.get("tls") == "false" else "https"
    return Settings(
        address=Address(scheme, parts.hostname, parts.port or _DEFAULT_PORTS[scheme]),
        key=secret,
        source="the address",
        control=parse_url(control_url) if control_url else None,
        database=database or parts.path.strip("/") or None,
        ca_file=ca_file or options.get("ca_file"),
    )
