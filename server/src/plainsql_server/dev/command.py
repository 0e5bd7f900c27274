"""Runs `plainsql-server dev`: prepares the folder, starts the parts in order, watches them, and stops them.

Exit codes: 0 after Ctrl-C, SIGTERM or SIGHUP, the normal ways to end a run; 1 if it could not start or a part died.
"""

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from plainsql_server import VERSION
from plainsql_server.dev.alias import MISSING as ALIAS_MISSING
from plainsql_server.dev.alias import AliasPart, find_nginx
from plainsql_server.dev.binaries import Binaries, find_binaries, made_reachable
from plainsql_server.dev.certificates import ensure_certificates
from plainsql_server.dev.cluster import PORT, SUPERUSER, Cluster, place_cluster, remove_socket_directory
from plainsql_server.dev.folder import Folder, RunState, open_folder, read_state, write_json, write_secret
from plainsql_server.dev.kept_ports import settle_ports
from plainsql_server.dev.local_http import LINK_LIFE_S, new_session
from plainsql_server.dev.options import DevError, DevOptions
from plainsql_server.dev.parts import Part, refuse_the_dead, start_all, stop_all
from plainsql_server.dev.ports import free_ports
from plainsql_server.dev.postgres import NewCluster, Postgres, end_leftover_postgres
from plainsql_server.dev.processes import Launcher, end_leftovers
from plainsql_server.dev.redis import MISSING as REDIS_MISSING
from plainsql_server.dev.redis import Redis, find_redis
from plainsql_server.dev.screen import Screen, client_line, curl_line, trust_lines
from plainsql_server.dev.service import Addresses, Plane, Provisioning, as_role, plane_settings
from plainsql_server.dev.signals import Signals
from plainsql_server.directory.rights.grants import Role
from plainsql_server.extension_modules import COMPILED
from plainsql_server.limits.tiers import TIERS

_NOT_COMPILED = (
    "The extension modules aren't compiled, so queries are slower. To compile them, install a C compiler and Python's "
    "headers (apt install gcc libc6-dev python3-dev), and install PlainSQL again."
)


@dataclass(frozen=True, slots=True)
class _Run:
    """The decisions of a run, made before anything is started."""

    folder: Folder
    cluster: Cluster
    addresses: Addresses
    provisioning: Provisioning
    parts: list[Part]
    settings: dict[str, str]
    """Those of an operator."""


def run(options: DevOptions) -> int:
    """Runs everything until a stop signal arrives. Returns the exit code. Call it in the main thread."""
    screen = Screen()
    try:
        _check(options)
        with Signals() as signals, open_folder(options.directory) as folder:
            return _run(options, folder, signals, screen)
    except DevError as error:
        screen.failed(str(error))
        return 1


def _run(options: DevOptions, folder: Folder, signals: Signals, screen: Screen) -> int:
    began = time.monotonic()
    screen.say(f"PlainSQL {VERSION}, state in {folder.path}")
    if not COMPILED:
        screen.say(f"  {_NOT_COMPILED}")
    state = _clean_state(folder)
    parts: list[Part] = []
    try:
        prepared = _prepare(options, folder, state, screen)
        parts = prepared.parts
        if start_all(parts, signals, screen):
            write_secret(folder.environment_file, _environment(prepared))
            write_json(folder.description_file, _description(prepared))
            _say_ready(prepared, screen, time.monotonic() - began)
            _watch(parts, signals)
    finally:
        _stop(folder, state, parts, signals, screen)
    return 0


def _check(options: DevOptions) -> None:
    if options.tier is not None and options.tier not in TIERS:
        raise DevError(f"Unknown tier {options.tier!r}. Choose from {', '.join(TIERS)}.")
    if options.workers < 1:
        raise DevError("--workers must be 1 or more.")


def _clean_state(folder: Folder) -> RunState:
    """Ends the processes that the last run left behind, and returns a new record for this run."""
    _forget_description(folder)
    last = read_state(folder)
    if last is not None:
        end_leftovers(last)
    state = RunState()
    if last is not None:
        # PostgreSQL stays in the record until its cluster has been found and it has been stopped.
        state.processes = [entry for entry in last.processes if entry.name == Postgres.name]
        remove_socket_directory(last.socket_directory)
    state.save(folder)
    return state


def _prepare(options: DevOptions, folder: Folder, state: RunState, screen: Screen) -> _Run:
    nginx = find_nginx()
    wanted = {
        "--data-port": options.data_port, "--control-port": options.control_port, "--alias-port": options.alias_port,
    }  # fmt: skip
    ports = settle_ports(wanted, folder.ports_file, screen)
    cluster = place_cluster(folder, state)
    end_leftover_postgres(cluster, state)
    state.processes.clear()
    binaries = made_reachable(_binaries(options, cluster), cluster.account, cluster.home)
    certificates = ensure_certificates(folder.tls) if options.tls else None
    alias_port = ports["--alias-port"] if nginx else None
    own_ports = free_ports(options.workers)
    addresses = Addresses(ports["--data-port"], ports["--control-port"], own_ports, alias_port, certificates)
    launcher = Launcher(folder, state)
    provisioning = Provisioning(launcher, folder, cluster, options.tier)
    redis = _redis(launcher, cluster, screen)
    settings = plane_settings(folder, cluster, addresses, redis[0].url if redis else None)
    needed = [part.name for part in redis]
    parts: list[Part] = [
        NewCluster(launcher, cluster, binaries),
        Postgres(launcher, cluster, binaries),
        *redis,
        provisioning,
        Plane("data", launcher, addresses, as_role(settings, cluster, Role.DATA), *needed),
        Plane("control", launcher, addresses, as_role(settings, cluster, Role.CONTROL), *needed),
    ]
    if nginx:
        parts.append(AliasPart(launcher, nginx, folder.alias, addresses))
    else:
        screen.say(f"  {ALIAS_MISSING}")
    return _Run(folder, cluster, addresses, provisioning, parts, as_role(settings, cluster, Role.OPERATOR))


