"""The service's configuration, read from the environment once, at start.

Owns every PLAINSQL_… variable: no other module reads the environment. A setting without a description
fails a test, and `plainsql-server settings` prints them all.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

PREFIX = "PLAINSQL_"

# How msgspec names a field in its messages.
_FIELD = re.compile(r"`(?:\$\.)?([a-z_]+)`(?=\.|$)")


class SettingsError(Exception):
    """The environment holds a value that a setting cannot take; the message names it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an operator may set. Field `data_port` is the variable `PLAINSQL_DATA_PORT`."""

    directory_dsn: Annotated[str, Meta(description="libpq connection string of the directory database.")]
    data_url: Annotated[str, Meta(description="Public address of the data plane.")] = ""
    control_url: Annotated[str, Meta(description="Public address of the control plane.")] = ""
    alias_url: Annotated[str | None, Meta(description="Public address of the alias, if there is one.")] = None
    data_host: Annotated[str, Meta(description="Address that the data plane listens on.")] = "127.0.0.1"
    data_port: Annotated[int, Meta(description="Port that the data plane listens on.", ge=0, le=65535)] = 8400
    control_host: Annotated[str, Meta(description="Address that the control plane listens on.")] = "127.0.0.1"
    control_port: Annotated[int, Meta(description="Port that the control plane listens on.", ge=0, le=65535)] = 8401
    tls_cert_file: Annotated[str | None, Meta(description="Certificate chain (PEM); without it, plain HTTP.")] = None
    tls_key_file: Annotated[str | None, Meta(description="Private key (PEM) of the certificate.")] = None
    workers: Annotated[int, Meta(description="Processes that serve the data plane.", ge=1, le=64)] = 1
    nodes: Annotated[
        int, Meta(description="Machines that run the data plane; limits are divided by these where they must be.", ge=1)
    ] = 1
    redis_url: Annotated[
        Annotated[str, Meta(pattern="^(redis|rediss|unix)://")] | None,
        Meta(description="Redis that all nodes share, for rate limits; without it, each goes by its share."),
    ] = None
    pool_max_connections: Annotated[
        int, Meta(description="Engine connections that one process opens per database and role.", ge=1)
    ] = 16
    cell_max_connections: Annotated[
        int, Meta(description="Engine connections that one process opens per cell, over all databases.", ge=1)
    ] = 64
    cell_max_waiting: Annotated[
        int, Meta(description="Requests of one process that may wait for a connection to one cell.", ge=0)
    ] = 1_000
    metrics_port: Annotated[
        int,
        Meta(
            description="First port for metrics; each worker process takes the next free one. 0: none.", ge=0, le=65535
        ),
    ] = 0
    control_metrics_port: Annotated[
        int, Meta(description="Port for the control plane's metrics. 0: none.", ge=0, le=65535)
    ] = 0
    drain_ms: Annotated[
        int,
        Meta(description="How long a process goes on after it was told to stop, with /health failing already.", ge=0),
    ] = 1_000
    connect_timeout_ms: Annotated[
        int, Meta(description="How long opening an engine connection may take before the cell counts as away.", ge=1)
    ] = 5_000
    body_timeout_ms: Annotated[
        int, Meta(description="How long a request may take to come, beside a second for each 64 KiB of it.", ge=1)
    ] = 30_000
    max_connections: Annotated[
        int, Meta(description="Clients' connections that one process has open; more are refused.", ge=1)
    ] = 10_000
    address_connections: Annotated[
        int, Meta(description="Those of them from one address. 0: as many as all. The alias is one address.", ge=0)
    ] = 0
    stream_ping_ms: Annotated[
        int, Meta(description="How long a stream of events is silent before a comment says that it is alive.", ge=1)
    ] = 15_000
    stream_stall_ms: Annotated[
        int, Meta(description="How long a client may not read its answer before its connection is closed.", ge=1)
    ] = 30_000
    principal_cache_ms: Annotated[
        int, Meta(description="How long a look-up is trusted by itself, and how soon every node heeds a change.", ge=0)
    ] = 900
    channel_cache_ms: Annotated[
        int, Meta(description="How long a look-up is trusted while the directory's channel of changes is sound.", ge=0)
    ] = 60_000
    directory_grace_ms: Annotated[
        int, Meta(description="How long what is known is used when the directory is away; then requests fail.", ge=0)
    ] = 10_000
    usage_flush_ms: Annotated[
        int, Meta(description="How often usage is written down; a crash loses what was counted since.", ge=10)
    ] = 5_000
    database_restore_s: Annotated[
        int, Meta(description="How long a deleted database can be restored.", ge=0, le=3_650 * 86_400)
    ] = 7 * 86_400
    database_max_mb: Annotated[
        int, Meta(description="The size at which a database is suspended, in megabytes. 0: none is.", ge=0)
    ] = 0


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment. Raises SettingsError naming the variable that is wrong or missing."""
    known = {PREFIX + name.upper(): name for name in Settings.__struct_fields__}
    values: dict[str, Any] = {name: environ[variable] for variable, name in known.items() if environ.get(variable)}
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(_FIELD.sub(lambda match: f"`{PREFIX}{match[1].upper()}`", f"{error}.")) from error


def describe_settings() -> list[tuple[str, str, str]]:
    """Every setting as (variable, default, description)."""
    hints = get_type_hints(Settings, include_extras=True)
    defaults = dict(zip(reversed(Settings.__struct_fields__), reversed(Settings.__struct_defaults__), strict=False))
    return [
        (PREFIX + name.upper(), _shown(defaults, name), hints[name].__metadata__[0].description or "")
        for name in Settings.__struct_fields__
    ]


def _shown(defaults: Mapping[str, object], name: str) -> str:
    if name not in defaults:
        return "required"
    return "" if defaults[name] is None else str(defaults[name])
