"""`plainsql-server migrate`."""

import click

from plainsql_server.cli.output import remark
from plainsql_server.core.actor import name_operator
from plainsql_server.directory.migrations import migrate, pending
from plainsql_server.settings import operators_name, read_settings


@click.command("migrate")
def migrate_command() -> None:
    """Create or update the directory's tables.

    It also creates the roles of planes and operators, and grants their rights. Run it before you start a new version of
    the service, as the owner of the directory. It is safe to run at any time, and several times at once. If it fails,
    nothing has changed.
    """
    settings = read_settings()
    name_operator(operators_name(settings))
    dsn = settings.directory_dsn
    if pending(dsn) is None:
        # Not a failure: after a rollback, an older version runs it before it starts.
        remark("The directory belongs to a newer version. Nothing was changed.")
        return
    migrate(dsn)
    remark("The directory is up to date.")
