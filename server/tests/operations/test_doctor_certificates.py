"""`plainsql-server doctor` on certificates that are expired, or have the wrong name, key or authority."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import trustme
from trustme import KeyType

from plainsql_server.control_plane import cells
from plainsql_server.directory.connection import Directory
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage
from server.tests.postgres import SUPERUSER, Postgres
from server.tests.tls_cell import running_tls_cell


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certificate(authority: trustme.CA, folder: Path, begins_days: int, ends_days: int) -> dict[str, str]:
    """Settings with a certificate for plane.example that is valid between these days from now."""
    today = datetime.now(UTC)
    issued = authority.issue_cert(
        "plane.example", not_before=today + timedelta(begins_days), not_after=today + timedelta(ends_days)
    )
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    key.chmod(0o600)
    return {"tls_cert_file": str(chain), "tls_key_file": str(key), "data_url": "https://plane.example"}


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ((-30, -1), ("expired on", "Renew it", "broken")),
        ((2, 30), ("is not valid before", "clock", "broken")),
        ((-30, 5), ("expires on", "Renew it", "warning")),
    ],
)
def test_a_certificate_outside_its_validity_period_is_reported(
    stage: Stage, authority: trustme.CA, tmp_path: Path, days: tuple[int, int], expected: tuple[str, str, str]
) -> None:
    assert_found(doctor(stage, **certificate(authority, tmp_path, *days)), *expected)


def test_a_certificate_for_another_name_or_key_is_reported(stage: Stage, authority: trustme.CA, tmp_path: Path) -> None:
    settings = certificate(authority, tmp_path, -1, 90)
    found = doctor(stage, **settings | {"data_url": "https://other.example"})
    assert_found(found, "is not valid for other.example", "names other.example")
    Path(settings["tls_key_file"]).write_bytes(authority.issue_cert("x.example").private_key_pem.bytes())
    assert_found(doctor(stage, **settings), "can't be used with its key", "PLAINSQL_TLS_KEY_FILE")


@pytest.mark.parametrize(("key_type", "warnings"), [(KeyType.RSA, 2), (KeyType.ECDSA, 0)])
def test_rsa_keys_between_the_service_and_a_cell_are_advised_against(
    postgres: Postgres, tmp_path: Path, key_type: KeyType, warnings: int
) -> None:
    with postgres.swept(), running_tls_cell(tmp_path, key_type) as cell:
        dsn = postgres.fresh_directory()

        async def add() -> None:
            async with Directory.open(dsn) as directory:
                await cells.add(directory, "secure", cell.conninfo("admin"), SUPERUSER)

        asyncio.run(add())
        found = [each for each in doctor(Stage(postgres, dsn)) if each["check"] == "cell secure"]
    assert "is new enough" in str(found)
    advice = [each for each in found if "has an RSA key" in each["found"]]
    assert len(advice) == warnings
    assert all(each["grade"] == "warning" and "P-256" in each["fix"] for each in advice)


def test_a_key_file_readable_by_others_is_reported(stage: Stage, authority: trustme.CA, tmp_path: Path) -> None:
    settings = certificate(authority, tmp_path, -1, 90)
    Path(settings["tls_key_file"]).chmod(0o644)
    assert_found(doctor(stage, **settings), "is accessible to other users: mode 0644", "chmod 600")
    assert_found(doctor(stage, tls_key_file=settings["tls_key_file"]), "Only one of", "Set both")


@pytest.mark.parametrize("name", ["data", "control", "alias"])
def test_a_certificate_of_an_unknown_authority_is_reported(stage: Stage, authority: trustme.CA, name: str) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as outsider:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        outsider.socket = context.wrap_socket(outsider.socket, server_side=True)
        thread = Thread(target=outsider.serve_forever)
        thread.start()
        try:
            found = doctor(stage, **{f"{name}_url": f"https://127.0.0.1:{outsider.server_port}"})
        finally:
            outsider.shutdown()
            thread.join()
    assert_found(found, "its certificate is rejected", "--ca-file")
    assert not any("does not respond at https:" in each["found"] for each in found)
