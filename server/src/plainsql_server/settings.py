"""The service's configuration, read once at startup from the PLAINSQL_… environment variables.

    settings = read_settings()
    settings.data_port

No other module reads PLAINSQL_… variables. Every setting needs a description: `plainsql-server settings` prints them,
and a test fails without one. The value of a secret setting can be in a file instead: PLAINSQL_DIRECTORY_DSN_FILE names
the file for PLAINSQL_DIRECTORY_DSN.
"""

import os
import pwd
import re
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from plainsql_server.core.environment_file import EnvironmentFileError, parse_environment_file

PREFIX = "PLAINSQL_"
_FILE = "_FILE"
# Marks settings whose values are secret, or contain one.
_SECRET: dict[Any, Any] = {"is_secret": True}

# One or several keys, as `plainsql-server secrets new-key` prints them.
_KEYS = r"^\s*[A-Za-z0-9+/]{43}=(\s+[A-Za-z0-9+/]{43}=)*\s*$"

_LAST_PORT = 65_535
_EVERY_ADDRESS = ("0.0.0.0", "::")
_AUTO = "auto"

# How msgspec writes a field's name in its messages.
_FIELD = re.compile(r"`(?:\$\.)?([a-z_]+)`(?=\.|$)")


class SettingsError(Exception):
    """A variable is missing or has an invalid value; the message names it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an operator can set. The field `data_port` is the variable `PLAINSQL_DATA_PORT`."""

    directory_dsn: Annotated[str, Meta(description="libpq connection string of the directory database.", extra=_SECRET)]
    data_url: Annotated[str, Meta(description="Public URL of the data plane.")] = ""
    control_url: Annotated[str, Meta(description="Public URL of the control plane.")] = ""
    alias_url: Annotated[str | None, Meta(description="Public URL of the alias, if you run one.")] = None
    operator: Annotated[
        str | None,
        Meta(
            description="Who runs the operator's commands, for the audit log. Unset: the user who called sudo, or else"
            " the system user."
        ),
    ] = None
    data_host: Annotated[str, Meta(description="Address the data plane listens on.")] = "127.0.0.1"
    data_port: Annotated[int, Meta(description="Port the data plane listens on.", ge=0, le=65535)] = 8400
    control_host: Annotated[str, Meta(description="Address the control plane listens on.")] = "127.0.0.1"
    control_port: Annotated[int, Meta(description="Port the control plane listens on.", ge=0, le=65535)] = 8401
    tls_cert_file: Annotated[str | None, Meta(description="TLS certificate chain (PEM). Unset: plain HTTP.")] = None
    tls_key_file: Annotated[str | None, Meta(description="Private key (PEM) of the TLS certificate.")] = None
    workers: Annotated[int, Meta(description="Number of data plane processes per machine.", ge=1, le=64)] = 1
    worker_port: Annotated[
        int,
        Meta(
            description="First of the data plane processes' own ports: each process also listens on one,"
            " so the alias can choose the process. 0: none.",
            ge=0,
            le=65535,
        ),
    ] = 0
    advertised_host: Annotated[
        str | None,
        Meta(
            description="Address at which the alias reaches the processes' own ports. auto: the address of this"
            " machine's host name, as in a container. Unset: PLAINSQL_DATA_HOST.",
        ),
    ] = None
    redis_url: Annotated[
        Annotated[str, Meta(pattern="^(redis|rediss|unix)://")] | None,
        Meta(
            description="Redis shared by all nodes, for rate limits. Unset: the directory counts.",
            extra=_SECRET,
        ),
    ] = None
    secrets_keys: Annotated[
        Annotated[str, Meta(pattern=_KEYS)] | None,
        Meta(
            description="Keys that seal databases' record secrets in the directory: base64 of 32 bytes each, separated"
            " by spaces or lines. The first one seals, all of them open. Unset: the secrets are not sealed.",
            extra=_SECRET,
        ),
    ] = None
    unsealed_secrets: Annotated[
        Literal["accept", "refuse"],
        Meta(
            description="Whether record secrets that are not sealed are used. Set it to refuse once"
            " `plainsql-server secrets rotate` has sealed all of them."
        ),
    ] = "accept"
    pool_max_connections: Annotated[
        int, Meta(description="Maximum PostgreSQL connections per process to one database as one role.", ge=1)
    ] = 16
    cell_max_connections: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Maximum PostgreSQL connections per process to one cell, over all databases."
            " Unset: what the cell's max_connections allows, less 60, divided by the number of running processes."
        ),
    ] = None
    cell_max_running: Annotated[
        int, Meta(description="Maximum statements per process that run on one cell at the same time.", ge=1)
    ] = 64
    cell_max_waiting: Annotated[
        int, Meta(description="Maximum requests per process waiting for a connection to one cell.", ge=0)
    ] = 1_000
    metrics_host: Annotated[
        str,
        Meta(description="Address for the metrics of both planes. Metrics have no authentication: never a public one."),
    ] = "127.0.0.1"
    metrics_port: Annotated[
        int,
        Meta(
            description="First port for metrics; each data plane process takes the next free one. 0: no metrics.",
            ge=0,
            le=65535,
        ),
    ] = 0
    control_metrics_port: Annotated[
        int, Meta(description="Port for the control plane's metrics. 0: no metrics.", ge=0, le=65535)
    ] = 0
    fast_lane: Annotated[
        Literal["on", "off", "sent", "arrived", "done"],
        Meta(
            description="Whether requests that repeat themselves take the fast lane: on or off. It needs compiled code."
            " The other values are for tests: they end the fast lane of every request after that step."
        ),
    ] = "on"
    drain_ms: Annotated[
        int,
        Meta(description="How long a stopping process still accepts requests while /health already fails.", ge=0),
    ] = 1_000
    connect_timeout_ms: Annotated[
        int, Meta(description="How long connecting to a cell may take before the cell counts as unavailable.", ge=1)
    ] = 5_000
    body_timeout_ms: Annotated[
        int, Meta(description="How long a request may take to arrive, plus one second per 64 KiB of it.", ge=1)
    ] = 30_000
    max_connections: Annotated[
        int, Meta(description="Maximum open client connections per process; further ones are refused.", ge=1)
    ] = 10_000
    address_connections: Annotated[
        int,
        Meta(
            description="Maximum client connections per process from one address. 0: no separate limit."
            " The alias is one address.",
            ge=0,
        ),
    ] = 0
    unauthenticated_mb: Annotated[
        int,
        Meta(
            description="Maximum megabytes per process that requests without an accepted key may hold, over all"
            " connections. Beyond it, those that take longest to arrive are refused.",
            ge=1,
        ),
    ] = 64
    stream_ping_ms: Annotated[
        int, Meta(description="How long an event stream may be idle before a comment is sent to keep it alive.", ge=1)
    ] = 15_000
    stream_stall_ms: Annotated[
        int, Meta(description="How long a client may stop reading a response before its connection is closed.", ge=1)
    ] = 30_000
    principal_cache_ms: Annotated[
        int,
        Meta(
            description="How long a cached lookup is used without a change notification;"
            " also the longest delay of a revocation while the directory is available.",
            ge=0,
        ),
    ] = 900
    channel_cache_ms: Annotated[
        int, Meta(description="How long a cached lookup is used while change notifications arrive.", ge=0)
    ] = 60_000
    directory_grace_ms: Annotated[
        int,
        Meta(
            description="How long cached lookups are used while the directory is unavailable; then requests fail.", ge=0
        ),
    ] = 10_000
    usage_flush_ms: Annotated[
        int, Meta(description="How often usage is stored; a crash loses what was counted since.", ge=10)
    ] = 5_000
    database_restore_s: Annotated[
        int, Meta(description="How long a deleted database can be restored.", ge=0, le=3_650 * 86_400)
    ] = 7 * 86_400
    database_max_mb: Annotated[
        int, Meta(description="Size in megabytes at which a database is suspended. 0: no limit.", ge=0)
    ] = 0
    mcp_data_url: Annotated[
        str | None,
        Meta(
            description="URL at which the control plane reaches the data plane, for the tools of POST /mcp."
            " Unset: PLAINSQL_DATA_URL."
        ),
    ] = None
    mcp_ca_file: Annotated[
        str | None,
        Meta(description="CA certificates (PEM) by which it trusts the data plane there. Unset: the system's."),
    ] = None
    upkeep: Annotated[
        Literal["on", "off"],
        Meta(
            description="Whether doctor also checks what a service in production needs: certificates of cells, WAL"
            " archiving, transaction IDs, the guard, memory, backups. `dev` sets it to off for its own service."
        ),
    ] = "on"

    @property
    def refuses_unsealed_secrets(self) -> bool:
        """Whether record secrets that are not sealed count as forged."""
        return self.unsealed_secrets == "refuse"

    @property
    def own_ports(self) -> range:
        """The data plane processes' own ports, in the order of the processes; empty if they have none."""
        return range(self.worker_port, self.worker_port + self.workers) if self.worker_port else range(0)

    @property
    def metrics_ports(self) -> range:
        """The ports on which the data plane processes serve metrics; empty if they serve none."""
        return range(self.metrics_port, self.metrics_port + self.workers) if self.metrics_port else range(0)

    def own_address(self, port: int) -> str:
        """Where the alias reaches the process with this port of its own."""
        host = _own_host() if self.advertised_host == _AUTO else self.advertised_host or self.data_host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_host() -> str:
    """The address of this machine's host name. A container engine writes it to /etc/hosts."""
    return socket.gethostbyname(socket.gethostname())


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from the environment. Raises SettingsError, which names the invalid or missing variable."""
    known = {PREFIX + name.upper(): name for name in Settings.__struct_fields__}
    values: dict[str, Any] = {name: environ[variable] for variable, name in known.items() if environ.get(variable)}
    for name in _secret_settings():
        variable = PREFIX + name.upper()
        if environ.get(variable + _FILE):
            if name in values:
                raise SettingsError(f"Both `{variable}` and `{variable}{_FILE}` are set. Unset one of them.")
            values[name] = _read_secret(variable + _FILE, environ[variable + _FILE])
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(_FIELD.sub(lambda match: f"`{PREFIX}{match[1].upper()}`", f"{error}.")) from error
    _check_metrics_ports(settings)
    _check_own_ports(settings)
    if settings.unsealed_secrets == "refuse" and settings.secrets_keys is None:
        raise SettingsError(f"`{PREFIX}UNSEALED_SECRETS` is refuse, which needs `{PREFIX}SECRETS_KEYS`.")
    return settings


def load_environment_file(path: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables in a file for this process, as systemd does for a unit. Raises SettingsError."""
    try:
        environ.update(parse_environment_file(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, EnvironmentFileError) as error:
        raise SettingsError(f"The environment file {path} can't be used: {error}") from error


def _secret_settings() -> list[str]:
    hints = get_type_hints(Settings, include_extras=True)
    return [name for name in Settings.__struct_fields__ if hints[name].__metadata__[0].extra == _SECRET]


def _read_secret(variable: str, path: str) -> str:
    try:
        value = Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The file in `{variable}` can't be read: {error}") from error
    if not value:
        raise SettingsError(f"The file in `{variable}`, {path}, is empty.")
    return value


def _check_metrics_ports(settings: Settings) -> None:
    ports = settings.metrics_ports
    if ports and (ports[-1] > _LAST_PORT or settings.data_port in ports):
        raise SettingsError(
            f"`{PREFIX}METRICS_PORT` is the first of {len(ports)} ports, which must not exceed {_LAST_PORT}"
            f" or contain `{PREFIX}DATA_PORT`."
        )


def _check_own_ports(settings: Settings) -> None:
    ports = settings.own_ports
    if not ports:
        return
    if ports[-1] > _LAST_PORT or not {settings.data_port, *settings.metrics_ports}.isdisjoint(ports):
        raise SettingsError(
            f"`{PREFIX}WORKER_PORT` is the first of {len(ports)} ports, which must not exceed {_LAST_PORT}"
            f" or contain `{PREFIX}DATA_PORT` or a port for metrics."
        )
    if (settings.advertised_host or settings.data_host) in _EVERY_ADDRESS:
        raise SettingsError(
            f"`{PREFIX}DATA_HOST` is every address of this machine. Set `{PREFIX}ADVERTISED_HOST` to the one that the"
            " alias should use."
        )


def describe_settings() -> list[tuple[str, str, str]]:
    """Return every setting as (variable, default, description), with the variables that name files."""
    hints = get_type_hints(Settings, include_extras=True)
    defaults = dict(zip(reversed(Settings.__struct_fields__), reversed(Settings.__struct_defaults__), strict=False))
    secret, described = _secret_settings(), []
    for name in Settings.__struct_fields__:
        variable = PREFIX + name.upper()
        described.append((variable, _shown(defaults, name), hints[name].__metadata__[0].description or ""))
        if name in secret:
            described.append((variable + _FILE, "", f"File with the value of {variable}, which is then unset."))
    return described


def _shown(defaults: Mapping[str, object], name: str) -> str:
    if name not in defaults:
        return "required"
    return "" if defaults[name] is None else str(defaults[name])


def operators_name(settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """Who runs a command: PLAINSQL_OPERATOR, or the user who called sudo, or the user of this process."""
    sudo_user = environ.get("SUDO_USER") if os.getuid() == 0 else None
    if name := settings.operator or sudo_user:
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container may run as a user that its system has no name for.
        return f"uid {os.getuid()}"
