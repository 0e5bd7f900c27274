"""The subcommand `mcp`: a Model Context Protocol server on standard input and output, for agents that start programs.

The tools are the service's: POST /mcp of its control plane carries out what an agent calls, and `mcp_bridge.py` passes
it on. So the rules, which say what may be read and written, are in one place, where no agent can change them.
"""

import argparse
import asyncio
from urllib.parse import urlencode

from plainsql.command.target import client_of, connect, settings_of
from plainsql.control import caller
from plainsql.errors import SettingsError
from plainsql.settings import Settings
from plainsql.transport.protocol import Core


def run_mcp(options: argparse.Namespace) -> int:
    """Serves until standard input ends. Standard output belongs to the protocol."""
    try:
        from plainsql.command.mcp_bridge import serve  # noqa: PLC0415  # an optional dependency
    except ImportError as error:
        raise ImportError("plainsql mcp requires the package mcp: pip install 'plainsql[mcp]'.") from error
    settings = settings_of(options)
    with connect(options) as db:
        # The credential is valid, or this raises an error that says what is wrong with it.
        db.call(caller())
    return asyncio.run(serve(settings, _address(settings, options)))


def _address(settings: Settings, options: argparse.Namespace) -> str:
    """The URL of POST /mcp on the control plane, with what the user allows."""
    core = Core(settings)
    with client_of(settings, options) as db:
        db.perform(core.find_control())
    if core.addresses.control is None:
        raise SettingsError("The service doesn't advertise its control plane.")
    asked = {"allow_writes": "true"} if options.allow_writes else {}
    if settings.database:
        asked["database"] = settings.database
    return f"{core.addresses.control.url}/mcp?{urlencode(asked)}".removesuffix("?")
