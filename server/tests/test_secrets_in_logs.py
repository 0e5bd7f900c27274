"""The check of logs that every test makes finds what must not be there, and leaves what PostgreSQL says of itself."""

from pathlib import Path

import pytest

from server.tests.secrets_in_logs import refuse_secrets

pytestmark = pytest.mark.unit

ROLE, DATABASE = "o_" + "0" * 24, "d_" + "1" * 24


@pytest.mark.parametrize(
    "line",
    [
        "svc_k_" + "a" * 32,
        f"{ROLE}@{DATABASE} ERROR:  division by zero",
        "[unknown]@[unknown] DETAIL:  Key (name)=(Ada) already exists.",
        "STATEMENT:  select 1",
        "\tDETAIL:  Key (name)=(Ada) already exists.",
        "CONTEXT:  COPY t, line 1",
        "2026-01-01 00:00:00.000 UTC [7] DETAIL:  End of WAL reached on timeline 1 at 0/5000000. select 1",
        '{"event":"failure","context":"UniqueViolation\\nDETAIL:  Key (a)=(1) already exists."}',
        '{"event":"failure","context":"DETAIL:  End of WAL reached on timeline 1 at 0/5000000."}',
    ],
)
def test_what_a_tenant_does_is_found(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"LOG:  before\n{line}\nLOG:  after\n")
    with pytest.raises(AssertionError, match="log: "):
        refuse_secrets(log)


@pytest.mark.parametrize(
    "line",
    [
        f"{ROLE}@{DATABASE} FATAL:  terminating connection due to administrator command",
        f"{ROLE}@{DATABASE} LOG:  could not send data to client: Broken pipe",
        "2026-01-01 00:00:00.000 UTC [7] DETAIL:  End of WAL reached on timeline 1 at 0/5000000.",
        "2026-01-01 00:00:00 UTC [7] LOG:  selected new timeline ID: 2",
    ],
)
def test_what_postgresql_says_of_itself_is_left(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{line}\n")
    refuse_secrets(log, tmp_path / "no such log")
