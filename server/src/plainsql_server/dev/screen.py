"""The output of `plainsql-server dev`: plain text, flushed line by line.

Writing never fails: if the terminal is gone, the output is dropped, because a clean stop matters more.
"""

import contextlib
import json
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import TextIO

from plainsql_server.dev.options import DEFAULT_DIRECTORY

_NAME_WIDTH = 15
_SQL = "select 1 + 1 as two"
_QUERY = shlex.quote(_SQL)


class Screen:
    """Writes progress to standard output and failures to standard error."""

    def __init__(self, output: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        self._errors = errors or sys.stderr

    def is_private(self) -> bool:
        """Whether a secret may be shown: the output is not a file that other users may read."""
        try:
            mode = os.fstat(self._output.fileno()).st_mode
        except (OSError, ValueError):
            return False
        return not (stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH))

    def say(self, text: str = "") -> None:
        _write(self._output, text)

    def part_ready(self, name: str, elapsed_s: float, detail: str) -> None:
        self.say(f"  {name:<{_NAME_WIDTH}}ready  {elapsed_s:5.2f} s  {detail}".rstrip())

    def failed(self, text: str) -> None:
        _write(self._errors, f"plainsql-server dev: {text}")

    def ready(self, elapsed_s: float, facts: list[tuple[str, str]], commands: list[str]) -> None:
        """Prints the end of a successful start: where everything is, and commands to try it."""
        self.say(f"\nReady in {elapsed_s:.2f} s.\n")
        for label, value in facts:
            self.say(f"  {label:<{_NAME_WIDTH}}{value}")
        self.say("\nTry it in another terminal:\n")
        for command in commands:
            self.say(f"{command}\n")
        self.say("Press Ctrl-C to stop everything. Your data is kept.")


def curl_line(data_url: str, api_key_file: Path, ca_file: Path | None) -> str:
    """A command that runs a first query. You can paste it into a shell as it is."""
    ssl_context = f"--cacert {shlex.quote(str(ca_file))} " if ca_file else ""
    key = f'-H "Authorization: Bearer $(cat {shlex.quote(str(api_key_file))})"'
    body = shlex.quote(json.dumps({"sql": _SQL}))
    return f"curl -sS -w '\\n' {ssl_context}{key} -H 'Content-Type: application/json' -d {body} {data_url}/v1/query"


def client_line(folder: Path, data_url: str, api_key_file: Path, ca_file: Path | None) -> str:
    """The same query with the `plainsql` command, which finds the service by itself below `.plainsql`'s parent."""
    if folder.name == DEFAULT_DIRECTORY.name:
        return f"cd {shlex.quote(str(folder.parent))} && plainsql sql {_QUERY}"
    ssl_context = f"--ca-file {shlex.quote(str(ca_file))} " if ca_file else ""
    key = f'PLAINSQL_KEY="$(cat {shlex.quote(str(api_key_file))})"'
    return f"{key} plainsql sql --url {data_url} {ssl_context}{_QUERY}"


_CERTUTIL = "certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n plainsql-dev"


def trust_lines(ca_file: Path) -> list[tuple[str, str]]:
    """How programs that have their own list of authorities trust the development certificate."""
    return [
        ("For Node", f"export NODE_EXTRA_CA_CERTS={shlex.quote(str(ca_file))}"),
        ("For Chromium", f"{_CERTUTIL} -i {shlex.quote(str(ca_file))}  # package libnss3-tools; then restart it"),
        ("For Firefox", "import the CA in the settings, as an authority that identifies websites"),
    ]


def _write(stream: TextIO, text: str) -> None:
    # If the terminal or pipe is closed, the run continues to its orderly end without output.
    with contextlib.suppress(OSError):
        stream.write(text + "\n")
        stream.flush()
