"""Finds the service's URL and the key. Only this module reads the environment and the settings files.

The order is: the caller's arguments, the environment, `.plainsql/dev.json` in the working directory or the nearest one
above it, what `plainsql login` saved. A key from a file is used only with the URL from that file, so a key never goes
to another service. Nor is it sent without TLS to another machine, unless the caller asks for that.
"""

import json
import os
import re
from typing import Any, NamedTuple

from plainsql.errors import NetworkError, SettingsError

# Where a setting may come from, as messages name it.
ARGUMENTS = "the arguments"
URL_VARIABLE = "PLAINSQL_URL"
KEY_VARIABLE = "PLAINSQL_KEY"
_DEFAULT_PORTS = {"https": 443, "http": 80}
_URL = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:/?#@\[\]]+))(?::(?P<port>\d+))?/?"
)


_LOOPBACK = re.compile(r"127(?:\.\d{1,3}){3}")


class Address(NamedTuple):
    """The scheme, host and port of one plane."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        shown = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{shown}"

    @property
    def exposes_the_key(self) -> bool:
        """Whether a key sent here could be read on a network: without TLS, to another machine."""
        is_here = self.host in ("localhost", "::1") or self.host.endswith(".localhost")
        return self.scheme == "http" and not is_here and _LOOPBACK.fullmatch(self.host) is None


class Settings(NamedTuple):
    """A client's settings. `repr` omits `key`, which is a secret. `source` says where the URL comes from.

    `key_source` says where the key comes from.
    """

    address: Address
    key: str
    source: str
    control: Address | None = None
    database: str | None = None
    ca_file: str | None = None
    insecure: bool = False
    key_source: str = ""

    @property
    def sqlalchemy_url(self) -> str:
        """These settings as a URL plainsql://…, which contains the key."""
        from urllib.parse import quote, urlencode  # noqa: PLC0415  # slow to import, and for this form alone

        place = self.address.url.partition("://")[2]
        options = {"ca_file": os.path.abspath(self.ca_file)} if self.ca_file else {}
        if self.address.scheme == "http":
            options["tls"] = "false"
        query = f"?{urlencode(options)}" if options else ""
        return f"plainsql://k:{quote(self.key, safe='')}@{place}/{quote(self.database or '', safe='')}{query}"

    def __repr__(self) -> str:
        return f"Settings({self.address.url}, database={self.database!r}, from {self.source})"


class Configured:
    """What both clients say about the service that they call."""

    settings: Settings

    @property
    def url(self) -> str:
        """The address of the service, such as https://localhost:8400. It contains no key."""
        return self.settings.address.url

    @property
    def sqlalchemy_url(self) -> str:
        """The URL for `sqlalchemy.create_engine`, with the key, the database and the CA file. Keep it secret.

        `plainsql.connect` accepts it, too.
        """
        return self.settings.sqlalchemy_url


def parse_url(url: str) -> Address:
    """Parses a URL of the form https://host:port."""
    match = _URL.fullmatch(url)
    port = int(match["port"] or 0) if match else 0
    if match is None or port > 65_535:
        shown = url if "@" not in url else f"{url[:8]}…"
        raise SettingsError(f"Invalid URL {shown!r}: it must be https://host:port, without user, path or query.")
    scheme = match["scheme"]
    return Address(scheme, (match["six"] or match["host"]).lower(), port or _DEFAULT_PORTS[scheme])


def resolve(
    url: str | None = None,
    key: str | None = None,
    *,
    database: str | None = None,
    ca_file: str | None = None,
    control_url: str | None = None,
    insecure: bool = False,
) -> Settings:
    """The settings in effect. Raises SettingsError if the URL or the key is missing.

    Raises NetworkError if they would be those of a `plainsql-server dev` that is stopped. With `insecure`, the key may
    be sent to another machine without TLS.
    """
    if url is not None and url.startswith("plainsql:"):
        url, key, database, ca_file = _parts_of_plainsql_url(url, key, database, ca_file)
        # `tls=false` asks for it, too.
        insecure = insecure or url.startswith("http:")
    known, source, key_source = _known_settings(url)
    address = url or known.get("url")
    if not address:
        raise SettingsError(
            "No service URL. Pass url=… (or --url on the command line), set PLAINSQL_URL, "
            "start `plainsql-server dev` in this directory or one above it, or run `plainsql login`."
        )
    named = os.environ.get(KEY_VARIABLE)
    secret = (key or named or known.get("key") or "").strip()
    if not secret:
        raise SettingsError(f"No key for {address}. Pass key=…, set PLAINSQL_KEY, or run `plainsql login`.")
    if not (secret.isascii() and secret.isprintable()):
        raise SettingsError("The key is invalid: it contains characters that aren't printable ASCII.")
    control = control_url or os.environ.get("PLAINSQL_CONTROL_URL") or known.get("control_url")
    settings = Settings(
        address=parse_url(address),
        key=secret,
        source=source,
        control=parse_url(control) if control else None,
        database=database or os.environ.get("PLAINSQL_DATABASE"),
        ca_file=ca_file or os.environ.get("PLAINSQL_CA_FILE") or known.get("ca_file"),
        insecure=insecure or os.environ.get("PLAINSQL_INSECURE") == "1",
        key_source=ARGUMENTS if key else KEY_VARIABLE if named else key_source,
    )
    for each in (settings.address, settings.control):
        check_exposure(each, insecure=settings.insecure)
    return settings


