"""The guide to a cell on three machines is followed as written, and then the leader's machine fails.

Four bare machines: one with the service, installed by its own guide, and the three. It shows what a person sees.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from server.tests.built_packages import ROOT, users_environment
from server.tests.install.bare_machine import Machine, Shell, booted, copied_tree, make_tree
from server.tests.install.guide import read_guide
from server.tests.install.machine_network import Network, made_network
from server.tests.install.walkthrough import follow, need_machines, wheels_of_the_service
from server.tests.processes import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(1700)]

_GUIDE = read_guide("A cell on three machines")
_SERVICE = "sql.example"
_ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3", _SERVICE: "10.0.0.4"}
_NODES = ("a", "b", "c")
_LIST = _GUIDE.steps[4][-1]
_ASK = _GUIDE.steps[6][-1]
_LIMIT_S = 180
# Notes each number whose insertion was confirmed. Slow enough for the rate of the free tier.
_WRITER = """
import itertools, pathlib, time
import plainsql
with plainsql.connect() as db, open("/root/confirmed.txt", "w", buffering=1) as confirmed:
    db.query("create table numbers (number bigint primary key)")
    for number in itertools.count():
        if pathlib.Path("/root/stop").exists():
            break
        try:
            db.query("insert into numbers values ($1)", number)
            print(number, file=confirmed)
        except plainsql.Error as error:
            print(number, error)
        time.sleep(0.5)
"""


@dataclass
class Place:
    """The four machines and their network."""

    folder: Path
    network: Network
    machines: dict[str, Machine] = field(default_factory=dict)
    power: dict[str, ExitStack] = field(default_factory=dict)

    def switch_on(self, name: str) -> None:
        self.power[name] = ExitStack()
        self.machines[name] = self.power[name].enter_context(booted(self.folder / name, name))
        self.network.connect(self.machines[name], f"{_ADDRESSES[name]}/24")

    def switch_off(self, name: str) -> None:
        """As a power cut would: nobody gets an error from it."""
        self.network.disconnect(self.machines.pop(name))
        self.power.pop(name).close()

    def end(self) -> None:
        for each in self.power.values():
            each.close()

    def copy(self, node: str) -> None:
        """Copies the folder of a machine to that machine, as /root/cell."""
        shutil.copytree(self.folder / _SERVICE / "root/eu-2" / node, self.folder / node / "root/cell")

    def leader(self) -> str:
        """The machine that leads. Waits until two others follow it, one at least in step."""
        wait_for(lambda: len(self._roles()) == len(_NODES), _LIMIT_S, lambda: str(self._roles()))
        return next(name for name, role in self._roles().items() if role == "Leader")

    def _roles(self) -> dict[str, str]:
        """Of the machines that lead or follow, if the cell is whole."""
        asked = next(self.machines[node] for node in _NODES if node in self.machines)
        rows = re.findall(r"^\| (\w) .*\| (Leader|Quorum Standby|Replica) .*\| (?:running|streaming) ",
                          asked.ask("sh", "-c", f"{_LIST} || true"), re.MULTILINE)  # fmt: skip
        roles = dict(rows)
        return roles if {"Leader", "Quorum Standby"} <= set(roles.values()) else {}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    need_machines()
    folder = tmp_path_factory.mktemp("machines")
    wheels = {_SERVICE: wheels_of_the_service(tmp_path_factory.mktemp("checkout"))}
    wheels |= dict.fromkeys(_NODES, _wheels_of_patroni(folder / "patroni"))
    commands = [*read_guide("One machine with systemd").to_first_answer, *_GUIDE.to_first_answer]
    installed = " ".join(each for each in commands if each.startswith("apt-get install"))
    make_tree(
        folder / "tree", [word for word in installed.split() if word.startswith(("postgresql", "python", "etcd"))]
    )
    with ExitStack() as stack:
        made = Place(folder, stack.enter_context(made_network()))
        stack.callback(made.end)
        for name in _ADDRESSES:
            copied_tree(folder / "tree", folder / name, wheels[name])
            made.switch_on(name)
        yield made


def _wheels_of_patroni(folder: Path) -> Path:
    """What pip gets for the command of the guide, in the versions that the other tests use."""
    (install,) = (each for each in _GUIDE.steps[3] if "/pip install" in each)
    pins = re.findall(r"^([\w.-]+==[^ ;\\]+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    folder.mkdir()
    (folder / "pins.txt").write_text("\n".join(pins))
    # Two of its packages are published as sources only.
    needed = [install.rpartition(" ")[2].strip("'"), "setuptools", "wheel"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder, "--constraint", folder / "pins.txt",
         *needed],
        check=True, env=users_environment(),
    )  # fmt: skip
    return folder


def _at_once(tasks: list[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(tasks)) as pool:
        for done in [pool.submit(task) for task in tasks]:
            done.result()


def _follow_on(place: Place, node: str, commands: list[str]) -> None:
    with place.machines[node].shell() as shell:
        follow(shell, commands)


def _install_programs(place: Place) -> None:
    for node in _NODES:
        _follow_on(place, node, _GUIDE.steps[3])


def test_the_guide_leads_to_a_cell_that_survives_a_machine(place: Place) -> None:
    with place.machines[_SERVICE].shell() as shell:
        _at_once([
            lambda: follow(shell, read_guide("One machine with systemd").to_first_answer),
            partial(_install_programs, place),
        ])  # fmt: skip
        for step in _GUIDE.steps[:3]:
            follow(shell, step)
        for node in _NODES:
            place.copy(node)
        # Each of them waits for another one.
        _at_once([partial(_follow_on, place, node, _GUIDE.steps[4]) for node in _NODES])
        place.leader()
        follow(shell, _GUIDE.steps[5])
        *_, answer = follow(shell, _GUIDE.steps[6])
        assert re.search(r"Hello from d_[0-9a-f]+", answer.output)

        _lose_the_leader(place, shell)


def _lose_the_leader(place: Place, shell: Shell) -> None:
    """Switches the leader's machine off during writes, and on again."""
    root = place.folder / _SERVICE / "root"
    (root / "writer.py").write_text(_WRITER)
    for name in ("stop", "confirmed.txt"):
        (root / name).unlink(missing_ok=True)
    shell.run("PLAINSQL_KEY=$(tail -n 1 ~/beta.txt) plainsql sql 'drop table if exists numbers'")
    shell.run("PLAINSQL_KEY=$(tail -n 1 ~/beta.txt) /opt/plainsql/bin/python ~/writer.py > ~/writer.log 2>&1 &")
    confirmed = root / "confirmed.txt"
    wait_for(lambda: _lines(confirmed) > 5, _LIMIT_S, (root / "writer.log").read_text)
    leader = place.leader()
    before = _lines(confirmed)
    place.switch_off(leader)
    (answer,) = follow(shell, [_ASK])
    assert "Hello from d_" in answer.output
    wait_for(lambda: _lines(confirmed) > before + 5, _LIMIT_S, (root / "writer.log").read_text)
    (root / "stop").touch()
    shell.run("wait")
    stored = shell.run("PLAINSQL_KEY=$(tail -n 1 ~/beta.txt) plainsql sql -o csv 'select number from numbers'").output
    lost = set(confirmed.read_text().split()) - set(stored.split())
    print(f"\n{leader} was switched off: {_lines(confirmed)} confirmed writes, {len(lost)} lost")
    assert not lost
    place.switch_on(leader)
    assert place.leader() != leader


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0
