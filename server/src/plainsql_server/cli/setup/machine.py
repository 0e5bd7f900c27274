"""`plainsql-server setup`: prepare this machine for the whole service."""

import os
from dataclasses import replace
from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.setup.program import own_program
from plainsql_server.operations.pki.register import PkiError
from plainsql_server.operations.setup.checks import check_archive, check_cell_cluster, check_program
from plainsql_server.operations.setup.machine import Machine, SetupError, find_machine
from plainsql_server.operations.setup.steps import steps_of


@click.command("setup")
@click.argument("host")
@click.option("--dry-run", is_flag=True, help="Only show the steps that are left to do.")
@click.option(
    "--use-existing", is_flag=True,
    help="Make a cell of the cluster `main` although it has databases or roles of others, who can't log in afterwards.",
)  # fmt: skip
@click.option(
    "--archive-to", type=click.Path(file_okay=False, path_type=Path), metavar="PATH",
    help="Archive both clusters continuously with pgBackRest, encrypted, to folders in PATH.",
)  # fmt: skip
def setup_command(host: str, dry_run: bool, use_existing: bool, archive_to: Path | None) -> None:
    """Prepare this Debian machine for the whole service. HOST is the name that customers will use for it.

    Shows each step as the command that you could type instead: system users, certificates, a PostgreSQL cluster for
    the directory, the configuration of both clusters, systemd units, and environment files in /etc/plainsql. Nothing
    is started or restarted, except that the new cluster is started.

    With --archive-to, PostgreSQL archives its WAL, at the latest after a minute, and there are systemd units for
    backups of both clusters: see docs/backups.md.

    You can run this again: what exists is left as it is. PostgreSQL's pg_hba.conf and pg_ident.conf are replaced, and
    kept with the suffix .before-plainsql.
    """
    if os.geteuid() != 0:
        raise click.ClickException("Run this as root: it creates system users and writes to /etc.")
    # Other users must be able to read most of what this writes. Keys have permissions of their own.
    os.umask(0o022)
    try:
        machine = replace(find_machine(host, own_program()), archive=archive_to)
        check_program(machine)
        check_archive(machine)
        if not use_existing:
            check_cell_cluster(machine)
        done = _prepare(machine, dry_run=dry_run)
    except (SetupError, PkiError, OSError) as error:
        raise click.ClickException(f"{error} Run `plainsql-server setup` again to continue.") from error
    remark("Dry run: nothing was changed." if dry_run else _next(machine, done))


def _prepare(machine: Machine, *, dry_run: bool) -> int:
    """Run what is left to do. Returns how many steps were done before."""
    done = 0
    for step in steps_of(machine):
        if step.is_done():
            done += not step.is_repair
            continue
        remark(f"+ {step.shown}")
        notes = "" if dry_run else step.run()
        for line in notes.splitlines():
            remark(f"  {line}")
    return done


def _next(machine: Machine, done: int) -> str:
    before = f" {done} steps had been done before." if done else ""
    return (
        f"This machine is prepared.{before} Now restart PostgreSQL, and load {machine.config}/operator.env into your"
        " shell: see docs/install.md."
    )
