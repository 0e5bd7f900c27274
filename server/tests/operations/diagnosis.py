"""What `plainsql-server doctor` finds, for tests of what it should find."""

import json
import os
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.dev.ports import choose_ports
from server.tests.operations.stage import Stage

Found = list[dict[str, Any]]


def doctor(stage: Stage, *options: str, **settings: str) -> Found:
    """What the real command finds, with these settings beside the stage's. The tests' clusters have no fsync."""
    named = {f"PLAINSQL_{name.upper()}": value for name, value in settings.items()}
    ports = choose_ports({"data": 0, "control": 0})
    own = {"PLAINSQL_DATA_PORT": str(ports["data"]), "PLAINSQL_CONTROL_PORT": str(ports["control"])}
    ill = replace(stage, settings={**own, **stage.settings, **named})
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            patch.delenv(name)
        for name, value in ill.environment().items():
            patch.setenv(name, value)
        # In this process, since there are many; some tests below start the command as an operator does.
        ended = CliRunner().invoke(main, ["doctor", "--json", *options])
    assert ended.exit_code == 1, ended.output
    found: Found = json.loads(ended.stdout)
    return found


def assert_found(found: Found, words: str, fix: str, grade: str = "broken") -> None:
    matching = [each for each in found if words in each["found"]]
    assert matching, [each["found"] for each in found]
    assert {each["grade"] for each in matching} == {grade}
    assert all(fix in (each["fix"] or "") for each in matching), matching
