"""`plainsql-server pki`: what is issued is registered, trusted by a real PostgreSQL, and refused once it is revoked."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from plainsql_server.cli import main
from plainsql_server.cli.pki import commands
from plainsql_server.core.clock import now
from plainsql_server.operations.pki import lifecycle
from plainsql_server.operations.pki.authority import CertificateKind, Subject
from plainsql_server.operations.pki.files import write_file
from plainsql_server.operations.pki.lifecycle import CertificateOrder
from server.tests.pki_cell import Pki, PkiCell, running_pki_cell
from server.tests.processes import wait_for


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    made = Pki(tmp_path)
    assert CliRunner().invoke(main, ["pki", "init", str(tmp_path / "pki")]).exit_code == 0
    return made


def test_each_plane_has_files_of_its_own_that_only_it_can_read(pki: Pki) -> None:
    pki.issue("data", "--client", "plainsql_data")
    pki.issue("edge", "--server", "db.example", "--server", "10.0.0.5", "--days", "90")
    for folder, kind in (("data", "client"), ("edge", "server")):
        assert {each.name for each in (pki.root / folder).iterdir()} == {
            f"{kind}.crt", f"{kind}.key", "clients.crt", "clients.crl", "servers.crt", "servers.crl",
        }  # fmt: skip
        assert (pki.root / folder / f"{kind}.key").stat().st_mode & 0o777 == 0o600
        key = pki.certificate(f"{folder}/{kind}.crt").public_key()
        assert isinstance(key, EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    assert (pki.root / "pki").stat().st_mode & 0o777 == 0o700
    assert [(each["name"], each["kind"], each["state"]) for each in pki.listed()] == [
        ("data", "client", "in use"),
        ("edge", "server", "in use"),
    ]
    names = pki.certificate("edge/server.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["db.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_key_can_belong_to_a_user_that_only_a_container_knows(pki: Pki) -> None:
    pki.issue("data", "--client", "plainsql_data", "--owner", "10001")
    pki.run("renew", "data")
    for name in ("client.key", "client.crt"):
        found = (pki.root / "data" / name).stat()
        assert (found.st_uid, found.st_gid) == (10001, 10001)


def test_openssl_accepts_what_is_trusted_and_refuses_what_is_revoked(pki: Pki) -> None:
    pki.issue("data", "--client", "plainsql_data")
    verify = ["openssl", "verify", "-x509_strict", "-crl_check_all", "-CAfile", "data/clients.crt"]
    verify += ["-CRLfile", "data/clients.crl", "-purpose", "sslclient", "data/client.crt"]
    subprocess.run(verify, cwd=pki.root, check=True, capture_output=True)
    pki.run("revoke", "data")
    refused = subprocess.run(verify, cwd=pki.root, check=False, capture_output=True, text=True)
    assert "certificate revoked" in refused.stdout + refused.stderr


def test_a_crash_leaves_no_certificate_that_is_not_registered(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(path: Path, *rest: Any) -> None:
        if path.name == "client.key":
            raise OSError("The machine stopped.")
        write_file(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "write_file", crash)
        pki.issue("data", "--client", "plainsql_data", exit_code=1)
    assert pki.states("data") == ["in use"]
    assert not (pki.root / "data/client.crt").exists()
    # The way on: without its key it cannot be renewed, so it is revoked and issued again.
    assert "Revoke 'data' and issue it again" in pki.run("renew", "data", exit_code=1)
    pki.run("revoke", "data")
    pki.issue("data", "--client", "plainsql_data")
    assert pki.states("data") == ["revoked", "in use"]


def test_commands_at_the_same_time_register_everything(pki: Pki) -> None:
    def issue(number: int) -> None:
        subject = Subject(f"role_{number}", ())
        target = pki.root / f"node-{number}"
        order = CertificateOrder(f"node-{number}", CertificateKind.CLIENT, subject, target, None, 30)
        lifecycle.issue(pki.root / "pki", order)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(issue, range(16)))
    assert {each["name"] for each in pki.listed()} == {f"node-{number}" for number in range(16)}


def test_renewing_keeps_the_key_and_changes_one_file(pki: Pki) -> None:
    pki.issue("data", "--client", "plainsql_data", "--days", "10")
    pki.issue("control", "--client", "plainsql_admin")
    before, key = pki.certificate("data/client.crt"), (pki.root / "data/client.key").read_text()
    pki.run("renew", "--within-days", "30")
    after = pki.certificate("data/client.crt")
    assert after.serial_number != before.serial_number
    assert after.not_valid_after_utc > before.not_valid_after_utc
    assert after.public_key() == before.public_key()
    assert (pki.root / "data/client.key").read_text() == key
    assert pki.states("data") == ["replaced", "in use"]
    assert pki.states("control") == ["in use"]
    pki.run("revoke", "data")
    assert pki.states("data") == ["revoked", "revoked"]


def test_a_renewal_that_was_not_written_is_written_by_the_next_one(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """The register alone would say that nothing is due."""

    def fill_up(path: Path, *rest: Any) -> None:
        if path == pki.root / "data/client.crt":
            raise OSError("No space left on device")
        write_file(path, *rest)

    pki.issue("data", "--client", "plainsql_data", "--days", "10")
    pki.issue("edge", "--server", "localhost", "--days", "10")
    before = pki.certificate("data/client.crt"), pki.certificate("edge/server.crt")
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "write_file", fill_up)
        for _ in range(2):
            assert "No space left" in pki.run("renew", "--within-days", "90", exit_code=1)
            assert pki.certificate("data/client.crt") == before[0]
    assert pki.certificate("edge/server.crt") != before[1], "the other one is renewed"
    pki.run("renew", "--within-days", "90")
    assert pki.certificate("data/client.crt").public_key() == before[0].public_key()
    assert pki.certificate("data/client.crt").not_valid_after_utc > now() + timedelta(days=90)
    assert pki.states("data") == pki.states("edge") == ["replaced", "in use"]
    # One that did not come from these authorities stays.
    shutil.copy(pki.root / "edge/server.crt", pki.root / "data/client.crt")
    assert "Renewed" not in pki.run("renew", "--within-days", "90")
    assert pki.certificate("data/client.crt") == pki.certificate("edge/server.crt")


def test_what_expires_is_renewed_although_the_key_of_another_is_elsewhere(pki: Pki) -> None:
    for name in ("elsewhere", "data"):
        pki.issue(name, "--client", "plainsql_data", "--days", "10")
    pki.issue("moved", "--client", "plainsql_data")
    for name in ("elsewhere", "moved"):
        shutil.rmtree(pki.root / name)
    output = pki.run("renew", "--within-days", "90", exit_code=1)
    assert "Renewed 'data'" in output
    assert f"'elsewhere' was not renewed: {pki.root}/elsewhere/client.key is missing" in output
    assert "'moved'" not in output, "it is not due"
    assert pki.states("data") == ["replaced", "in use"]
    assert pki.states("elsewhere") == pki.states("moved") == ["in use"]


def test_what_would_do_harm_is_refused(pki: Pki) -> None:
    pki.issue("data", "--client", "plainsql_data")
    assert "has a certificate" in pki.issue("data", "--client", "plainsql_data", exit_code=1)
    other = ["issue", "other", "--client", "x", "--to", str(pki.root / "data")]
    assert "Use another folder" in pki.run(*other, exit_code=1)
    assert "only one authority" in pki.run("retire", "client", exit_code=1)
    pki.run("rotate", "client")
    assert "Renew these certificates first, or revoke them: data" in pki.run("retire", "client", exit_code=1)
    assert "No certificate named 'nobody'" in pki.run("renew", "nobody", exit_code=1)
    assert "no certificate that could be revoked" in pki.run("revoke", "nobody", exit_code=1)
    result = CliRunner().invoke(main, ["pki", "init", str(pki.root / "pki")])
    assert result.exit_code == 1
    assert "is not empty" in result.output


def test_an_expired_certificate_of_a_machine_that_is_gone_stops_nothing(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki.issue("gone", "--client", "plainsql_data", "--days", "1")
    pki.issue("data", "--client", "plainsql_data")
    shutil.rmtree(pki.root / "gone")
    serial = pki.certificate("data/client.crt").serial_number
    assert "Revoke 'gone'" in pki.run("renew", "--all", exit_code=1)
    assert pki.certificate("data/client.crt").serial_number == serial, "all or nothing"

    later = now() + timedelta(days=2)
    for module in (lifecycle, commands):
        monkeypatch.setattr(module, "now", lambda: later)
    assert pki.states("gone") == ["expired"]
    pki.run("rotate", "client")
    pki.run("renew", "data")
    pki.run("retire", "client")
    pki.run("revoke", "gone")
    assert pki.states("gone") == ["revoked"]
    pki.run("renew", "--all")
    pki.issue("gone", "--client", "plainsql_data")
    assert pki.states("gone") == ["revoked", "in use"]


@pytest.fixture
def cell(pki: Pki) -> Iterator[PkiCell]:
    with running_pki_cell(pki) as running:
        yield running


def test_a_cell_refuses_what_is_revoked_and_trusts_both_authorities_during_a_rotation(cell: PkiCell) -> None:
    pki = cell.pki
    first = cell.log_in("control")
    assert cell.log_in("spare") != first

    pki.run("revoke", "spare")
    cell.update()
    wait_for(lambda: cell.is_refused("spare", "revoked"), 30, str)
    assert cell.log_in("control") == first

    pki.run("rotate", "client")
    # What was signed before is still trusted, before and after the cell knows the new authority.
    assert cell.log_in("control") == first
    cell.update()
    shutil.copytree(pki.root / "control", pki.root / "previous")
    pki.run("renew", "control")
    wait_for(lambda: cell.is_admitted("control"), 30, str)
    assert cell.log_in("control") != first
    assert cell.log_in("previous") == first

    pki.run("retire", "client")
    cell.update()
    wait_for(lambda: cell.is_refused("previous", "unknown ca"), 30, str)
    assert cell.log_in("control") != first

    # The other direction: a plane refuses a cell whose certificate was revoked.
    pki.run("revoke", "cell")
    assert cell.is_refused("control", "certificate verify failed")
