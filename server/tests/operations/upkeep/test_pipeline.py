"""The operator's programs between a backup and its file: every one of them has to succeed."""

import gzip
import os
from pathlib import Path

import pytest

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.upkeep.pipeline import parse_pipeline, reading_through, writing_through

CONTENT = os.urandom(300_000)


def write(file: Path, pipeline: str) -> bytes:
    with file.open("wb") as output, writing_through(parse_pipeline(pipeline), output) as stream:
        stream.write(CONTENT)
    return file.read_bytes()


def read(file: Path, pipeline: str) -> bytes:
    with file.open("rb") as source, reading_through(parse_pipeline(pipeline), source) as stream:
        content = b""
        while block := stream.read(100_000):
            content += block
        return content


def test_what_is_written_through_programs_is_read_through_their_reverse(tmp_path: Path) -> None:
    written = write(tmp_path / "file", "cat | gzip -c")
    assert gzip.decompress(written) == CONTENT
    assert read(tmp_path / "file", "gzip -dc | cat") == CONTENT


@pytest.mark.parametrize("pipeline", [
    # Each writes something, and one of its programs fails: the first, one between, the last.
    "sh -c 'cat; exit 3' | cat",
    "cat | sh -c 'cat; exit 3' | cat",
    "cat | sh -c 'cat; exit 3'",
    "sh -c 'exit 3' | cat",
    "sh -c 'head -c 10; exit 3'",
    # Succeeds, but has not read everything.
    "head -c 10",
    "no-such-program-anywhere | cat",
])  # fmt: skip
def test_a_program_that_fails_anywhere_fails_the_whole(tmp_path: Path, pipeline: str) -> None:
    with pytest.raises(RequestError) as failed:
        write(tmp_path / "file", pipeline)
    assert failed.value.code == "pipe_failed"


@pytest.mark.parametrize("pipeline", ["sh -c 'cat; exit 3' | cat", "cat | sh -c 'cat; exit 3'", "gzip -dc"])
def test_a_program_that_fails_at_the_end_is_noticed_when_reading(tmp_path: Path, pipeline: str) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    with pytest.raises(RequestError, match="pipe failed"):
        read(tmp_path / "file", pipeline)


def test_the_message_says_which_program_failed_and_why(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"sh ended with exit code 7: no recipient \(here\)"):
        write(tmp_path / "file", "sh -c 'cat > /dev/null; echo \"no recipient (here)\" >&2; exit 7'")


def test_the_programs_do_not_get_the_services_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAINSQL_DIRECTORY_DSN", "password=secret")
    assert b"secret" not in write(tmp_path / "file", "sh -c 'cat > /dev/null; env'")


@pytest.mark.parametrize("text", ["", "|", "a |", "| a", "a | | b", "a > b", "a && b", "a 'b"])
def test_what_needs_a_shell_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"shell|missing|quotation"):
        parse_pipeline(text)
