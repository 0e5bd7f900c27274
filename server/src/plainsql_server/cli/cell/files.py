"""`plainsql-server cell files`: write the configuration of a cell's PostgreSQL to a folder.

`FileOptions`, `file_options` and `write_files` are for `cell init`, which does the same and more.
"""

import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import click

from plainsql_server.cli.made_secrets import make_key, make_login
from plainsql_server.cli.output import remark
from plainsql_server.cli.setup.program import own_program, program_option
from plainsql_server.operations.files.archive import ArchiveConfig
from plainsql_server.operations.files.cell import CellConfig, Tls
from plainsql_server.operations.files.drop_in import memory_drop_in
from plainsql_server.operations.files.machine_memory import machine_memory_bytes
from plainsql_server.operations.files.placing import place_file
from plainsql_server.operations.files.sizing import GIB
from plainsql_server.operations.files.stream import StreamConfig
from plainsql_server.operations.files.units import guard_unit

memory_option = click.option(
    "--memory-gib", type=click.FloatRange(min=0, min_open=True), metavar="GIB",
    help="Memory of the cell's machine, which determines how many connections it allows.  [default: this machine's]",
)  # fmt: skip


Command = TypeVar("Command", bound=Callable[..., Any])

_INCLUDED = re.compile(r"^\s*include_dir\s*=?\s*'?conf\.d'?", re.MULTILINE)

_OPTIONS = (
    click.argument("folder", type=click.Path(file_okay=False, path_type=Path)),
    click.option(
        "--admin-role", required=True, metavar="ROLE",
        help="Superuser that the service logs in as to provision databases.",
    ),
    click.option(
        "--cert-file", default="server.crt", show_default=True, help="Path of the cell's certificate on its machine."
    ),
    click.option("--key-file", default="server.key", show_default=True, help="Path of the certificate's private key."),
    click.option(
        "--client-ca-file", default="clients.crt", show_default=True,
        help="Path of the CA that signs the service's certificates.",
    ),
    click.option(
        "--client-crl-file", metavar="PATH",
        help="Path of the list of revoked certificates. PostgreSQL does not start without it.",
    ),
    click.option(
        "--socket-directory", default="/run/postgresql", show_default=True, help="Folder of PostgreSQL's local socket."
    ),
    click.option(
        "--data-folder", default="/var/lib/postgresql/15/main", show_default=True,
        help="PostgreSQL's data folder, for the guard's unit.",
    ),
    click.option(
        "--listen-addresses", default="*", show_default=True, metavar="LIST",
        help="Addresses that PostgreSQL listens on, separated by commas.",
    ),
    click.option(
        "--network", "networks", multiple=True, default=["0.0.0.0/0", "::0/0"], show_default=True,
        help="Network that the service connects from; repeatable.",
    ),
    memory_option,
    program_option,
    click.option(
        "--archive-to", metavar="PATH",
        help="Archive the cell continuously with pgBackRest, encrypted, to this folder.",
    ),
    click.option(
        "--archive-config", metavar="PATH",
        help="Folder of pgBackRest's configuration on the cell's machine.  [default: pgbackrest in FOLDER]",
    ),
    click.option(
        "--archive-port", type=click.IntRange(1, 65535), default=5432, show_default=True,
        help="With --archive-to: port of the cell, for pgBackRest.",
    ),
    click.option(
        "--stream-to", metavar="PATH",
        help="With --archive-to: let another machine receive the WAL as it is written, to this folder.",
    ),
    click.option("--stream-from", metavar="HOST", help="With --stream-to: how the receiver reaches the cell."),
    click.option(
        "--stream-receiver", default="all", show_default=True, metavar="ADDRESS",
        help="With --stream-to: address, network or name that the receiver connects from.",
    ),
)  # fmt: skip


class FileOptions(TypedDict):
    """The options of `cell files` and `cell init`."""

    folder: Path
    admin_role: str
    cert_file: str
    key_file: str
    client_ca_file: str
    client_crl_file: str | None
    socket_directory: str
    data_folder: str
    listen_addresses: str
    networks: tuple[str, ...]
    memory_gib: float | None
    program: str | None
    archive_to: str | None
    archive_config: str | None
    archive_port: int
    stream_to: str | None
    stream_from: str | None
    stream_receiver: str


def file_options(command: Command) -> Command:
    """Give a command the arguments and options in FileOptions."""
    return reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


