"""What `doctor` says of the processes that the directory lists."""

from plainsql_server.core.share import WHOLE
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage

_LISTED = "insert into data_processes (id, host, pid, share) values (%s, 'host', %s, %s)"


def test_processes_that_lack_their_share_are_reported(stage: Stage) -> None:
    assert not [each for each in doctor(stage) if each["check"] == "processes"]
    stage.ask(_LISTED, "proc_1", 1, WHOLE // 2)
    stage.ask(_LISTED, "proc_2", 2, WHOLE // 2)
    assert_found(doctor(stage), "2 data plane processes run, with 50.0 % of the limits for each", "", "good")
    stage.ask("update data_processes set seen_at = now(), share = share / 2 where pid = 2")
    stage.ask("update data_processes set seen_at = now()")
    assert_found(
        doctor(stage), "process 2 on host has 25.0 % of the limits, not 50.0 %", "run `doctor` again", "warning"
    )
