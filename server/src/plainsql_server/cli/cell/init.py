"""`plainsql-server cell init`: make a cell of a new PostgreSQL cluster, on its machine."""

import os
import pwd
from pathlib import Path
from typing import Unpack

import click

from plainsql_server.cli.cell.files import FileOptions, file_options, texts_of, write_files
from plainsql_server.cli.output import remark
from plainsql_server.engine.admin.admin_role import ensure_admin_role


@click.command("init")
@file_options
@click.option("--port", default=5432, show_default=True, help="Port of the cluster.")
def init_command(port: int, **options: Unpack[FileOptions]) -> None:
    """Make a cell of the new PostgreSQL cluster whose configuration is in FOLDER.

    Run this on the cell's machine, while the cluster runs, as the system user that owns it. It creates the admin role,
    and then writes the files that `cell files` writes. With these files, no other role can log in on the machine
    itself, so the role must exist first. Restart PostgreSQL afterwards. You can run this again.
    """
    texts = texts_of(options)
    role, conninfo = options["admin_role"], f"host={options['socket_directory']} port={port}"
    system_user = pwd.getpwuid(os.geteuid()).pw_name
    created = ensure_admin_role(conninfo, role, system_user=system_user)
    remark(f"Created the role {role!r}." if created else f"The role {role!r} exists.")
    write_files(options, texts)
    for file in (options["cert_file"], options["key_file"], options["client_ca_file"], options["client_crl_file"]):
        if file and Path(file).is_absolute() and not os.access(file, os.R_OK):
            remark(f"PostgreSQL will not start: it cannot read {file}.")
