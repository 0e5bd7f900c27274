"""The alias's configuration follows the directory's list of processes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from plainsql_server.directory.connection import Directory
from plainsql_server.operations.files.alias import Alias, alias_config, is_address
from plainsql_server.operations.files.follow_processes import Follower
from server.tests import forks
from server.tests.alias import found_nginx

_ADD = "INSERT INTO data_processes (id, host, pid, address) VALUES ('proc_' || %s, 'host', 1, %s)"


def listed(addresses: Sequence[str]) -> str:
    if "refused:1" in addresses:
        raise ValueError("It is strange.")
    return "\n".join(addresses)


@dataclass
class Followed:
    """A follower, its file, what it reported, and what nginx would have read at each reload."""

    folder: Path
    directory: Directory
    reported: list[str] = field(default_factory=list)
    follower: Follower = field(init=False)

    def __post_init__(self) -> None:
        reload = f"test ! -e {self.folder}/broken || {{ echo is broken; exit 1; }}; cat {self.file} >> {self.reloads}"
        command = ["sh", "-c", f"{reload}; echo '|' >> {self.reloads}"]
        self.follower = Follower(self.directory, self.file, listed, command, self.reported.append)

    @property
    def file(self) -> Path:
        return self.folder / "alias.conf"

    @property
    def reloads(self) -> Path:
        return self.folder / "reloads"

    def reloaded(self) -> list[str]:
        return [each.strip() for each in self.reloads.read_text().split("|")[:-1]] if self.reloads.exists() else []


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def followed(tmp_path: Path, directory: Directory) -> Followed:
    return Followed(tmp_path, directory)


async def test_the_file_is_written_and_nginx_reloaded_when_the_processes_change_and_only_then(
    followed: Followed, admin: psycopg.Connection
) -> None:
    admin.execute(_ADD, ("1", "a:1"))
    for _ in range(2):
        await followed.follower.look()
    assert followed.reloaded() == ["a:1"]
    admin.execute(_ADD, ("2", "b:2"))
    admin.execute(_ADD, ("3", None))
    for _ in range(2):
        await followed.follower.look()
    assert followed.reloaded() == ["a:1", "a:1\nb:2"]
    assert followed.file.read_text() == "a:1\nb:2"
    assert [each.name for each in followed.folder.iterdir() if each.name.startswith("alias")] == ["alias.conf"]
    assert followed.reported == [f"Wrote {followed.file} for {addresses}." for addresses in ("a:1", "a:1, b:2")]


async def test_the_last_file_stays_while_nothing_is_known(followed: Followed, admin: psycopg.Connection) -> None:
    admin.execute(_ADD, ("1", "a:1"))
    await followed.follower.look()
    for change in (
        "DELETE FROM data_processes",
        "INSERT INTO data_processes (id, host, pid, address) VALUES ('proc_2', 'host', 1, 'refused:1')",
        "ALTER TABLE data_processes RENAME TO away",
    ):
        admin.execute(change)
        for _ in range(2):
            await followed.follower.look()
    assert followed.reloaded() == [followed.file.read_text()] == ["a:1"]
    _, none, strange, unavailable = followed.reported
    assert none == "No data plane process with a port of its own is running. Trying again."
    assert strange == "It is strange. Trying again."
    assert "has `plainsql-server migrate` run?" in unavailable


UNUSABLE = [
    "", "bad host;", "bad host:1", "a:1;", "a:1\n", "\na:1", "a:1 down", "'a':1", 'a":1', "a", "a:", ":1", "a:0",
    "a:01", "a:65536", "a:http", "a:1}", "a:$x", "a:1#", "unix:/x", "http://a:1", "-a:1", "a..b:1", "a.:1",
    f"{'a' * 64}:1", "256.0.0.1:1", "10.0.1:1", "fd00::1:1x", "[fd00::1]", "[fd00::g]:1", "[::1%a]:1", "[10.0.0.1]:1",
    "ä:1", "a:\u0661",
]  # fmt: skip
USABLE = ["10.0.0.11:8500", "[::1]:8500", "[fd00::1:2]:65535", "localhost:1"]


@pytest.mark.parametrize("address", UNUSABLE)
def test_what_is_not_a_host_and_a_port_is_no_address(address: str) -> None:
    assert not is_address(address)


@pytest.mark.parametrize("address", [*USABLE, "node-1.example:8500", "node_1:8500", "1a.b2:80"])
def test_a_host_and_a_port_are_an_address(address: str) -> None:
    assert is_address(address)


async def test_an_address_that_nginx_cannot_use_is_left_out_and_reported_once(
    tmp_path: Path, directory: Directory, admin: psycopg.Connection
) -> None:
    """With a real nginx, which reads the file at each reload."""
    reported: list[str] = []
    file, main = tmp_path / "alias.conf", tmp_path / "nginx.conf"
    main.write_text(f"pid {tmp_path}/pid; events {{}} http {{ include {file}; }}")
    check = [found_nginx(), "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(main)]
    render: Callable[[Sequence[str]], str] = lambda live: alias_config(  # noqa: E731
        Alias(["127.0.0.1:1"], live, "https://control.example")
    )
    follower = Follower(directory, file, render, check, reported.append)
    for number, address in enumerate([*UNUSABLE, *USABLE]):
        admin.execute(_ADD, (str(number), address))
    for _ in range(2):
        await follower.look()
    ignored, wrote = reported[:-1], reported[-1]
    assert len(ignored) == len(UNUSABLE)
    assert all(any(repr(address) in line for line in ignored) for address in UNUSABLE)
    assert wrote == f"Wrote {file} for {', '.join(sorted(USABLE))}."
    assert file.read_text().count(" max_fails=") == len(USABLE)
    # One that is gone and comes back is reported again.
    for change in ("DELETE FROM data_processes WHERE address = ''", _ADD.replace("%s", "''")):
        admin.execute(change)
        await follower.look()
    assert reported[-1].endswith(": ''.")
    assert len(reported) == len(UNUSABLE) + 2
    admin.execute("DELETE FROM data_processes WHERE address = ANY(%s)", (USABLE,))
    await follower.look()
    assert reported[-1] == "No data plane process with a port of its own is running. Trying again."
    assert file.read_text().count(" max_fails=") == len(USABLE)


async def test_a_reload_that_fails_is_tried_again(followed: Followed, admin: psycopg.Connection) -> None:
    (followed.folder / "broken").touch()
    admin.execute(_ADD, ("1", "a:1"))
    for _ in range(2):
        await followed.follower.look()
    assert followed.reloaded() == []
    assert len(followed.reported) == 1
    assert followed.reported[0].endswith("failed: is broken. Trying again.")
    (followed.folder / "broken").unlink()
    await followed.follower.look()
    assert followed.reloaded() == ["a:1"]


async def test_a_file_that_nginx_refuses_is_replaced_by_the_one_before(
    followed: Followed, admin: psycopg.Connection
) -> None:
    admin.execute(_ADD, ("1", "a:1"))
    await followed.follower.look()
    (followed.folder / "broken").touch()
    admin.execute(_ADD, ("2", "b:2"))
    await followed.follower.look()
    assert followed.file.read_text() == "a:1"
    (followed.folder / "broken").unlink()
    await followed.follower.look()
    assert followed.reloaded() == ["a:1", "a:1\nb:2"]


async def test_processes_that_vanish_together_are_kept_until_they_could_have_come_back(
    followed: Followed, admin: psycopg.Connection
) -> None:
    for number in "123":
        admin.execute(_ADD, (number, f"a:{number}"))
    await followed.follower.look()
    admin.execute("DELETE FROM data_processes WHERE id <> 'proc_1'")
    for _ in range(5):
        await followed.follower.look()
    assert followed.file.read_text() == "a:1\na:2\na:3"
    for _ in range(5):
        await followed.follower.look()
    assert followed.file.read_text() == "a:1"


async def test_a_follower_that_starts_reloads_even_if_the_file_is_right(
    followed: Followed, admin: psycopg.Connection
) -> None:
    admin.execute(_ADD, ("1", "a:1"))
    followed.file.write_text("a:1")
    await followed.follower.look()
    assert followed.reloaded() == ["a:1"]


def alias(dsn: str, *arguments: str) -> tuple[int, str, str]:
    ended = forks.run(["alias", "--control-url", "https://control.example", *arguments], environment(dsn))
    return ended.returncode, ended.stdout, ended.stderr


def environment(dsn: str) -> dict[str, str]:
    return {"PLAINSQL_DIRECTORY_DSN": dsn}


def test_the_command_prints_the_running_processes(dsn: str, admin: psycopg.Connection) -> None:
    code, _, errors = alias(dsn)
    assert code == 1
    assert "Set PLAINSQL_WORKER_PORT, or use --upstream." in errors
    admin.execute(_ADD, ("1", "10.0.0.1:8500"))
    code, printed, _ = alias(dsn)
    assert code == 0
    assert "    server 10.0.0.1:8500 max_fails=1 fail_timeout=1s;\n    # Of each worker" in printed
    code, printed, _ = alias(dsn, "--upstream", "10.0.0.2:8400")
    assert code == 0
    assert "10.0.0.1" not in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ("--follow", "x", "--upstream", "a:1"),
        ("--follow", "x", "--reload-command", ""),
        ("--follow", "x", "--reload-command", "'"),
        ("--follow", "x", "--server-name", "a;"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(dsn: str, arguments: tuple[str, ...]) -> None:
    assert alias(dsn, *arguments)[0] == 2
