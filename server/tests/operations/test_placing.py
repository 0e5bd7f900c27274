"""Generated files in the place of others: nothing that somebody else wrote is lost."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from plainsql_server.operations.files.placing import WRITTEN_BY, place_file, with_checksum

pytestmark = pytest.mark.unit

_COPY_STAT = shutil.copystat
_OURS = f"{WRITTEN_BY} Do not edit.\n"


def test_what_others_wrote_is_kept_however_often_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "pg_hba.conf"
    file.write_text("first\n")
    file.chmod(0o640)
    assert place_file(file, _OURS).kept == tmp_path / "pg_hba.conf.before-plainsql"
    assert place_file(file, _OURS + "more\n").kept is None
    assert (tmp_path / "pg_hba.conf.before-plainsql").read_text() == "first\n"
    file.write_text("second\n")
    assert place_file(file, _OURS).kept == tmp_path / "pg_hba.conf.before-plainsql.2"
    file.write_text("first\n")
    place_file(file, _OURS)
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "pg_hba.conf": with_checksum(_OURS),
        "pg_hba.conf.before-plainsql": "first\n",
        "pg_hba.conf.before-plainsql.2": "second\n",
    }
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.conf").write_text("theirs\n")
    (tmp_path / "link.conf").symlink_to("real.conf")
    place_file(tmp_path / "link.conf", _OURS)
    assert (tmp_path / "link.conf").is_symlink()
    assert (tmp_path / "real.conf").read_text() == with_checksum(_OURS)
    assert (tmp_path / "real.conf.before-plainsql").read_text() == "theirs\n"


def test_what_was_added_by_hand_to_a_generated_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "pg_hba.conf"
    place_file(file, _OURS)
    edited = file.read_text() + "host all monitor 10.0.0.9/32 scram-sha-256\n"
    file.write_text(edited)
    kept = place_file(file, _OURS).kept
    assert kept is not None
    assert kept.read_text() == edited
    # Nor is it known whether a file without a checksum, of an older version, was edited.
    file.write_text(_OURS)
    kept = place_file(file, _OURS).kept
    assert kept is not None
    assert kept.read_text() == _OURS


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_copy_is_never_readable_by_more_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def note_mode(source: Path, copy: Path, **options: bool) -> None:
        modes.append(os.stat(copy).st_mode & 0o777)
        _COPY_STAT(source, copy, **options)

    monkeypatch.setattr(shutil, "copystat", note_mode)
    file = tmp_path / "pg_hba.conf"
    file.write_text("secret\n")
    file.chmod(0o640)
    kept = place_file(file, _OURS).kept
    assert kept is not None
    # With content, and before it gets the permissions of the file, only its owner can read it.
    assert modes == [0o600]
    assert kept.stat().st_mode & 0o777 == 0o640


@pytest.mark.usefixtures("narrow_umask")
def test_the_permissions_of_folders_and_files_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    place_file(tmp_path / "unit.d/plainsql.conf", _OURS)
    assert (tmp_path / "unit.d").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "unit.d/plainsql.conf").stat().st_mode & 0o777 == 0o644
