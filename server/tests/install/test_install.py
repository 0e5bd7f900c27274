"""docs/install.md is followed as written, on a bare Debian machine. It shows what a person sees."""

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from server.tests.install.bare_machine import Machine, bare_machine
from server.tests.install.guide import read_guide, rotations
from server.tests.install.walkthrough import follow, need_machines, wheels_of_the_service
from server.tests.processes import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(1700)]

_GUIDE = "One machine with systemd"
_UNITS = ("plainsql-data", "plainsql-control", "plainsql-guard", "plainsql-backup.timer", "plainsql-renew.timer")
_PLANES = {"data": 8400, "control": 8401}
# Over the network, with the directory's roles and on the cell.
_UNENCRYPTED = """select count(*) from pg_stat_activity join pg_stat_ssl using (pid)
    where client_addr is not null and not ssl"""
# The certificates of some connections in a row, hashed.
_SHOWN = """
import hashlib, ssl
for _ in range(3):
    print(hashlib.sha256(ssl.get_server_certificate(("sql.example", {port})).strip().encode()).hexdigest())
"""
_LIMIT_S = 120
_ENCRYPTED = _UNENCRYPTED.replace("not ssl", "ssl")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels_of_the_service(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def machine(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need_machines()
    install = next(each for each in read_guide(_GUIDE).to_first_answer if each.startswith("apt-get install"))
    packages = [word for word in install.split()[2:] if not word.startswith("-")]
    with bare_machine(tmp_path_factory.mktemp("machine"), wheels, packages) as made:
        yield made


def as_postgres(machine: Machine, port: int, user: str, query: str) -> str:
    psql = ["psql", "-At", "-p", str(port), "-U", user, "-c", query, "postgres"]
    return machine.ask("runuser", "-u", "postgres", "--", *psql).strip()


def test_the_guide_leads_from_a_bare_machine_to_the_first_answer(machine: Machine) -> None:
    guide = read_guide(_GUIDE)
    with machine.shell() as shell:
        *_, answer = follow(shell, guide.to_first_answer)
        assert re.search(r"Hello from d_[0-9a-f]+", answer.output)

        for unit in _UNITS:
            assert machine.ask("systemctl", "is-active", unit).strip() == "active"
        for port, user in ((5432, "plainsql_admin"), (5433, "postgres")):
            assert as_postgres(machine, port, user, _UNENCRYPTED) == "0"
            assert int(as_postgres(machine, port, user, _ENCRYPTED)) > 0

        # Twice: the second time, nothing is left to do.
        again = follow(shell, [_setup(guide.to_first_answer)])[0]
        assert [line for line in again.output.splitlines() if line.startswith("+")] == ["+ systemctl daemon-reload"]

        follow(shell, guide.afterwards["Check the installation"])
        follow(shell, guide.afterwards["Upgrade"])
        follow(shell, ["cp -r /srv/wheels /srv/wheels-before", *guide.afterwards["Roll back"]])
        follow(shell, guide.to_first_answer[-1:])

        # What the timer starts every week, when certificates are about to expire.
        follow(shell, ["plainsql-server pki renew --all --days 60"])
        # The authorities stay.
        names = ("server.crt", "client.crt")
        before = certificates(machine, names)
        follow(shell, ["systemctl start plainsql-renew"])
        assert not set(before) & set(certificates(machine, names))
        wait_for(lambda: shows_its_files(machine), _LIMIT_S, str)

        before = certificates(machine)
        for command in rotations():
            earlier = {plane: backends(machine, plane) for plane in _PLANES if f"plainsql-{plane}" in command}
            follow(shell, [command])
            # The guide says where to wait: until the old processes have ended.
            if "reload" in command:
                wait_for(partial(are_replaced, machine, earlier), _LIMIT_S, str)
                wait_for(lambda: shows_its_files(machine), _LIMIT_S, str)
        follow(shell, [guide.to_first_answer[-1], "plainsql-server doctor"])
        assert not set(before) & set(certificates(machine))


def backends(machine: Machine, plane: str) -> set[str]:
    """A plane's connections to the directory."""
    query = f"select pid from pg_stat_activity where usename = 'plainsql_{plane}'"
    return set(as_postgres(machine, 5433, "postgres", query).split())


def are_replaced(machine: Machine, earlier: dict[str, set[str]]) -> bool:
    """Whether each plane has connections to the directory, and none of the earlier ones."""
    found = {plane: backends(machine, plane) for plane in earlier}
    return all(found[plane] and not found[plane] & earlier[plane] for plane in earlier)


def shows_its_files(machine: Machine) -> bool:
    """Whether new connections to the planes get the certificates that are in their folders."""
    for plane, port in _PLANES.items():
        shown = machine.ask("/opt/plainsql/bin/python", "-c", _SHOWN.format(port=port))
        if set(shown.split()) != {hashed((machine.tree / f"etc/plainsql/{plane}/server.crt").read_text())}:
            return False
    return True


def hashed(certificate: str) -> str:
    return hashlib.sha256(certificate.strip().encode()).hexdigest()


def certificates(machine: Machine, names: tuple[str, ...] = ()) -> list[str]:
    """Every certificate in use on the machine, or those in files of these names."""
    files = (machine.tree / "etc/plainsql").glob("*/*.crt")
    return [file.read_text() for file in files if file.parent.name != "pki" and (not names or file.name in names)]


def _setup(commands: list[str]) -> str:
    return next(each for each in commands if "plainsql-server setup" in each)
