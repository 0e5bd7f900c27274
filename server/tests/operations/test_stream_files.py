"""The files that `cell files --stream-to` writes for a receiver. `test_streamed_cell.py` runs them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from server.tests.operations.backups_guide import listed, section

pytestmark = pytest.mark.unit

_FILES = ("cell", "files")
_BASE = ("--admin-role", "plainsql_admin", "--memory-gib", "4")
_ARCHIVE = ("--archive-to", "/srv/archive")
_STREAM = ("--stream-to", "/srv/received", "--stream-from", "cell-1.example")


def test_only_a_streamed_cell_admits_a_receiver_and_keeps_wal_for_it(tmp_path: Path) -> None:
    for options, is_streamed in ((_ARCHIVE, False), ((*_ARCHIVE, *_STREAM), True)):
        folder = tmp_path / str(is_streamed)
        done = CliRunner().invoke(main, [*_FILES, str(folder), *_BASE, *options, "--network", "10.0.0.0/8"])
        assert done.exit_code == 0, done.output
        lines = (folder / "pg_hba.conf").read_text().splitlines()
        assert any("plainsql_stream" in line for line in lines) is is_streamed
        assert ("max_slot_wal_keep_size = '16GB'" in (folder / "conf.d/plainsql.conf").read_text()) is is_streamed
        assert (folder / "stream").exists() is is_streamed
    texts = {file.name: file.read_text() for file in (tmp_path / "True/stream").iterdir()}
    assert set(texts) == {
        "plainsql-stream.service", "plainsql-stream-prune.service", "plainsql-stream-prune.timer", "stream.env",
        "passfile", "role.sql",
    }  # fmt: skip
    assert "PGHOST=cell-1.example\nPGPORT=5432\n" in texts["stream.env"]
    units = "".join(texts.values())
    for command in listed(section("Stream the WAL of a cell")):
        for unit in (word for word in command.split() if word.startswith("plainsql-stream") and "." in word):
            assert unit in texts
    assert f'wal prune /srv/received --archive "{tmp_path}/True/pgbackrest"' in units


@pytest.mark.parametrize(
    ("options", "address"),
    [((), "all"), (("--stream-receiver", "10.1.2.3"), "10.1.2.3/32"), (("--stream-receiver", "fd00::1"), "fd00::1/128"),
     (("--stream-receiver", "10.1.0.0/16"), "10.1.0.0/16"), (("--stream-receiver", "r.example"), "r.example")],
)  # fmt: skip
def test_the_receiver_is_admitted_to_replication_alone_before_anyone_else_is(
    tmp_path: Path, options: tuple[str, ...], address: str
) -> None:
    done = CliRunner().invoke(main, [*_FILES, str(tmp_path), *_BASE, *_ARCHIVE, *_STREAM, *options])
    assert done.exit_code == 0, done.output
    lines = [line for line in (tmp_path / "pg_hba.conf").read_text().splitlines() if line.startswith("host")]
    assert lines[:2] == [
        f'hostssl replication "plainsql_stream" {address} scram-sha-256',
        'host all,replication "plainsql_stream" all reject',
    ]


def test_the_password_of_the_receiver_is_made_once(tmp_path: Path) -> None:
    texts, outputs = [], []
    for _ in range(2):
        done = CliRunner().invoke(main, [*_FILES, str(tmp_path), *_BASE, *_ARCHIVE, *_STREAM])
        assert done.exit_code == 0, done.output
        outputs.append(done.output)
        texts.append([(tmp_path / "stream" / name).read_text() for name in ("passfile", "role.sql")])
    assert texts[0] == texts[1]
    assert ["Made the password" in each for each in outputs] == [True, False]
    assert (tmp_path / "stream/passfile").stat().st_mode & 0o777 == 0o600
    passfile, role_sql = texts[0]
    password = passfile.splitlines()[1].rpartition(":")[2]
    assert len(password) > 40
    assert password not in role_sql + outputs[0]


def test_nothing_that_checks_the_old_password_is_left_when_a_new_one_is_made(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        (tmp_path / "stream/passfile").unlink(missing_ok=True)
        done = CliRunner().invoke(main, [*_FILES, str(tmp_path), *_BASE, *_ARCHIVE, *_STREAM])
        assert done.exit_code == 0, done.output
        texts.append((tmp_path / "stream/role.sql").read_text())
    assert texts[0] != texts[1]
    assert (tmp_path / "stream/role.sql").stat().st_mode & 0o777 == 0o600
    assert not [*(tmp_path / "stream").glob("*.before-plainsql*")]


@pytest.mark.parametrize("options", [
    _STREAM, (*_ARCHIVE, *_STREAM[:2]), (*_ARCHIVE, *_STREAM[2:]),
    (*_ARCHIVE, "--stream-to", "received", *_STREAM[2:]), (*_ARCHIVE, "--stream-to", "/srv/a b", *_STREAM[2:]),
    (*_ARCHIVE, *_STREAM[:2], "--stream-from", "a\nPGUSER=b"), (*_ARCHIVE, *_STREAM, "--stream-receiver", "a trust"),
])  # fmt: skip
def test_options_that_make_no_stream_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*_FILES, str(tmp_path), *_BASE, *options])
    assert done.exit_code == 2, done.output
    assert [*tmp_path.iterdir()] == []