def check_exposure(address: Address | None, *, insecure: bool) -> None:
    """Raises SettingsError if the key would be sent to another machine in clear text without `insecure`."""
    if address is not None and address.exposes_the_key and not insecure:
        raise SettingsError(
            f"{address.url} doesn't use TLS, so everyone on the network could read the key. Use https://. To send it "
            "anyway, pass insecure=True (--insecure on the command line) or set PLAINSQL_INSECURE=1."
        )


def saved_login_file() -> str:
    """The file in which `plainsql login` saves the URL and the key. Only the user can read it."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "plainsql", "login.json")


def history_file() -> str:
    """The shell's history file."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "plainsql", "history")


def pager() -> str:
    """The pager command; empty for none."""
    return os.environ.get("PLAINSQL_PAGER") or os.environ.get("PAGER") or "less -SFRX"


def colours_wanted() -> bool:
    """Whether output on a terminal may be coloured (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _known_settings(url: str | None) -> tuple[dict[str, str], str, str]:
    """The settings of the first source that has the given URL, or any URL if none is given.

    Also where the URL comes from, and the file that the others come from.
    """
    named = url or os.environ.get(URL_VARIABLE)
    if named:
        found, path = _matching_file(named)
        return {**found, "url": named}, ARGUMENTS if url else URL_VARIABLE, path
    dev = _dev_file()
    if found := _read_dev(dev):
        return found, os.path.relpath(dev), os.path.relpath(dev)
    if os.path.exists(_key_beside(dev)):
        # Not the login: a program that is meant for this folder's service must not use another one.
        folder = os.path.dirname(os.path.dirname(os.path.abspath(dev)))
        raise NetworkError(
            f"The service of the folder {folder} isn't running. Start it there with `plainsql-server dev`, or name "
            "another service with PLAINSQL_URL, url=… or --url.",
            outcome="not_executed",
        )
    login = saved_login_file()
    return _read_login(login), login, login


def _matching_file(url: str) -> tuple[dict[str, str], str]:
    """The settings of the file that has this URL, and its path."""
    wanted = parse_url(url)
    dev, login = _dev_file(), saved_login_file()
    for found, path in ((_read_dev(dev), os.path.relpath(dev)), (_read_login(login), login)):
        addresses = [found[name] for name in ("url", "alias_url") if found.get(name)]
        if any(parse_url(each) == wanted for each in addresses):
            return found, path
    return {}, ""


def _dev_file() -> str:
    """The nearest `.plainsql/dev.json`, in the working directory or one above it; it is absent while `dev` is stopped.

    Above it, a file of another user is not used: its address would get our statements.
    """
    name = os.path.join(".plainsql", "dev.json")
    if os.path.exists(name) or os.path.exists(_key_beside(name)):
        return name
    here = os.path.dirname(os.path.abspath("."))
    while True:
        path = os.path.join(here, name)
        for each in (path, _key_beside(path)):
            if os.path.exists(each) and _is_trusted(each):
                return path
        above = os.path.dirname(here)
        if above == here:
            return name
        here = above


def _key_beside(path: str) -> str:
    """The file with the key of the service that `path` describes. `dev` keeps it when it stops."""
    return os.path.join(os.path.dirname(path), "api_key")


def _is_trusted(path: str) -> bool:
    """Whether the file belongs to this user or to root. Windows has no such numbers."""
    return not hasattr(os, "getuid") or os.stat(path).st_uid in (os.getuid(), 0)


def _read_dev(path: str) -> dict[str, str]:
    """The settings that `plainsql-server dev` wrote; empty if it is not running in that directory."""
    content = _read_json(path)
    if not content:
        return {}
    try:
        with open(content["api_key_file"], encoding="utf-8") as file:
            key = file.read().strip()
        names = {"url": "data_url", "control_url": "control_url", "alias_url": "alias_url", "ca_file": "ca_file"}
        return {"key": key, **{name: content[theirs] for name, theirs in names.items() if content.get(theirs)}}
    except (KeyError, OSError) as error:
        raise SettingsError(f"Can't use {path}: {error}") from error


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
        raise SettingsError(f"Can't read {path}: {error}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path} isn't valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _parts_of_plainsql_url(
    url: str, key: str | None, database: str | None, ca_file: str | None
) -> tuple[str, str, str | None, str | None]:
    """The URL, key, database and CA file in plainsql://k:svc_k_…@host:port/database?tls=false&ca_file=…"""
    from urllib.parse import parse_qs, unquote, urlsplit  # noqa: PLC0415  # slow to import, and for this form alone

    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    tls, ca_file = options.pop("tls", "true"), ca_file or options.pop("ca_file", None)
    options.pop("ca_file", None)
    if tls not in ("true", "false"):
        raise SettingsError(f"In the URL, tls must be true or false, not {tls!r}.")
    if options:
        raise SettingsError(f"The URL has an unknown option: {next(iter(options))}.")
    secret = key or unquote(parts.password or "")
    if not parts.hostname or not secret:
        raise SettingsError("The URL must be plainsql://k:KEY@host:port/database, with the key as the password.")
    place = parts.netloc.rpartition("@")[2]
    address = f"{'https' if tls == 'true' else 'http'}://{place}"
    return address, secret, database or unquote(parts.path.strip("/")) or None, ca_file