def _redis(launcher: Launcher, cluster: Cluster, screen: Screen) -> list[Redis]:
    program = find_redis()
    if program is None:
        screen.say(f"  {REDIS_MISSING}")
        return []
    return [Redis(launcher, program, cluster.socket_directory)]


def _binaries(options: DevOptions, cluster: Cluster) -> Binaries:
    existing = cluster.existing_major()
    if existing and options.postgres_major not in (None, existing):
        raise DevError(
            f"The data in {cluster.home} was created by PostgreSQL {existing}; PostgreSQL {options.postgres_major} "
            "can't open it. Omit --postgres-major, or use another --dir."
        )
    return find_binaries(existing or options.postgres_major)


def _watch(parts: list[Part], signals: Signals) -> None:
    """Waits for a stop signal. Raises DevError if a part dies first."""
    while not signals.stop_asked:
        refuse_the_dead(parts)
        signals.wait(None)


def _stop(folder: Folder, state: RunState, parts: list[Part], signals: Signals, screen: Screen) -> None:
    _forget_description(folder)
    began = time.monotonic()
    if signals.stop_asked:
        screen.say(f"\n{signals.stop_asked.name}: stopping.")
    stop_all(parts, signals)
    remove_socket_directory(state.socket_directory)
    folder.state_file.unlink(missing_ok=True)
    screen.say(f"Stopped in {time.monotonic() - began:.2f} s.")


def _forget_description(folder: Folder) -> None:
    folder.description_file.unlink(missing_ok=True)
    folder.environment_file.unlink(missing_ok=True)


def _environment(run: _Run) -> str:
    """The content of operator.env: shell variables that point `plainsql-server` commands at this service."""
    certificates = run.addresses.certificates
    # What `doctor`, `status` and the client trust. Empty counts as unset, as in the settings.
    variables = {**run.settings, "PLAINSQL_CA_FILE": str(certificates.ca_file) if certificates else ""}
    # It needs neither backups nor a guard.
    variables["PLAINSQL_UPKEEP"] = "off"
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def _description(run: _Run) -> dict[str, object]:
    """The content of dev.json: everything that a program needs to use this service."""
    provisioned = run.provisioning.result()
    certificates = run.addresses.certificates
    running = {part.name: part.child.pid for part in run.parts if part.lasting and part.child}
    return {
        "data_url": run.addresses.data_url,
        "control_url": run.addresses.control_url,
        "alias_url": run.addresses.alias_url,
        "ca_file": str(certificates.ca_file) if certificates else None,
        "api_key_file": str(run.folder.api_key_file),
        "database": provisioned.database,
        "pids": {"dev": os.getpid(), **running},
        "postgres": {
            "socket": str(run.cluster.socket_directory),
            "port": PORT,
            "superuser": SUPERUSER,
            "database": provisioned.engine_database,
        },
    }


def _console_lines(run: _Run, screen: Screen) -> list[tuple[str, str]]:
    from plainsql_server.http.control.console import is_built  # noqa: PLC0415  # loaded by now

    address = f"{run.addresses.control_url}/console"
    if not is_built():
        return [("Web console", f"{address}  # not built: run `make console` in the checkout")]
    lines = [("Web console", f"{address}  # sign in with the API key")]
    if screen.is_private() and (token := _link_token(run)):
        link = f"{address}#/sign-in?token={token}"
        lines.append(("Or signed in", f"{link}  # works once, within {LINK_LIFE_S // 60} minutes"))
    return lines


def _link_token(run: _Run) -> str | None:
    key = run.folder.api_key_file.read_text().strip()
    return new_session(run.addresses.control_port, run.addresses.ssl_context, key)


def _say_ready(run: _Run, screen: Screen, elapsed_s: float) -> None:
    certificates = run.addresses.certificates
    ca_file: Path | None = certificates.ca_file if certificates else None
    facts = [
        ("Data plane", run.addresses.data_url),
        ("Control plane", run.addresses.control_url),
        ("Alias", run.addresses.alias_url or "none (nginx isn't installed)"),
        *_console_lines(run, screen),
        ("API key", str(run.folder.api_key_file)),
        ("CA", str(ca_file) if ca_file else "none (plain HTTP)"),
        *(trust_lines(ca_file) if ca_file else []),
        ("Database", run.provisioning.result().database),
        ("For programs", str(run.folder.description_file)),
        ("For operators", f". {shlex.quote(str(run.folder.environment_file))}"),
    ]
    how = run.addresses.data_url, run.folder.api_key_file, ca_file
    screen.ready(elapsed_s, facts, [curl_line(*how), client_line(run.folder.path, *how)])
