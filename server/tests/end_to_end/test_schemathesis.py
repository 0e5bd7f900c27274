"""schemathesis on both OpenAPI documents, against the running service: requests made of the schemas, valid and not.

By default a few hundred for each plane. PLAINSQL_TEST_SCHEMATHESIS=5000 has so many made for each.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tests.end_to_end.control import answer
from server.tests.load import size
from server.tests.service import Service, running_service

pytestmark = pytest.mark.slow

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
CASES = size("PLAINSQL_TEST_SCHEMATHESIS", 0)
# A run of 5,000 takes minutes; the short one less than one, if the machine has nothing else to do.
_LIMIT_S = 300 + CASES
_SEED = "1"


@pytest.fixture(scope="module")
def tried() -> Iterator[Service]:
    """A service of its own: what is tried here renames and deletes."""
    with running_service() as running:
        yield running


def run(service: Service, url: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    key = answer(service, "POST", "/v1/keys", status=201, json={"name": "fuzz", "scopes": ["read", "write", "admin"]})
    environment = {
        **os.environ,
        "PYTHONPATH": str(FUZZ), "SCHEMATHESIS_HOOKS": "hooks", "PYTHONWARNINGS": "ignore",
        "PLAINSQL_FUZZ_KEY": key["secret"], "PLAINSQL_FUZZ_KEY_ID": key["id"],
        "PLAINSQL_FUZZ_CONTROL_URL": service.control_url, "PLAINSQL_FUZZ_CA_FILE": str(service.dev["ca_file"]),
    }  # fmt: skip
    command = [
        str(Path(sys.executable).with_name("st")), "--config-file", str(FUZZ / "schemathesis.toml"),
        "run", f"{url}/openapi.json", "--tls-verify", str(service.dev["ca_file"]), "--no-color",
        "--generation-database", "none", "--seed", _SEED,
    ]  # fmt: skip
    # It leaves files where it runs.
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, env=environment, timeout=_LIMIT_S, cwd=folder
    )


def cases(printed: str) -> int:
    found = re.search(r"^\s*([\d,]+) generated", printed, re.MULTILINE)
    assert found, printed
    return int(found[1].replace(",", ""))


@pytest.mark.timeout(_LIMIT_S)
@pytest.mark.parametrize("plane", ["data", "control"])
def test_every_request_generated_by_schemathesis_is_answered_as_documented(
    tried: Service, plane: str, tmp_path: Path
) -> None:
    url = tried.data_url if plane == "data" else tried.control_url
    operations = sum(len(methods) for methods in tried.http.get(f"{url}/openapi.json").json()["paths"].values())
    # The first two make every boundary of every schema, valid and not. Two random cases more for each route cost as
    # much processor time as a third of these, and would be the same ones in each run.
    phases = "examples,coverage" + (",fuzzing,stateful" if CASES else "")
    # Routes that take nothing are tried once; the others make up for it.
    examples = max(2, CASES * 3 // (2 * operations))
    done = run(tried, url, tmp_path, "--phases", phases, "--max-examples", str(examples))
    made = cases(done.stdout)
    print(f"schemathesis, {plane} plane: {made} cases")
    assert done.returncode == 0, done.stdout[-20_000:]
    assert made >= max(CASES, 100)
