"""What the control plane measures once a minute, of a real directory and cell, as the metrics show it."""

from pathlib import Path

import trustme

from plainsql_server.control_plane.upkeep import Upkeep
from plainsql_server.core.observation import Observation
from plainsql_server.directory.connection import Directory
from plainsql_server.metrics import Metrics
from server.tests.operations.stage import Stage


async def measured(stage: Stage, files: dict[str, str]) -> dict[str, float]:
    """The metrics by name and labels after one look."""
    seen: list[Observation] = []
    metrics = Metrics()
    async with Directory.open(stage.dsn) as directory:
        upkeep = Upkeep(directory, seen.append, files)
        metrics.watch_upkeep(upkeep.load)
        before = [sample.name for family in metrics.collect() for sample in family.samples]
        await upkeep.look()
    # Before the first look there is nothing to show, so that absent() says so.
    assert not [name for name in before if "upkeep" in name or "backup" in name]
    assert seen == []
    return {
        " ".join([sample.name.removeprefix("plainsql_"), *sample.labels.values()]): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


async def test_cells_certificates_and_backups_are_measured(stage: Stage, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(chain))
    (tmp_path / "broken.pem").write_bytes(b"\xff")
    files = {"planes": str(chain), "broken": str(tmp_path / "broken.pem"), "missing": str(tmp_path / "none")}
    found = await measured(stage, files)
    assert found["cell_up local"] == 1
    assert found["cell_transaction_id_age local"] > 0
    assert found["cell_multixact_id_age local"] >= 0
    assert found["cell_standbys_missing local"] == 0
    assert found["cell_archiving_failed local"] == 0
    assert 0 < found["cell_disk_free_ratio local"] < 1
    assert "cell_standby_behind_bytes local" not in found
    assert [name for name in found if name.startswith("certificate_")] == [
        "certificate_expiry_timestamp_seconds planes"
    ]
    assert 0 <= found["backup_age_seconds databases"] < 3_600
    assert 0 <= found["backup_age_seconds directory"] < 3_600
    stage.ask(
        "insert into backups (target, database_id, succeeded_at, failed_at)"
        " select id, id, now() - interval '2 days', now() from databases"
    )
    found = await measured(stage, {})
    assert found["backup_age_seconds databases"] >= 2 * 86_400
    assert found["backups_failing"] == 1


async def test_a_cell_that_does_not_answer_is_shown_as_such_and_delays_no_other(stage: Stage, tmp_path: Path) -> None:
    stage.ask(
        "insert into cells (id, name, conninfo, admin_role, state)"
        " select id || 'x', 'away', %s, admin_role, state from cells",
        f"host={tmp_path}",
    )
    found = await measured(stage, {})
    assert (found["cell_up local"], found["cell_up away"]) == (1, 0)
    assert "cell_transaction_id_age away" not in found
