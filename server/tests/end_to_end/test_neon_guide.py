"""The programs in `docs/neon.md` print what it shows."""

import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

from server.tests.page import NEON
from server.tests.service import Service

_GUIDE = Path(__file__).resolve().parents[3] / "docs/neon.md"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_guide_s_programs_print_what_it_shows(service: Service, neon_packages: None) -> None:
    service.customers.add_database("neon-guide", "dev")
    environment = {
        **os.environ,
        "NODE_EXTRA_CA_CERTS": str(service.dev["ca_file"]),
        "PLAINSQL_URL": service.data_url,
        "DATABASE_URL": f"postgresql://app:{service.api_key}@localhost/neon-guide",
    }
    ran = 0
    for (language, text), (_, shown) in pairwise(_FENCED.findall(_GUIDE.read_text(encoding="utf-8"))):
        if language == "js":
            command = ["node", "--input-type=module"]
            done = subprocess.run(
                command, input=text, env=environment, cwd=NEON, capture_output=True, text=True, check=False, timeout=60
            )
            assert (done.stdout, done.returncode) == (shown, 0), done.stderr
            ran += 1
    assert ran == 4
