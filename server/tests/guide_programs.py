"""Does what a guide for Node shows, as its reader would: saves files, runs commands, compares what they print."""

import re
import subprocess
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"// (\w+\.mjs)\n")
_LIMIT_S = 60

# The language of a block, and its text.
Block = tuple[str, str]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return _FENCED.findall(page.read_text(encoding="utf-8"))


def settings_in(blocks: list[Block]) -> str:
    """The commands that set variables."""
    return "\n".join(text for language, text in blocks if language == "sh" and text.startswith("export "))


def is_program(language: str, text: str) -> bool:
    """Whether a block is a file that the reader saves."""
    return language == "js" and _NAME.match(text) is not None


def run_programs(blocks: list[Block], settings: str, folder: Path, environment: Mapping[str, str]) -> int:
    """Runs the programs in a folder, where each must print what the guide shows. Returns how many there are."""
    compared = 0
    for (language, text), (next_language, shown) in pairwise([*blocks, ("", "")]):
        if is_program(language, text) and (name := _NAME.match(text)):
            (folder / name[1]).write_text(text)
        elif language == "sh" and text.startswith("node "):
            done = subprocess.run(
                ["bash", "-ec", f"{settings}\n{text}"], cwd=folder, env=environment, timeout=_LIMIT_S,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            assert (done.returncode, next_language) == (0, "text"), done.stdout
            assert done.stdout == shown, text
            compared += 1
    return compared
