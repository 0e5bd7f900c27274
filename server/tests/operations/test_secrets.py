"""Record secrets as an operator sees them: `secrets` and what `doctor` says about keys."""

import base64
from dataclasses import replace
from pathlib import Path

from plainsql_server.directory.sealing.keyring import key_id, new_key
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage

ONE, TWO = new_key(), new_key()
FIRST, SECOND = (key_id(base64.b64decode(key)) for key in (ONE, TWO))


def rotate(stage: Stage, exit_code: int = 0, **settings: str) -> str:
    named = {f"PLAINSQL_{name.upper()}": value for name, value in settings.items()}
    return replace(stage, settings=named).run("secrets", "rotate", exit_code=exit_code).stderr


def test_an_operator_seals_secrets_and_replaces_the_key_as_doctor_says(stage: Stage) -> None:
    assert len(base64.b64decode(stage.run("secrets", "new-key").stdout)) == 32
    assert "PLAINSQL_SECRETS_KEYS" in rotate(stage, exit_code=1)
    assert_found(doctor(stage), "secrets are not sealed", "secrets new-key", "warning")
    assert_found(doctor(stage, secrets_keys=ONE), "1 secrets are not sealed", "secrets rotate", "warning")
    assert f"Sealed 1 secrets with the key {FIRST}" in rotate(stage, secrets_keys=ONE)
    assert_found(doctor(stage, secrets_keys=ONE), "others would be used", "UNSEALED_SECRETS=refuse", "warning")
    found = doctor(stage, secrets_keys=f"{TWO} {ONE}", unsealed_secrets="refuse")
    assert_found(found, f"1 secrets are sealed with the key {FIRST}, not with the first", "secrets rotate", "warning")
    assert_found(found, f"0 secrets are sealed with the key {SECOND}", "", "good")
    assert_found(doctor(stage), f"the key {FIRST}, which PLAINSQL_SECRETS_KEYS does not contain", "Add this key")
    rotate(stage, secrets_keys=f"{TWO} {ONE}", unsealed_secrets="refuse")
    found = doctor(stage, secrets_keys=TWO, unsealed_secrets="refuse")
    assert {each["grade"] for each in found if each["check"] == "secrets"} == {"good"}


def test_what_is_planted_or_moved_is_reported_and_not_sealed(stage: Stage) -> None:
    settings = {"secrets_keys": ONE, "unsealed_secrets": "refuse"}
    stage.ask("UPDATE databases SET record_secret = 'planted'")
    assert_found(doctor(stage, **settings), "1 secrets are not sealed, and", "planted")
    assert "1 secrets can't be sealed" in rotate(stage, exit_code=1, **settings)
    rotate(stage, secrets_keys=ONE)
    stage.ask("UPDATE databases SET record_secret = left(record_secret, -4)")
    assert_found(doctor(stage, **settings), "1 secrets were changed in the directory", "backup")


def test_a_rotation_that_others_undo_does_not_claim_to_be_complete(stage: Stage) -> None:
    stage.ask("CREATE RULE undone AS ON UPDATE TO databases DO INSTEAD NOTHING")
    printed = rotate(stage, exit_code=1, secrets_keys=ONE)
    assert "1 secrets are not sealed with this key" in printed
    assert "All secrets" not in printed


def test_a_secret_goes_where_its_content_goes(stage: Stage, tmp_path: Path) -> None:
    """A restore swaps two databases. Their secrets need not be sealed again for that."""
    sealing = replace(stage, settings={"PLAINSQL_SECRETS_KEYS": ONE})
    rotate(stage, secrets_keys=ONE)
    file = sealing.backup(tmp_path / "main.backup")
    sealing.run("restore", "--org", "acme", "main", "--replace", "--input", str(file))
    assert len(stage.ask("SELECT FROM databases WHERE starts_with(record_secret, 'sealed1:')")) == 2
    assert "Sealed 2 secrets" in rotate(stage, secrets_keys=f"{TWO} {ONE}", unsealed_secrets="refuse")
