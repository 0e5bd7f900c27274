"""`plainsql-server upgrade`: who may run it, and when it changes nothing. `test_doctor.py` has what it repairs."""

from server.tests.operations.diagnosis import doctor
from server.tests.operations.stage import Stage


def test_operators_upgrade_cells_themselves_once_the_directory_is_up_to_date(stage: Stage) -> None:
    with stage.postgres.connect() as admin:
        admin.execute("grant connect on database template1 to public")
    stage.run_as_operator("upgrade")
    assert "Nothing to change" in stage.run_as_operator("upgrade").stderr
    assert not [each for each in doctor(stage) if "template1" in each["found"]]
    ((newest,),) = stage.ask("select version_num from alembic_version")
    stage.ask("update alembic_version set version_num = '0003'")
    try:
        assert "Run it as the owner" in stage.run_as_operator("upgrade", exit_code=1).stderr
    finally:
        stage.ask("update alembic_version set version_num = %s", newest)


def test_upgrade_changes_nothing_where_something_cannot_be_brought_up_to_date(stage: Stage) -> None:
    stage.ask("update cells set conninfo = 'host=/nowhere'")
    stage.ask("update alembic_version set version_num = '0003'")
    refused = stage.run("upgrade", exit_code=1)
    assert "cell local" in refused.stdout
    assert "cannot be reached" in refused.stdout
    assert "Nothing was changed" in refused.stderr
    assert stage.ask("select version_num from alembic_version") == [("0003",)]
