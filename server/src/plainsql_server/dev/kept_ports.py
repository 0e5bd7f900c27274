"""The ports of the planes and the alias: the same at every start, so that a URL in your program stays valid.

    ports = settle_ports(wanted, folder.ports_file, screen)

Without an option, a plane has its usual port. If that is in use, it gets another one, which `ports.json` in the state
folder keeps for the next start. A port given as an option is not kept.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from plainsql_server.dev.folder import write_json
from plainsql_server.dev.options import DevError
from plainsql_server.dev.ports import choose_ports
from plainsql_server.dev.screen import Screen

USUAL_PORTS: Mapping[str, int] = MappingProxyType({"--data-port": 8400, "--control-port": 8401, "--alias-port": 8402})


def settle_ports(
    wanted: Mapping[str, int | None], file: Path, screen: Screen, usual: Mapping[str, int] = USUAL_PORTS
) -> dict[str, int]:
    """A port for each option: the given one, any free one for 0, and for None the kept or the usual one if possible."""
    kept = _read(file)
    preferred = {option: kept.get(option, usual[option]) for option, port in wanted.items() if port is None}
    chosen = choose_ports({option: port or 0 for option, port in wanted.items()}, preferred)
    for option, port in preferred.items():
        if chosen[option] != port:
            screen.say(f"  Port {port} is in use. {option} is {chosen[option]} from now on.")
    settled = kept | {option: chosen[option] for option in preferred}
    if settled != kept:
        write_json(file, settled)
    return chosen


def _read(file: Path) -> dict[str, int]:
    try:
        return {str(option): int(port) for option, port in json.loads(file.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise DevError(f"Can't read {file}: {error}. Remove it and start again.") from error
