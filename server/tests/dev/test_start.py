"""What a first and a later start give: files, modes, words, and a curl line that works."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from plainsql_server.dev.ports import choose_ports
from server.tests.dev.conftest import new_folder
from server.tests.dev.running import Dev, Starter
from server.tests.load import IS_FULL
from server.tests.own_time import own_time

FIRST_START_LIMIT_S = 10
LATER_START_LIMIT_S = 4
STOP_PROMISE_S = 5
# The machine of the gate may be slow. `make soak` checks what is promised.
SLOWER = 1 if IS_FULL else 3
pytestmark = pytest.mark.slow


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pasted(run: Dev, beginning: str, more: str = "") -> str:
    """What a printed line prints that begins like this, in a shell of a user who has the client installed."""
    (line,) = [line for line in run.output.splitlines() if re.match(beginning, line)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = subprocess.run(
        ["bash", "-c", f"{line}{more}"], cwd="/", env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert shell.returncode == 0, shell.stderr
    return shell.stdout


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """A first start, for all that only looks at it."""
    folder, starter = new_folder(), Starter(tmp_path_factory.mktemp("first"))
    try:
        run = starter(folder / ".plainsql", in_new_process=True)
        run.wait_ready()
        yield run
    finally:
        starter.end_all()
        shutil.rmtree(folder)


def start_and_stop_s(start: Starter, directory: Path) -> tuple[float, float]:
    with own_time() as starting:
        run = start(directory, in_new_process=True)
        run.wait_ready()
    with own_time() as stopping:
        assert run.stop() == 0
    return starting.seconds, stopping.seconds


@pytest.mark.timing
def test_a_first_start_takes_less_than_10_seconds_and_a_later_one_less_than_4(
    fresh_state: Path, start: Starter
) -> None:
    first_s, _ = start_and_stop_s(start, fresh_state)
    later_s, stopping_s = start_and_stop_s(start, fresh_state)
    print(f"first start {first_s:.1f} s, later start {later_s:.1f} s, stop {stopping_s:.1f} s")
    assert first_s < FIRST_START_LIMIT_S * SLOWER
    assert later_s < LATER_START_LIMIT_S * SLOWER
    assert stopping_s < STOP_PROMISE_S * SLOWER


def test_the_printed_curl_line_can_be_pasted_and_returns_the_right_json(first_run: Dev) -> None:
    answer = json.loads(pasted(first_run, "curl "))
    assert answer["success"] is True
    assert answer["rows"] == [{"two": 2}]


def test_the_printed_plainsql_line_can_be_pasted(first_run: Dev) -> None:
    assert pasted(first_run, "cd .* && plainsql sql ", " -o csv").split() == ["two", "2"]


def test_node_trusts_the_certificate_after_the_printed_line(first_run: Dev) -> None:
    if shutil.which("node") is None and "PLAINSQL_TEST_GATE" not in os.environ:
        pytest.skip("Node isn't installed")
    (line,) = re.findall(r"export NODE_EXTRA_CA_CERTS=\S+", first_run.output)
    # Without `exit`, Node waits until the service closes the idle connection.
    answer = "r => { console.log(r.statusCode); process.exit() }"
    script = f"require('https').get('{first_run.description()['data_url']}/health', {answer})"
    ended = subprocess.run(["sh", "-c", f'{line} && node -e "{script}"'], capture_output=True, text=True, check=True)
    assert ended.stdout == "200\n"


def test_the_printed_lines_work_without_tls_and_in_a_folder_of_another_name(state: Path, start: Starter) -> None:
    renamed = state.rename(state.with_name("a state"))
    run = start(renamed, no_tls=True)
    run.wait_ready()
    assert run.description()["data_url"].startswith("http://")
    assert run.description()["ca_file"] is None
    assert json.loads(pasted(run, "curl "))["rows"] == [{"two": 2}]
    assert pasted(run, ".* plainsql sql ", " -o csv").split() == ["two", "2"]
    assert "NODE_EXTRA_CA_CERTS" not in run.output
    assert run.stop() == 0


def test_dev_json_has_every_promised_field_and_absolute_paths(first_run: Dev) -> None:
    description = first_run.description()
    fields = ["data_url", "control_url", "alias_url", "ca_file", "api_key_file", "database", "pids", "postgres"]
    assert list(description) == fields
    assert list(description["postgres"]) == ["socket", "port", "superuser", "database"]
    assert set(description["pids"]) == {"dev", "postgres", "redis", "data", "control", "alias"}
    assert description["database"] == "main"
    for path in (description["ca_file"], description["api_key_file"], description["postgres"]["socket"]):
        assert Path(path).is_absolute()
        assert Path(path).exists()
    for pid in description["pids"].values():
        os.kill(pid, 0)


def test_a_sourced_line_configures_an_operators_shell(first_run: Dev) -> None:
    shell = f". {first_run.directory}/operator.env && {sys.executable} -m plainsql_server status --json"
    shown = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True, timeout=60).stdout
    planes = {plane["name"]: plane["status"] for plane in json.loads(shown)["planes"]}
    assert planes == {"data": "ok", "control": "ok", "alias": "ok"}


def test_doctor_finds_nothing_after_the_sourced_line(first_run: Dev) -> None:
    # How full this machine's disk is says nothing about the service.
    doctor = f"{sys.executable} -m plainsql_server doctor --disk-free-percent 0"
    shell = ["sh", "-c", f". {first_run.directory}/operator.env && {doctor}"]
    ended = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout
    assert [line for line in ended.stdout.splitlines() if not line.startswith("ok")] == []


def test_secrets_are_readable_by_their_owner_only(first_run: Dev) -> None:
    state = first_run.directory
    for name in ("api_key", "dev.json", "operator.env", "secrets_keys", "state.json", "tls/ca.key", "tls/server.key"):
        assert mode(state / name) == 0o600, name
    assert mode(state / "tls" / "ca.pem") == 0o644
    for path in (state / "postgres", state / "postgres" / "data", state / "postgres" / "socket", state / "log"):
        assert mode(path) == 0o700, path


def test_the_engine_does_not_listen_on_the_network(first_run: Dev) -> None:
    with first_run.connect() as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW max_prepared_transactions").fetchone() == ("64",)
        assert connection.execute("SELECT type, auth_method FROM pg_hba_file_rules").fetchall() == [("local", "trust")]


def test_key_ca_and_engine_names_stay_the_same_over_starts(state: Path, start: Starter) -> None:
    def kept(run: Dev) -> tuple[str, ...]:
        run.wait_ready()
        files = [(state / name).read_text() for name in ("api_key", "secrets_keys", "tls/ca.pem")]
        engine_name = run.description()["postgres"]["database"]
        assert run.stop() == 0
        return (*files, engine_name)

    assert kept(start(state)) == kept(start(state))


def test_the_tier_has_no_rate_limit_unless_another_is_given_which_is_kept(state: Path, start: Starter) -> None:
    def tier(run: Dev) -> str:
        run.wait_ready()
        engine = run.description()["postgres"]
        address = f"host={engine['socket']} port={engine['port']} user={engine['superuser']} dbname=plainsql_directory"
        with psycopg.connect(address) as connection:
            row = connection.execute("SELECT tier FROM organizations WHERE name = 'dev'").fetchone()
        assert run.stop() == 0
        assert row is not None
        return str(row[0])

    assert tier(start(state)) == "dedicated"
    assert tier(start(state, tier="standard")) == "standard"
    assert tier(start(state)) == "standard"


def test_a_lost_key_is_replaced_and_the_lost_one_revoked(state: Path, start: Starter) -> None:
    old = (state / "api_key").read_text()
    (state / "api_key").unlink()
    run = start(state)
    run.wait_ready()
    assert (state / "api_key").read_text() != old
    engine = run.description()["postgres"]
    address = f"host={engine['socket']} port={engine['port']} user={engine['superuser']} dbname=plainsql_directory"
    with psycopg.connect(address) as connection:
        revoked = connection.execute("SELECT revoked_at IS NOT NULL FROM api_keys ORDER BY id").fetchall()
    assert revoked == [(True,), (False,)]


def test_every_part_is_shown_with_its_time(first_run: Dev) -> None:
    for name in ("cluster", "postgres", "provisioning", "data", "control"):
        assert re.search(rf"^  {name} +ready +\d+\.\d\d s  \S", first_run.output, re.MULTILINE), name
    assert "\x1b" not in first_run.output


def test_given_ports_are_used(state: Path, start: Starter, free_ports: tuple[int, int]) -> None:
    data_port, control_port = free_ports
    run = start(state, data_port=data_port, control_port=control_port)
    run.wait_ready()
    assert run.description()["data_url"] == f"https://localhost:{data_port}"
    assert run.description()["control_url"] == f"https://localhost:{control_port}"


def test_a_port_in_use_is_replaced_by_one_that_later_starts_use_again(state: Path, start: Starter) -> None:
    ports = choose_ports({"--data-port": 0, "--control-port": 0, "--alias-port": 0})
    (state / "ports.json").write_text(json.dumps(ports))

    def urls() -> list[str]:
        run = start(state, data_port=None, control_port=None, alias_port=None)
        run.wait_ready()
        described = run.description()
        assert run.stop() == 0
        return [described[name] for name in ("data_url", "control_url", "alias_url")]

    wanted = [f"https://localhost:{port}" for port in ports.values()]
    with socket.create_server(("127.0.0.1", ports["--control-port"])):
        first = urls()
    assert first[1] not in wanted
    assert [first[0], first[2]] == [wanted[0], wanted[2]]
    assert urls() == first


def test_variables_of_the_users_shell_do_not_redirect_connections(fresh_state: Path, start: Starter) -> None:
    hostile = {"PGHOST": "192.0.2.1", "PGDATA": "/nowhere", "PGPORT": "1", "PGOPTIONS": "-c nonsense=1"}
    environment = {**hostile, "PLAINSQL_DIRECTORY_DSN": "host=192.0.2.1", "LC_ALL": "xx_YY"}
    run = start(fresh_state, in_new_process=True, environment=environment)
    run.wait_ready()
    assert run.stop() == 0
