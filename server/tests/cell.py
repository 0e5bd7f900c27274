"""A cell that tests may kill: a PostgreSQL of their own with a directory, an organization and a database in it.

Owns making it, ending it as a power cut would, and starting it again.
"""

import os
import pwd
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from server.tests.customers import Customers
from server.tests.postgres import Postgres, running_postgres
from server.tests.processes import kill_with_children, stopped_with_children


@dataclass(frozen=True)
class Cell:
    """A cluster that tests may kill, with a directory, an organization and a database in it."""

    postgres: Postgres
    directory_dsn: str
    key: str

    @property
    def _data(self) -> Path:
        return Path(self.postgres.socket_dir) / "data"

    def postmaster_pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split("\n")[0])

    def kill(self) -> None:
        """Ends every process of it at once, as a power cut would."""
        kill_with_children(self.postmaster_pid())

    def stopped(self) -> AbstractContextManager[None]:
        """No process of it moves for the length of the block: what is sent to it arrives, and is not answered."""
        return stopped_with_children(self.postmaster_pid())

    def start(self) -> None:
        """Starts it again, with the options that it was started with; returns when it takes connections."""
        # In a container nobody may have buried the dead, whose ids in these files then look alive.
        (self._data / "postmaster.pid").unlink()
        for lock in Path(self.postgres.socket_dir).glob(".s.PGSQL.*.lock"):
            lock.unlink()
        program, *options = shlex.split((self._data / "postmaster.opts").read_text())
        log = Path(self.postgres.socket_dir) / "log"
        pg_ctl = [str(Path(program).with_name("pg_ctl")), "-D", str(self._data), "-l", str(log), "-w", "-t", "60"]
        user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        subprocess.run(
            [*pg_ctl, "-o", shlex.join(options[2:] if options[0] == "-D" else options), "start"],
            check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=90,
            user=user.pw_uid if user else None, group=user.pw_gid if user else None, extra_groups=[] if user else None,
        )  # fmt: skip

    def customer_dsn(self) -> str:
        """The customer's database, past the service, as the superuser."""
        with self.postgres.connect() as admin:
            row = admin.execute("select datname from pg_database where datname like 'd\\_%'").fetchone()
        assert row is not None
        return self.postgres.dsn(database=row[0])

    @contextmanager
    def reached_through(self, folder: str) -> Iterator[None]:
        """Data planes that start within the block reach the cell by a socket in another folder, a relay's."""
        self._move_to(self.postgres.conninfo.replace(self.postgres.socket_dir, folder))
        try:
            yield
        finally:
            self._move_to(self.postgres.conninfo)

    def _move_to(self, conninfo: str) -> None:
        with psycopg.connect(self.directory_dsn) as directory:
            directory.execute("update cells set conninfo = %s", (conninfo,))


def new_cell(postgres: Postgres, conninfo: str) -> Cell:
    """A directory, an organization, a database and a key in a cluster that the service reaches so."""
    dsn = postgres.fresh_directory()
    return Cell(postgres, dsn, new_customer(dsn, conninfo))


def new_customer(directory_dsn: str, conninfo: str) -> str:
    """The key of a customer with a database, on a cell that is reached so, in a directory that is empty."""
    customers = Customers(directory_dsn)
    customers.add_cell("local", conninfo)
    customers.add_organization("acme")
    customers.add_database("main", "acme")
    return customers.new_key("write", organization="acme")


@contextmanager
def running_cell() -> Iterator[Cell]:
    """A cell for the length of the block."""
    with running_postgres() as postgres:
        yield new_cell(postgres, postgres.conninfo)
