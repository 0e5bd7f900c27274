"""Following a guide on bare machines: what they may install, and typing its commands.

need_machines()
wheels = wheels_of_the_service(folder)
follow(shell, commands)
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from server.tests.built_packages import build_packages, users_environment
from server.tests.install.bare_machine import Outcome, Shell
from server.tests.programs import need

# What redis needs with Debian's Python, which is older than 3.11.3.
_FOR_OLDER_PYTHON = ["async-timeout>=4.0.3"]
_KEY = re.compile(r"svc_k_\w+")


def need_machines() -> None:
    """Skips the test where no machine can be made."""
    need("mmdebstrap", "unshare", "nsenter")
    if os.geteuid() != 0:
        pytest.skip("only root can make a machine")


def wheels_of_the_service(folder: Path) -> Path:
    """The packages, and all that they need, as pip finds it."""
    made = build_packages(folder, sys.executable, is_quick=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", made.folder,
         made.server_wheel, made.client_wheel, *_FOR_OLDER_PYTHON],
        check=True, env=users_environment(),
    )  # fmt: skip
    return made.folder


def follow(shell: Shell, commands: list[str]) -> list[Outcome]:
    """Types commands one after the other, each of which must succeed, and shows them as a person sees them."""
    outcomes = []
    for command in commands:
        outcome = shell.run(command)
        print(f"\n$ {command}\n{_KEY.sub('svc_k_…', outcome.output)}", end="")
        assert outcome.exit_code == 0, f"{command}: {outcome.output}"
        outcomes.append(outcome)
    return outcomes
