"""`make test-deploy` never passes without having run: a program that is missing fails it, and its help names all."""

from pathlib import Path

import pytest
import yaml

from server.tests import programs
from server.tests.deploy.containers import PROGRAMS, ROOT

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("missing", PROGRAMS)
def test_each_of_its_programs_is_asked_for(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in set(PROGRAMS) - {missing}:
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "OTHER_FOLDERS", ())
    with pytest.raises(pytest.skip.Exception, match=missing):
        programs.need(*PROGRAMS)


def test_podmans_own_programs_are_found_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netavark").touch(mode=0o755)
    monkeypatch.setattr(programs, "OTHER_FOLDERS", (str(tmp_path),))
    programs.need("netavark")


def test_the_target_names_them_and_makes_a_skipped_test_fail() -> None:
    makefile = (ROOT / "Makefile").read_text()
    target = makefile.partition("\ntest-deploy:")[2].partition("\n\n")[0]
    assert f"(needs {', '.join(PROGRAMS)})" in target
    assert "PLAINSQL_TEST_GATE=1 " in target


def test_it_runs_every_week() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/deploy.yml").read_text())
    # YAML 1.1 takes `on` for true.
    assert workflow[True]["schedule"]
    (job,) = workflow["jobs"].values()
    install, *_, test = [each["run"] for each in job["steps"] if "run" in each]
    assert set(PROGRAMS) <= set(install.split())
    assert test.startswith("make test-deploy")