@click.command("files")
@file_options
def files_command(**options: Unpack[FileOptions]) -> None:
    """Write the configuration of a cell's PostgreSQL to FOLDER, which may be the cluster's own.

    The settings are in conf.d/plainsql.conf, which Debian's postgresql.conf includes; that file is not changed.
    pg_hba.conf and pg_ident.conf are replaced, and kept with the suffix .before-plainsql. memory.conf is a drop-in for
    PostgreSQL's systemd unit, and guard.service a unit for `cell guard`. The service logs in with certificates: the
    control plane with one that names the admin role, the data plane with one of any other name, which can log in as
    every tenant's role but not as the admin role. Use `cell init` for a new cluster, which has no admin role yet.

    With --archive-to, PostgreSQL archives its WAL, at the latest after a minute, and pgbackrest/ has the configuration
    of pgBackRest, with a key that is made once. Install the units plainsql-archive* for full and differential backups,
    for a nightly rehearsal of a restore, and for restores that customers ask for; the last two read
    /etc/plainsql/backup.env. The settings take effect when PostgreSQL is restarted.

    With --stream-to, the role plainsql_stream can receive the WAL, with a password, and can log in to no database.
    stream/ has that password, which is made once, what makes the role, and the units and the environment of the machine
    that receives the WAL. It needs no certificate, which would open the customers' databases: docs/backups.md.

    A quarter of the memory is for connections. If standbys follow this server, raise max_connections on them first:
    a standby stops following a server that allows more connections than it does.
    """
    write_files(options, texts_of(options))


def texts_of(options: FileOptions) -> dict[str, str]:
    """The text of each file, by its path in the folder. Raises UsageError if an option cannot be in a file."""
    tls = Tls(options["cert_file"], options["key_file"], options["client_ca_file"], options["client_crl_file"])
    try:
        archive, stream = _archive_of(options), _stream_of(options)
        settings = {**(archive.settings() if archive else {}), **(stream.settings() if stream else {})}
        config = CellConfig(
            options["admin_role"], options["socket_directory"], tls, options["listen_addresses"],
            options["networks"], memory_bytes(options["memory_gib"]), settings,
            receiver=stream.receiver if stream else None,
        )  # fmt: skip
        # The map comes before the rules that use it: after an interruption in between, the admin role can log in.
        return {
            "conf.d/plainsql.conf": config.postgresql_conf(), "pg_ident.conf": config.pg_ident_conf(),
            "pg_hba.conf": config.pg_hba_conf(), "memory.conf": memory_drop_in(),
            "guard.service": guard_unit(options["program"] or own_program(), options["data_folder"]),
            **(_archive_texts(archive, options) if archive else {}),
            **(stream.texts(options["program"] or own_program()) if stream else {}),
        }  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _archive_texts(archive: ArchiveConfig, options: FileOptions) -> dict[str, str]:
    restoring = archive.restoring_texts(options["program"] or own_program())
    return {"pgbackrest/pgbackrest.conf": archive.pgbackrest_conf(), **archive.unit_texts(), **restoring}


def _archive_of(options: FileOptions) -> ArchiveConfig | None:
    if options["archive_to"] is None:
        if options["archive_config"] is not None:
            raise ValueError("--archive-config needs --archive-to.")
        return None
    config_folder = options["archive_config"] or str((options["folder"] / "pgbackrest").resolve())
    return ArchiveConfig(
        options["archive_to"], config_folder, options["admin_role"], options["data_folder"],
        options["socket_directory"], options["archive_port"],
    )  # fmt: skip


def _stream_of(options: FileOptions) -> StreamConfig | None:
    folder, host, archive = options["stream_to"], options["stream_from"], _archive_of(options)
    if folder is None and host is None:
        return None
    if folder is None or host is None or archive is None:
        raise ValueError("--stream-to and --stream-from belong together, and need --archive-to.")
    return StreamConfig(folder, host, options["archive_port"], archive.config_folder, options["stream_receiver"])


def write_files(options: FileOptions, texts: dict[str, str]) -> None:
    """Write the files, and say what was kept and what is left to do."""
    folder = options["folder"]
    placed = [place_file(folder / name, text) for name, text in texts.items()]
    if options["archive_to"] is not None:
        make_key(folder)
    if options["stream_to"] is not None:
        make_login(folder)
    remark(f"Wrote {', '.join(texts)} to {folder}.")
    for each in placed:
        if each.kept:
            remark(f"The previous {each.path.name} is now {each.kept}.")
    main = folder / "postgresql.conf"
    if main.exists() and not _INCLUDED.search(main.read_text()):
        remark(f"Add this line to the end of {main}: include_dir = 'conf.d'")


def memory_bytes(gib: float | None) -> int:
    """The value of `--memory-gib` in bytes, or the memory of this machine."""
    return machine_memory_bytes() if gib is None else int(gib * GIB)
