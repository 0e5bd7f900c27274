"""Doctor's checks of the planes and the alias at their public URLs, of their processes, and of the limiter's Redis.

A plane that does not respond may not be started yet, so that is a warning. A plane that gives a wrong answer is broken.
"""

from collections.abc import AsyncIterator

from redis.asyncio import Redis
from redis.exceptions import RedisError

from plainsql_server import VERSION
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.share import WHOLE
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sharing.processes import Member, members
from plainsql_server.operations.asking import AskingError, HttpAnswer, get
from plainsql_server.operations.findings import Finding, Target, broken, good, warning
from plainsql_server.settings import PREFIX

_REDIS_TIMEOUT_S = 2.0
_REDIS_OLDEST = 7
_FIX_CERTIFICATE = "Install a valid certificate for that name, or pass its CA to `doctor` with --ca-file."
# A control plane route, which the alias redirects.
_CONTROL_ROUTE = "/v1/organizations/current"


async def planes(target: Target) -> AsyncIterator[Finding]:
    """Check that each plane answers at its public URL."""
    for name in ("data", "control"):
        url = str(getattr(target.settings, f"{name}_url"))
        if not url:
            yield warning(
                "planes", f"{PREFIX}{name.upper()}_URL is not set, so clients can't discover the {name} plane.",
                f"Set it to the {name} plane's public URL.",
            )  # fmt: skip
            continue
        yield await _plane(target, name, url)


async def _plane(target: Target, name: str, url: str) -> Finding:
    try:
        answer = await get(url, "/health", target.ca_file)
    except AskingError as error:
        if "certificate" in str(error):
            return broken("planes", f"The {name} plane at {url}: {error}.", _FIX_CERTIFICATE)
        return warning(
            "planes", f"The {name} plane does not respond at {url}: {error}.",
            f"Start `plainsql-server {name}`, or correct {PREFIX}{name.upper()}_URL.",
        )  # fmt: skip
    return _health(name, url, answer)


def _health(name: str, url: str, answer: HttpAnswer) -> Finding:
    health = answer.json()
    if "checks" not in health:
        return broken(
            "planes", f"The server at {url} is not a PlainSQL {name} plane.", f"Correct {PREFIX}{name.upper()}_URL."
        )
    ill = {check: state for check, state in health["checks"].items() if state != "ok"}
    if ill:
        shown = ", ".join(f"{check} {state}" for check, state in ill.items())
        return broken(
            "planes", f"The {name} plane reports: {shown}.", "See the findings about these parts, and the plane's log."
        )
    if health.get("version") != VERSION:
        return warning(
            "planes",
            f"The {name} plane runs {health.get('version')}, but this command is {VERSION}.",
            "Upgrade the older one.",
        )
    return good("planes", f"The {name} plane at {url} is healthy.")


async def alias(target: Target) -> AsyncIterator[Finding]:
    """Check that the alias points to this data plane and redirects to this control plane."""
    settings = target.settings
    if not settings.alias_url:
        return
    try:
        banner = (await get(settings.alias_url, "/", target.ca_file)).json()
        redirect = await get(settings.alias_url, _CONTROL_ROUTE, target.ca_file)
    except AskingError as error:
        yield _unheard_alias(settings.alias_url, error)
        return
    again = "Print its configuration again with `plainsql-server alias` and reload nginx."
    if banner.get("data_url") != settings.data_url:
        found = banner.get("data_url", "no data plane")
        yield broken("alias", f"The alias points to {found}, not to {settings.data_url}.", again)
    elif not redirect.headers.get("location", "").startswith(settings.control_url):
        led = redirect.headers.get("location", f"nowhere (status {redirect.status})")
        yield broken("alias", f"The alias redirects control requests to {led}, not to {settings.control_url}.", again)
    else:
        yield good("alias", f"The alias at {settings.alias_url} points to both planes.")


def _unheard_alias(url: str, error: AskingError) -> Finding:
    if "certificate" in str(error):
        return broken("alias", f"The alias at {url}: {error}.", _FIX_CERTIFICATE)
    fix = "Start its nginx, or unset PLAINSQL_ALIAS_URL."
    return broken("alias", f"The alias does not respond at {url}: {error}.", fix)


async def processes(target: Target) -> AsyncIterator[Finding]:
    """Check that each process that is listed in the directory has its share of the limits."""
    listed = await _listed(target)
    for plane in ("data", "control"):
        own = [member for member in listed if member.plane == plane]
        if not own:
            continue
        target_share = WHOLE // len(own)
        short = [member for member in own if member.share < target_share]
        if not short:
            number = f"{len(own)} {plane} plane process{'es run' if len(own) > 1 else ' runs'}"
            yield good("processes", f"{number}, with {_percent(target_share)} of the limits for each.")
        for member in short:
            found = f"process {member.pid} on {member.host} has {_percent(member.share)} of the limits"
            yield warning(
                "processes", f"The {plane} plane's {found}, not {_percent(target_share)}.",
                "Wait some seconds, until the others have given up theirs, and run `doctor` again. If it stays so, see"
                " `list of processes` in their logs.",
            )  # fmt: skip


def _percent(share: int) -> str:
    return f"{100 * share / WHOLE:.1f} %"


async def _listed(target: Target) -> list[Member]:
    """The live processes; none if the directory can't say, which is a finding of another check."""
    try:
        async with (
            Directory.open(target.settings.directory_dsn, max_connections=1) as directory,
            directory.connection() as connection,
        ):
            return await members(connection)
    except ServiceError:
        return []


async def redis(target: Target) -> AsyncIterator[Finding]:
    """Check that all processes can share rate limits."""
    settings = target.settings
    if settings.redis_url is None:
        running = sum(member.plane == "data" for member in await _listed(target))
        number = max(running, settings.workers)
        if number > 1:
            yield warning(
                "redis", f"{number} data plane processes count requests in the directory, without Redis.",
                "Set PLAINSQL_REDIS_URL to one Redis that all of them share.",
            )  # fmt: skip
        return
    client = Redis.from_url(
        settings.redis_url, socket_timeout=_REDIS_TIMEOUT_S, socket_connect_timeout=_REDIS_TIMEOUT_S
    )
    try:
        facts = await client.info()
    except (RedisError, OSError) as error:
        yield broken(
            "redis",
            f"Redis does not respond: {str(error).rstrip('.')}. Each process enforces its share of the rate limits.",
            "Start it, or correct PLAINSQL_REDIS_URL.",
        )  # fmt: skip
        return
    finally:
        await client.aclose()
    for finding in _redis_facts(facts):
        yield finding


def _redis_facts(facts: dict[str, object]) -> list[Finding]:
    version, policy = str(facts.get("redis_version", "0")), str(facts.get("maxmemory_policy", ""))
    if int(version.split(".", maxsplit=1)[0]) < _REDIS_OLDEST:
        return [
            warning("redis", f"Redis {version} has not been tested.", f"Use Redis {_REDIS_OLDEST} or newer, or Valkey.")
        ]
    if facts.get("maxmemory") and policy != "noeviction":
        fix = "Set `maxmemory-policy noeviction`, so Redis never drops a rate limit's count."
        return [warning("redis", f"Redis may evict keys: its policy is {policy}.", fix)]
    return [good("redis", f"Redis {version} responds.")]
