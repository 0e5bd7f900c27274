"""docs/install.md names only what exists, and needs no more commands than it promises."""

import re
import shlex
from collections.abc import Iterator
from itertools import chain

import click
import pytest

from plainsql.command.arguments import parse
from plainsql_server.cli import main
from server.tests.install.guide import FILE, commands, read_guide, rotations

pytestmark = pytest.mark.unit

_GUIDES = ("One machine with systemd",)
_COMMANDS_MAX = 12
# Before a command: PLAINSQL_KEY=$(…)
_VARIABLES = re.compile(r"^(\w+=(\$\([^)]*\)|\S*) )*")
# What joins several commands into one line.
_JOINED = {"&&", "||", ";", "|", "&"}


def words_of(command: str) -> list[str]:
    return list(shlex.shlex(command, posix=True, punctuation_chars=True))


def unknown_words(command: str) -> Iterator[str]:
    """The commands and options of plainsql-server in a line that it does not know."""
    words = shlex.split(command.partition(">")[0])
    places = [number for number, word in enumerate(words) if word.rpartition("/")[2] == "plainsql-server"]
    # `pip install plainsql-server` does not run it.
    if not places or "pip" in command:
        return
    node: click.Command = main
    context, rest = click.Context(main), words[places[0] + 1 :]
    while rest:
        word, *rest = rest
        options = {name: each for each in node.params if isinstance(each, click.Option) for name in each.opts}
        if word.startswith("--"):
            if word.partition("=")[0] not in options:
                yield word
            elif not options[word.partition("=")[0]].is_flag and "=" not in word:
                rest = rest[1:]
        elif isinstance(node, click.Group):
            found = node.get_command(context, word)
            if found is None:
                yield word
                return
            node = found


@pytest.mark.parametrize("heading", _GUIDES)
def test_the_first_answer_takes_few_commands_each_of_which_is_one(heading: str) -> None:
    guide = read_guide(heading)
    assert 0 < len(guide.to_first_answer) <= _COMMANDS_MAX
    for command in guide.to_first_answer:
        assert not _JOINED & set(words_of(re.sub(r"\$\([^)]*\)", "x", command))), command


def test_every_command_and_option_exists() -> None:
    files = (FILE, FILE.parents[1] / "deploy/helm/plainsql/README.md")
    of_files = [commands(file.read_text(encoding="utf-8")) for file in files]
    assert all((*of_files, rotations()))
    found = [*chain(*of_files), *rotations()]
    assert {command: names for command in found if (names := list(unknown_words(command)))} == {}
    for command in found:
        words = shlex.split(_VARIABLES.sub("", command))
        if words[0] == "plainsql":
            parse(words[1:])


def test_the_guide_to_compose_has_the_commands_of_its_folder() -> None:
    text = (FILE.parents[1] / "deploy/compose/README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert read_guide("Compose").to_first_answer == ["cd deploy/compose", *commands(text)]


def test_the_checks_would_notice() -> None:
    assert list(unknown_words("plainsql-server setup --no-such-option sql.example")) == ["--no-such-option"]
    assert list(unknown_words("plainsql-server --environment-file x migrated")) == ["migrated"]
    listed = "1. x\n\n   ```sh\n   third\n   ```\n"
    text = f"\n## A\n```sh\nfirst\nsecond \\\n  part\n```\n### B\n{listed}## C\n```sh\nfourth\n```\n"
    guide = read_guide("A", text)
    assert guide.to_first_answer == ["first", "second    part"]
    assert guide.afterwards == {"B": ["third"]}
