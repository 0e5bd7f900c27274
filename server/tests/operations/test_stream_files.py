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
        admits = 'hostssl replication "plainsql_stream" 10.0.0.0/8 cert\n'
        assert (admits in (folder / "pg_hba.conf").read_text()) is is_streamed
        assert ("max_slot_wal_keep_size = '16GB'" in (folder / "conf.d/plainsql.conf").read_text()) is is_streamed
        assert (folder / "stream").exists() is is_streamed
    texts = {file.name: file.read_text() for file in (tmp_path / "True/stream").iterdir()}
    assert set(texts) == {
        "plainsql-stream.service", "plainsql-stream-prune.service", "plainsql-stream-prune.timer", "stream.env",
    }  # fmt: skip
    assert "PGHOST=cell-1.example\nPGPORT=5432\n" in texts["stream.env"]
    units = "".join(texts.values())
    for command in listed(section("Stream the WAL of a cell")):
        for unit in (word for word in command.split() if word.startswith("plainsql-stream") and "." in word):
            assert unit in texts
    assert f'wal prune /srv/received --archive "{tmp_path}/True/pgbackrest"' in units


@pytest.mark.parametrize("options", [
    _STREAM, (*_ARCHIVE, *_STREAM[:2]), (*_ARCHIVE, *_STREAM[2:]),
    (*_ARCHIVE, "--stream-to", "received", *_STREAM[2:]), (*_ARCHIVE, "--stream-to", "/srv/a b", *_STREAM[2:]),
    (*_ARCHIVE, *_STREAM[:2], "--stream-from", "a\nPGUSER=b"),
])  # fmt: skip
def test_options_that_make_no_stream_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*_FILES, str(tmp_path), *_BASE, *options])
    assert done.exit_code == 2, done.output
    assert [*tmp_path.iterdir()] == []
