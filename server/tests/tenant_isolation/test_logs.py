"""Nothing of a customer's is in a log: no key, no token, no statement, no parameter, no value, nor our own secret.

Beside these, every test that starts a service, a data plane or a PostgreSQL looks through its logs at the end
(`server/tests/secrets_in_logs.py`).
"""

import secrets
import socket
import time
from collections.abc import Iterator

import psycopg
import pytest

from plainsql_server.core.credential import new_key
from server.tests.tenant_isolation.cells import Hostile, hostile_cell

pytestmark = pytest.mark.slow

MARK = f"mark{secrets.token_hex(8)}"


@pytest.fixture(scope="module", params=[15, 18])
def hostile(request: pytest.FixtureRequest) -> Iterator[Hostile]:
    with hostile_cell(request.param) as running:
        yield running


STATEMENTS = [
    f"select '{MARK}' as value",
    f"slect {MARK}",
    f"select '{MARK}'::int",
    f"select * from {MARK}",
    f"create table t_{MARK} (id text primary key check (id <> 'no-{MARK}'))",
    f"insert into t_{MARK} values ('{MARK}')",
    f"insert into t_{MARK} values ('{MARK}')",
    f"insert into t_{MARK} values ('no-{MARK}')",
    f"do $$ begin raise log '{MARK}'; end $$",
    f"do $$ begin raise warning '{MARK}'; end $$",
    f"do $$ begin raise exception '{MARK}' using detail = '{MARK}', hint = '{MARK}'; end $$",
    f"select pg_sleep(0.2), '{MARK}'",
    f"/*+ STREAM */ select '{MARK}', 1 / (g - 500) from generate_series(1, 1000) g",
]
# What makes PostgreSQL talk, as far as a tenant can set it; the last one would tell parameters of a failed statement.
SETTINGS = ["client_min_messages=debug5", "debug_print_plan=on", "debug_print_parse=on",
            "log_parameter_max_length_on_error=-1"]  # fmt: skip


def everything_logged(hostile: Hostile) -> str:
    return hostile.node.log.read_text() + (hostile.folder / "log").read_text()


def record_secrets(hostile: Hostile) -> list[str]:
    with psycopg.connect(hostile.node.directory_dsn) as directory:
        return [secret for (secret,) in directory.execute("select record_secret from databases")]


def _misbehave(hostile: Hostile) -> None:
    with hostile.client() as client:
        for setting in SETTINGS:
            name, _, value = setting.partition("=")
            client.post("/v1/query", json={"sql": f"alter role {hostile.own.owner} set {name} = '{value}'"})
        for sql in STATEMENTS:
            assert client.post("/v1/query", json={"sql": sql}).status_code < 500
            assert client.post("/query", content=sql.encode()).status_code < 500
            assert client.post("/v1/transaction", json={"statements": [sql, sql]}).status_code < 500
        for params in ([MARK], [{"a": MARK}], [[MARK]], [MARK, MARK]):
            client.post("/v1/query", json={"sql": "select $1::int", "params": params})
            client.post("/v1/query", json={"sql": "select $1::text", "params": params})
        # The same key for another body, an odd key, and a claim that fails for a lock that somebody holds.
        for body in ({"sql": "select 1"}, {"sql": f"select '{MARK}'"}):
            client.post("/v1/query", json=body, headers={"Idempotency-Key": f"key-{MARK}"})
        client.get(f"/{MARK}?x={MARK}", headers={"X-Request-Id": MARK, "Cookie": MARK, "traceparent": MARK})
        client.post("/v1/query", content=f'{{"sql": "{MARK}'.encode(), headers={"Content-Type": "application/json"})
        client.post("/v1/query", json={"sql": "select 1", "database": MARK})
        client.post("/v1/query", json={"sql": "select 1"}, headers={"Authorization": f"Bearer {MARK}"})


def test_no_log_holds_what_customers_send_or_get(hostile: Hostile) -> None:
    _misbehave(hostile)
    unknown = new_key().text
    with hostile.client(unknown) as outsider:
        assert outsider.post("/v1/query", json={"sql": "select 1"}).status_code == 401
    with socket.create_connection(("127.0.0.1", hostile.node.port), timeout=30) as raw:
        raw.sendall(f"{MARK}\r\n\r\n".encode())
        assert b" 400 " in raw.recv(1000)
    # Gathered for a tenth of a second, then written: the last request's line says that the others' are there.
    with hostile.client() as client:
        last = client.post("/v1/query", json={"sql": "select 1"}).json()["request_id"]
    while last not in hostile.node.log.read_text():
        pass
    logged = everything_logged(hostile)
    for what in (MARK, hostile.key, hostile.victims_key, unknown, *record_secrets(hostile)):
        assert what not in logged


LOGS = """
    create or replace function logs(i int) returns int language plpgsql immutable as $$
    begin
        raise log '{mark}';
        return i;
    end $$
"""


def test_the_engines_own_maintenance_writes_nothing_of_a_tenants(hostile: Hostile) -> None:
    mark = f"mark{secrets.token_hex(8)}"
    with hostile.postgres.connect() as admin, hostile.client() as client:
        admin.execute("alter system set autovacuum_naptime = '1s'")
        admin.execute("select pg_reload_conf()")
        for sql in (
            LOGS.format(mark=mark), "create table logged (id int)", "create index on logged (logs(id))",
            "insert into logged select generate_series(1, 500)",
        ):  # fmt: skip
            assert client.post("/v1/query", json={"sql": sql}).json()["success"]
    with hostile.postgres.connect(database=hostile.own.database) as admin:
        until_s = time.monotonic() + 30
        counted = "select autoanalyze_count from pg_stat_user_tables where relname = 'logged'"
        while admin.execute(counted).fetchone() == (0,):
            assert time.monotonic() < until_s
            time.sleep(0.1)
        admin.execute("alter system reset autovacuum_naptime")
        admin.execute("select pg_reload_conf()")
    assert mark not in everything_logged(hostile)
